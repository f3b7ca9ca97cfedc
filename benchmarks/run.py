"""`make bench`: measure every row, print the table, write RESULTS.md.

python -m benchmarks.run [--quick] [--only ROW …] [--rounds 5] [--seconds 3] [--cache FOLDER] [--output FILE]
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path

from benchmarks import chart, report
from benchmarks.contender import MeasurementFailedError, Row, measure
from benchmarks.datasets import build
from benchmarks.machine import describe
from benchmarks.object_store import bucket_of
from benchmarks.report import RowResult
from benchmarks.rows import table

REPO = Path(__file__).resolve().parent.parent


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 1 if a target was missed, 0 if all measured ones were met."""
    options = _parse(arguments)
    rows = table(options.cache, warmup_s=0.2 if options.quick else 0.5, seconds=options.seconds)
    unknown = set(options.only) - {row.name for row in rows}
    if unknown:
        sys.exit(f"no row named {', '.join(sorted(unknown))}; there are {', '.join(row.name for row in rows)}")
    rows = [row for row in rows if not options.only or row.name in options.only]
    build_needed(options.cache, dict.fromkeys(name for row in rows for name in row.data_sets))

    results: list[RowResult] = []
    settings = {"rounds": options.rounds, "seconds a measurement": options.seconds}
    for row in rows:
        with bucket_of(options.cache / row.served) if row.served else nullcontext():
            results.append(_run(row, options.rounds, options.without))
        print("\n".join(report.details(results[-1])), flush=True)
        # After every row: a run that is ended early leaves what it has.
        options.output.write_text(report.page(results, describe(options.cache), settings) + "\n")
    print("\n".join(report.summary(results)))
    print(f"\nwritten to {options.output}", file=sys.stderr)
    if options.output.resolve() == chart.RESULTS:
        chart.main()
    verdicts = [(target, result.verdict(target)) for result in results for target in result.row.targets]
    return int(any(value is not None and not target.met(value) for target, value in verdicts))


def build_needed(cache: Path, names: Iterable[str]) -> None:
    """Write the data sets, mixtures and joins of these names that `cache` lacks."""
    cache.mkdir(parents=True, exist_ok=True)
    build(cache, names)


def _run(row: Row, rounds: int, without: Sequence[str]) -> RowResult:
    """All contenders in turns: ours, peer, peer, ours, peer, peer, …, so that a busy machine meets all alike."""
    result = RowResult(row=row)
    contenders = [one for one in row.contenders if one.available() and one.name not in without]
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


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.run", description="Measure energon-grain beside its peers.")
    parser.add_argument("--quick", action="store_true", help="one second and three rounds a measurement")
    parser.add_argument("--only", action="append", default=[], metavar="ROW", help="measure this row (repeatable)")
    parser.add_argument("--without", action="append", default=[], metavar="PROGRAM", help="leave this program out")
    parser.add_argument("--rounds", type=int, help="measurements of each program (default 5)")
    parser.add_argument("--seconds", type=float, help="length of a measurement (default 3)")
    parser.add_argument(
        "--cache",
        type=Path,
        default=Path(os.environ.get("ENERGON_BENCH_CACHE", REPO / ".bench")),
        help="folder for the data sets, 15 GB (default: ENERGON_BENCH_CACHE or .bench)",
    )
    parser.add_argument("--output", type=Path, help="where the page goes (default: RESULTS.md for a full run)")
    options = parser.parse_args(arguments)
    options.rounds = options.rounds or (3 if options.quick else 5)
    options.seconds = options.seconds or (1.0 if options.quick else 3.0)
    options.cache = options.cache.resolve()
    partial = options.quick or options.only or options.without
    options.output = options.output or (options.cache / "RESULTS.md" if partial else REPO / "benchmarks" / "RESULTS.md")
    return options


if __name__ == "__main__":
    sys.exit(main())
