"""`energon-grain migrate check`: what of a dataset will be refused here, or behave differently than in Energon?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from energon_grain.cli.own_modules import own_modules
from energon_grain.cli.print_json import print_json

if TYPE_CHECKING:
    from energon_grain.migration.finding import Finding

migrate = typer.Typer(help="Move over from Energon.", no_args_is_help=True)

_COLOURS = {
    "error": typer.colors.RED,
    "differs": typer.colors.YELLOW,
    "better": typer.colors.GREEN,
    "note": typer.colors.BLUE,
}
_INDENT = " " * 9


@migrate.callback()
def options() -> None:
    """Move over from Energon."""


@migrate.command()
def check(
    path: Annotated[str, typer.Argument(help="Folder or URL of a prepared dataset, or a metadataset (.yaml).")],
    shards: Annotated[int, typer.Option(min=0, help="Read the headers of so many shards of each dataset.")] = 8,
    all_shards: Annotated[bool, typer.Option("--all", help="Read the headers of all shards.")] = False,
    allow_pickle: Annotated[
        bool, typer.Option("--allow-pickle", help="Your program will decode pickles: do not list them.")
    ] = False,
    trust_module: Annotated[
        list[str] | None, typer.Option(help="Module that your program will pass in trusted_modules. Repeatable.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="List at most so many findings.")] = 100,
    as_json: Annotated[bool, typer.Option("--json", help="Print all findings as JSON.")] = False,
) -> None:
    """List what of a dataset or metadataset will be refused, or behave differently than in Energon.

    Only reads: configuration, indices, and headers of tars. Exit code 1 if anything will be refused.
    """
    from energon_grain.migration import migration_findings

    findings = migration_findings(
        path,
        max_shards=None if all_shards else shards,
        allow_pickle=allow_pickle,
        trusted_modules=own_modules(trust_module),
    )
    if as_json:
        print_json(findings)
    else:
        for finding in findings[:limit]:
            typer.secho(f"{finding.severity:8}", fg=_COLOURS[finding.severity], nl=False)
            for line in _lines(finding):
                typer.echo(line)
        if len(findings) > limit:
            typer.echo(f"… and {len(findings) - limit:,} more (--limit)")
        typer.echo(_summary(findings))
    if any(finding.severity == "error" for finding in findings):
        raise typer.Exit(1)


def _lines(finding: Finding) -> Iterator[str]:
    yield f" {finding.where}"
    yield f"{_INDENT}{finding.what}"
    for label, text in (("Energon:", finding.energon), ("here:", finding.here), ("to do:", finding.advice)):
        if text:
            yield f"{_INDENT}{label:9}{text}"


def _summary(findings: Sequence[Finding]) -> str:
    from energon_grain.migration.finding import Severity

    if not findings:
        return "Nothing behaves differently."
    counts = Counter(finding.severity for finding in findings)
    return ", ".join(f"{counts[severity]:,} {severity}" for severity in get_args(Severity))
