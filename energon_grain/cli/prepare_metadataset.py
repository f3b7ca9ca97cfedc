"""`energon-grain prepare META.yaml`: index the joins of a metadataset."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from energon_grain.metadataset.prepare_joins import MetadatasetReport


def prepare_metadataset_file(path: Path, *, progress: bool) -> None:
    """Index all joins of the metadataset at `path`, and say what was done."""
    from energon_grain.cli.progress_bar import progress_bar
    from energon_grain.metadataset.prepare_joins import prepare_metadataset

    with progress_bar("Joining", shown=progress) as bar:

        def show(place: str, done: int, total: int) -> None:
            bar.advance_to(done, total, f"{done:,}/{total:,} keys, {place.rpartition(': ')[2]}")

        report = prepare_metadataset(path, progress=show)
    _print_report(report)


def _print_report(report: MetadatasetReport) -> None:
    if not report.joins:
        typer.echo(f"{report.path}: has no joins, so there is nothing to prepare.")
    else:
        built = sum(join.built for join in report.joins)
        typer.echo(
            f"Prepared {report.path}: {len(report.joins)} joins, {built} of them made now, in {report.elapsed_s:.2f} s."
        )
    for join in report.joins:
        done = "" if join.built else ", was there"
        typer.echo(f"  {' and '.join(join.places)}: {join.rows:,} rows{done}")
        if join.skipped:
            typer.echo(f"    {join.skipped:,} samples of the first dataset are in no row")
        for dataset, count in join.missing.items():
            typer.echo(f"    {count:,} rows have no sample of {dataset}")
    if report.removed:
        typer.echo(f"  removed {len(report.removed)} indices that no join needs any more")
    for note in report.notes:
        typer.secho(f"  note: {note}", fg=typer.colors.YELLOW)
