# SPDX-License-Identifier: Apache-2.0
"""`energon-grain lint`: does everything open, is every index right, and does every sample decode?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from energon_grain.cli.terminal import Answer, DatasetConfig, ProgressBar, SplitConfig, note, own_modules
from energon_grain.datasets.aux_stores import open_aux
from energon_grain.datasets.lowering import compile_dataset
from energon_grain.errors import ConfigError, DatasetNotFoundError, ReadError
from energon_grain.kinds.joins.leaf import JoinedLeafDataset
from energon_grain.metadataset.documents import datasets_of, leaf_maker, load_metadataset, read_document
from energon_grain.metadataset.flat import leaves_of
from energon_grain.metadataset.samples import open_columns
from energon_grain.prepare.lint import LintFinding, LintReport, about_columns, lint_dataset, opened
from energon_grain.prepare.lint_samples import lint_samples
from energon_grain.sources.kinds import LintAsk, kind_at
from energon_grain.storage.location import METADATASET_ENDINGS, is_file_of, located
from energon_grain.task_encoder import DefaultTaskEncoder
from energon_grain.words import counted

if TYPE_CHECKING:
    from energon_grain.metadataset.documents import Source
    from energon_grain.metadataset.resolve import Leaf
    from energon_grain.prepare.lint import LintFinding, LintProgress, LintReport

_LISTED_ALIKE = 3


def lint(
    path: Annotated[
        str, typer.Argument(help="Folder or URL of a prepared dataset, a JSONL file, or a metadataset (.yaml).")
    ],
    split_parts: Annotated[
        str | None,
        typer.Option(
            "--split-parts", "--split-part", help="Look only at these split parts, as train,val. Default: all shards."
        ),
    ] = None,
    split_config: SplitConfig = None,
    dataset_config: DatasetConfig = None,
    parallel: Annotated[int | None, typer.Option(min=1, help="Threads. Default: one for each core.")] = None,
    allow_pickle: Annotated[
        bool, typer.Option("--allow-pickle", help="Decode pickles too. They can run any code.")
    ] = False,
    trust_module: Annotated[
        list[str] | None,
        typer.Option(help="Module whose sample types and functions may be imported. Repeatable."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Print at most so many lines of findings; --json has all.")] = 100,
    progress: Annotated[bool, typer.Option(help="Show a progress bar, on terminals.")] = True,
) -> Answer:
    """Open a dataset as a loader does, compare its indices with its tars, and decode every sample.

    Of Parquet, Arrow and MDS files, every row is. Of a JSONL file, all malformed lines are named, as x.jsonl:123. Of a
    metadataset, every split is opened with all that it refers to, and the first sample of each shard is decoded. Exit
    code 1 if anything is wrong.
    """
    path = located(path)
    parts = _names(split_parts)
    trusted = own_modules(trust_module)
    labels = {"index": "Indices", "samples": "Samples"}
    with ProgressBar("Indices", shown=progress) as bar:

        def show(now: LintProgress) -> None:
            problems = f", {counted(now.findings, 'problem')}" if now.findings else ""
            unit = "shards" if now.stage == "index" else "samples"
            bar.advance_to(now.done, now.total, f"{now.done:,}/{now.total:,} {unit}{problems}", labels[now.stage])

        lint_folder = partial(
            lint_dataset,
            allow_pickle=allow_pickle,
            trusted_modules=trusted,
            num_threads=parallel,
            progress=show,
        )
        if is_file_of(path, METADATASET_ENDINGS):
            if split_config or dataset_config:
                raise ConfigError(
                    f"{path} is a metadataset, which names its datasets' --split-config and --dataset-config"
                )
            report = _lint_metadataset(path, parts, trusted, lint_folder)
        elif (kind := kind_at(path)).open is not None:
            if split_parts or split_config or dataset_config:
                raise ConfigError(f"{path}: {kind.described} has neither splits nor a configuration to name.")
            ask = LintAsk(trusted_modules=tuple(trusted), allow_pickle=allow_pickle, progress=partial(_show, bar))
            report = lint_samples(kind, path, ask) if kind.lint is None else kind.lint(path, ask)
        else:

            def open_part(part: str) -> None:
                for open_leaf, _ in _leaves(path, part, trusted, split_config, dataset_config):
                    open_leaf()

            report = lint_folder(
                path,
                split_parts=parts,
                split_config=split_config,
                dataset_config=dataset_config or "dataset.yaml",
                open_part=open_part,
            )
    failed = any(finding.severity == "error" for finding in report.findings)
    return Answer(document=report.findings, lines=_lines(report, limit), failed=failed)


def _names(listed: str | None) -> list[str] | None:
    return None if listed is None else [name.strip() for name in listed.split(",")]


def _show(bar: ProgressBar, done: int, total: int, found: int, what: str) -> None:
    count = f"{done:,}/{total:,} {what}, " if what else ""
    bar.advance_to(done, total, f"{count}{counted(found, 'problem')}", "Samples")


def _lines(report: LintReport, limit: int) -> list[str]:
    alike: dict[tuple[str, str], list[LintFinding]] = {}
    for finding in report.findings:
        alike.setdefault((finding.severity, finding.what), []).append(finding)
    problems = [line for (severity, _), same in alike.items() if severity != "note" for line in _lines_of(same)]
    notes = [_line(finding) for finding in report.findings if finding.severity == "note"]
    hidden = [f"… and {len(problems) - limit:,} more lines (--limit)"] if len(problems) > limit else []
    return [*problems[:limit], *hidden, *notes, _summary(report)]


def _summary(report: LintReport) -> str:
    counts = Counter(finding.severity for finding in report.findings)
    warnings = f" and {counted(counts['warning'], 'warning')}" if counts["warning"] else ""
    found = counted(counts["error"], "problem") if counts["error"] else "No problems"
    shards = "" if report.shards is None else f" and {counted(report.shards, 'shard')}"
    colour = typer.colors.RED if counts["error"] else typer.colors.GREEN
    return typer.style(f"{found}{warnings} in {counted(report.samples, 'sample')}{shards}.", fg=colour)


def _lines_of(alike: Sequence[LintFinding]) -> list[str]:
    """Findings that differ in their place alone: a wrong field map is one mistake, however many samples it breaks."""
    if len(alike) <= _LISTED_ALIKE:
        return [_line(finding) for finding in alike]
    more = f"  … and so in {len(alike) - _LISTED_ALIKE:,} more places, to {alike[-1].where}"
    return [*map(_line, alike[:_LISTED_ALIKE]), more]


def _line(finding: LintFinding) -> str:
    return str(finding) if finding.severity == "error" else note(str(finding), kind=finding.severity)


_Read: TypeAlias = dict[tuple[str, str | None, str], list[str]]
"""Split parts by path, split configuration and dataset configuration."""


def _lint_metadataset(
    path: str, splits: Sequence[str] | None, trusted: Collection[str], lint_folder: Callable[..., LintReport]
) -> LintReport:
    """Open every leaf of every split as a loader would, and make the first sample of each shard that is read.

    Every dataset is looked at, even if another is missing.
    """
    findings: list[LintFinding] = []
    document = opened(path, findings, partial(read_document, path), raised=(DatasetNotFoundError, ReadError))
    if document is None:
        return LintReport.of(path, findings, shards=0, samples=0)
    read: _Read = {}
    for split in splits or document.splits:
        _open_split(path, document, split, trusted, read, findings)
    samples, shards = _lint_read(read, trusted, lint_folder, findings)
    if shards:
        what = "Of each shard, only the first sample was decoded"
        way_out = "`energon-grain lint` of a dataset decodes all of them"
        findings.append(LintFinding(severity="note", where=path, what=what, way_out=way_out))
    return LintReport.of(path, findings, shards=shards, samples=samples)


def _lint_read(
    read: _Read, trusted: Collection[str], lint_folder: Callable[..., LintReport], findings: list[LintFinding]
) -> tuple[int, int]:
    """Check each dataset that leaves are of, and give how many samples and shards these have."""
    files = set[str]()
    samples = shards = 0
    for (root, split_config, dataset_config), parts in read.items():
        kind = kind_at(root)
        if kind.shards is None:
            if kind.open is not None and not kind.takes_no_columns and root not in files:
                files.add(root)
                opened(root, findings, lambda root=root: findings.extend(about_columns(root, trusted)))
            continue
        report = lint_folder(
            root,
            split_parts=parts,
            split_config=split_config,
            dataset_config=dataset_config,
            first_samples=True,
        )
        samples, shards = samples + report.samples, shards + (report.shards or 0)
        for finding in report.findings:
            where = finding.where if finding.where.startswith(report.root) else f"{report.root}/{finding.where}"
            findings.append(replace(finding, where=where))
    return samples, shards


def _open_split(
    path: str, document: Source, split: str, trusted: Collection[str], read: _Read, findings: list[LintFinding]
) -> None:
    """Open the leaves of a split, and note in `read` which datasets they are of."""
    joins = 0
    for open_leaf, leaf in opened(path, findings, partial(_leaves, document, split, trusted)) or ():
        before = len(findings)
        opened(str(leaf.place), findings, open_leaf)
        for name, aux in leaf.aux.items():
            opened(str(aux.place), findings, partial(open_aux, {name: aux}, None))
        if not any(finding.severity == "error" for finding in findings[before:]):
            joins += isinstance(leaf, JoinedLeafDataset)
            for each in datasets_of(leaf):
                read.setdefault((each.path, each.split_config, each.dataset_config), []).append(each.split_part)
    if joins == 1:  # of several it is not said which one a column is of
        opened(
            path, findings, lambda: findings.extend(about_columns(path, trusted, open_columns(path, split_part=split)))
        )


def _leaves(
    source: Source,
    split_part: str,
    trusted_modules: Collection[str],
    split_config: str | None = None,
    dataset_config: str | None = None,
) -> list[tuple[Callable[[], object], Leaf]]:
    """The leaves of a split, whether or not they are there: what opens each as a loader does, and the leaf."""
    maker = leaf_maker(
        task_encoder=DefaultTaskEncoder(),
        training=False,
        split_config=split_config,
        dataset_config=dataset_config,
        trusted_modules=tuple(trusted_modules),
    )
    tree = load_metadataset(source, maker, split_part=split_part, require_data=False)

    def open_leaf(leaf: Leaf) -> None:
        leaf.check()
        compile_dataset(leaf)

    return [(partial(open_leaf, leaf), leaf) for leaf in leaves_of(tree)]
