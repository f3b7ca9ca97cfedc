"""`make bench`: measure every row, print the table, write RESULTS.md. Exit code 1 if a target was missed.

python -m benchmarks.run [--quick] [--only ROW …] [--without PROGRAM …] [--rounds 5] [--seconds 3]
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from benchmarks import chart, report
from benchmarks.child import program
from benchmarks.contender import MeasurementFailedError, Row, measure
from benchmarks.datasets import build
from benchmarks.machine import describe
from benchmarks.object_store import bucket_of
from benchmarks.report import RowResult
from benchmarks.resources import CACHE
from benchmarks.rows import table


def main(
    quick: Annotated[bool, typer.Option("--quick", help="Three rounds of one second per measurement.")] = False,
    only: Annotated[list[str] | None, typer.Option(metavar="ROW", help="Measure only this row. Repeatable.")] = None,
    without: Annotated[list[str] | None, typer.Option(metavar="PROGRAM", help="Skip this program. Repeatable.")] = None,
    rounds: Annotated[int, typer.Option(help="Measurements of each program. Default: 5.")] = 0,
    seconds: Annotated[float, typer.Option(help="Length of a measurement. Default: 3.")] = 0.0,
    cache: Annotated[Path, typer.Option(help="Folder for the datasets (15 GB).")] = CACHE,
    output: Annotated[
        Path | None, typer.Option(help="Default: RESULTS.md for a full run, otherwise a file in the cache.")
    ] = None,
) -> None:
    cache = cache.resolve()
    rounds, seconds = rounds or (3 if quick else 5), seconds or (1.0 if quick else 3.0)
    page = output or (cache / "RESULTS.md" if quick or only or without else chart.RESULTS)
    rows = chosen(table(cache, warmup_s=0.2 if quick else 0.5, seconds=seconds), only)
    build_needed(cache, dict.fromkeys(name for row in rows for name in row.data_sets))

    results: list[RowResult] = []
    settings = {"rounds": rounds, "seconds per measurement": seconds}
    for row in rows:
        with bucket_of(cache / row.served) if row.served else nullcontext():
            results.append(_run(row, rounds, without or ()))
        print("\n".join(report.details(results[-1])), flush=True)
        # Written after every row, so that an interrupted run leaves the rows that it has.
        page.write_text(report.page(results, describe(cache), settings) + "\n")
    print("\n".join(report.summary(results)))
    print(f"\nwritten to {page}", file=sys.stderr)
    if page.resolve() == chart.RESULTS:
        chart.main()
    verdicts = [(target, result.verdict(target)) for result in results for target in result.row.targets]
    sys.exit(any(value is not None and not target.met(value) for target, value in verdicts))


def chosen(rows: Sequence[Row], names: Collection[str] | None) -> list[Row]:
    """Return the rows of these names; by default all."""
    if unknown := set(names or ()) - {row.name for row in rows}:
        sys.exit(f"unknown row {', '.join(sorted(unknown))}; the rows are: {', '.join(row.name for row in rows)}")
    return [row for row in rows if not names or row.name in names]


def build_needed(cache: Path, names: Iterable[str]) -> None:
    """Write the datasets, mixtures and joins of these names that `cache` lacks."""
    cache.mkdir(parents=True, exist_ok=True)
    build(cache, names)


def _run(row: Row, rounds: int, without: Sequence[str]) -> RowResult:
    """Run all contenders in turns (ours, peer, peer, ours, peer, peer, …), so that a busy machine affects all alike."""
    result = RowResult(row=row)
    contenders = [contender for contender in row.contenders if contender.available() and contender.name not in without]
    for turn in range(rounds):
        for contender in contenders:
            if contender.name in result.failures:
                continue
            print(f"{row.name}: round {turn + 1} of {rounds}: {contender.name}", file=sys.stderr, flush=True)
            try:
                result.answers.setdefault(contender.name, []).append(measure(contender))
            except MeasurementFailedError as error:
                print(error, file=sys.stderr)
                result.failures[contender.name] = str(error)
                result.answers.pop(contender.name)
    return result


if __name__ == "__main__":
    program(main)
