"""`energon-grain prepare` of a JSONL file: its index."""

from __future__ import annotations

import typer

from energon_grain.cli.progress_bar import progress_bar
from energon_grain.cli.sizes import counted, format_bytes


def prepare_jsonl_file(path: str, *, progress: bool) -> None:
    """Index a file and say how many samples it has."""
    from energon_grain.prepare.jsonl_preparation import prepare_jsonl

    with progress_bar("Indexing", shown=progress) as bar:
        report = prepare_jsonl(
            path, progress=lambda done, total, samples: bar.advance_to(done, total, f"{samples:,} samples")
        )
    typer.echo(
        f"Prepared {report.path}: {counted(report.samples, 'sample')}, {format_bytes(report.size_bytes)}, in "
        f"{report.elapsed_s:.2f} s."
    )
    typer.echo(f"  index: {report.index}")
