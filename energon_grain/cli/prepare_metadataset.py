"""`energon-grain prepare METADATASET`: the indices of its joins."""

from __future__ import annotations

import typer


def prepare_metadataset_file(path: str, *, progress: bool) -> None:
    """Index the joins of a metadataset and say what was done."""
    from energon_grain.cli.progress_bar import progress_bar
    from energon_grain.cli.sizes import counted
    from energon_grain.metadataset.prepare_joins import prepare_metadataset

    with progress_bar("Joining", shown=progress) as bar:
        report = prepare_metadataset(path, progress=bar.show_join)
    if not report.joins:
        typer.echo(f"{path}: has no joins, there is nothing to prepare.")
    for join in report.joins:
        done = "joined" if join.built else "up to date"
        typer.echo(f"{', '.join(join.places)}: {counted(join.rows, 'row')} {done}, in {join.folder.name}")
        if join.skipped:
            typer.echo(f"  without a row: {counted(join.skipped, 'sample')} of the first dataset")
        for dataset, missing in join.missing.items():
            if missing:
                typer.echo(f"  without a sample of {dataset}: {counted(missing, 'row')}")
    for name in report.removed:
        typer.echo(f"  removed the index {name}, which no join needs any more")
    for note in report.notes:
        typer.secho(f"  note: {note}", fg=typer.colors.YELLOW)
    typer.echo(f"Prepared {path} in {report.elapsed_s:.2f} s.")
