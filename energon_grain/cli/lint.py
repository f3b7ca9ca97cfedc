"""`energon-grain lint`: is every index right, and does every sample decode?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from energon_grain.cli.own_modules import own_modules
from energon_grain.cli.sizes import counted
from energon_grain.errors import ConfigError
from energon_grain.formats.file_ending import METADATASET_ENDINGS, is_file_of
from energon_grain.storage.location import located

if TYPE_CHECKING:
    from energon_grain.prepare.lint_finding import LintProgress


def lint(
    path: Annotated[str, typer.Argument(help="Folder or URL of a prepared dataset, or a JSONL file.")],
    split_parts: Annotated[
        str | None, typer.Option(help="Look only at these split parts, as train,val. Default: all shards.")
    ] = None,
    split_config: Annotated[str | None, typer.Option(help="Name of the split file in .nv-meta.")] = None,
    dataset_config: Annotated[
        str | None, typer.Option(help="Name of the dataset's YAML file in .nv-meta. Default: dataset.yaml.")
    ] = None,
    parallel: Annotated[int | None, typer.Option(min=1, help="Threads. Default: one for each core.")] = None,
    allow_pickle: Annotated[
        bool, typer.Option("--allow-pickle", help="Decode pickles too. They can run any code.")
    ] = False,
    trust_module: Annotated[
        list[str] | None, typer.Option(help="Module whose sample types may be imported. Repeatable.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="List at most so many problems.")] = 100,
    progress: Annotated[bool, typer.Option(help="Show a progress bar, on terminals.")] = True,
) -> None:
    """Compare the indices with the tars, then decode every sample. Exit code 1 if anything is wrong.

    Of a JSONL file, all malformed lines are named, as x.jsonl:123.
    """
    from energon_grain.cli.progress_bar import progress_bar
    from energon_grain.prepare.lint_dataset import lint_dataset
    from energon_grain.prepare.lint_jsonl import lint_jsonl

    path = located(path)
    if is_file_of(path, METADATASET_ENDINGS):
        raise ConfigError(f"{path}: is a metadataset; lint its datasets one by one, `energon-grain info` names them.")
    labels = {"index": "Indices", "samples": "Samples"}
    with progress_bar("Indices", shown=progress) as bar:

        def show(now: LintProgress) -> None:
            problems = f", {counted(now.findings, 'problem')}" if now.findings else ""
            unit = "shards" if now.stage == "index" else "samples"
            bar.advance_to(now.done, now.total, f"{now.done:,}/{now.total:,} {unit}{problems}", labels[now.stage])

        if is_file_of(path, ".jsonl"):
            if split_parts or split_config or dataset_config or allow_pickle or trust_module:
                raise ConfigError(f"{path}: a JSONL file has neither splits nor a configuration to name.")
            report = lint_jsonl(
                path,
                progress=lambda done, total, found: bar.advance_to(done, total, counted(found, "problem"), "Lines"),
            )
        else:
            report = lint_dataset(
                path,
                split_parts=None if split_parts is None else [part.strip() for part in split_parts.split(",")],
                split_config=split_config,
                dataset_config=dataset_config or "dataset.yaml",
                allow_pickle=allow_pickle,
                trusted_modules=own_modules(trust_module),
                num_threads=parallel,
                progress=show,
            )
    for finding in report.findings[:limit]:
        place = "/".join(text for text in (finding.shard, finding.key) if text)
        typer.echo(f"{place or report.root}: {finding.reason}")
    if len(report.findings) > limit:
        typer.echo(f"… and {len(report.findings) - limit:,} more (--limit)")
    for note in report.notes:
        typer.secho(f"note: {note}", fg=typer.colors.YELLOW)
    looked_at = f"{counted(report.samples, 'sample')} and {counted(report.shards, 'shard')}"
    if report.findings:
        typer.secho(f"{counted(len(report.findings), 'problem')} in {looked_at}.", fg=typer.colors.RED)
        raise typer.Exit(1)
    typer.secho(f"No problems in {looked_at}.", fg=typer.colors.GREEN)
