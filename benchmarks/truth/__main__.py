"""`python -m benchmarks.truth`: run checks of loaders, and print the table."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from benchmarks.truth.chart import PICTURE, picture
from benchmarks.truth.checks import CHECKS
from benchmarks.truth.fleet import Fleet, HostLostError, LoaderError
from benchmarks.truth.report import cell, page, short_table
from benchmarks.truth.run import interpreter, keep, kept, loaders, run_check

FOLDER = Path(__file__).parent


def main(arguments: list[str] | None = None) -> int:
    """Run the command. Returns 1 if an adapter could not be run."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.truth", description="Measure what data loaders promise."
    )
    parser.add_argument("--loader", action="append", help=f"repeatable; of {', '.join(loaders())}, or a module")
    parser.add_argument("--check", action="append", choices=list(CHECKS), help="repeatable; default: all")
    parser.add_argument(
        "--histories", type=int, default=200, help="histories of each check (default: 200); 0: only the report"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the first history")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="histories at a time (default: cores)")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds until a loader hangs (default: 300)")
    parser.add_argument("--python", action="append", default=[], metavar="LOADER=PATH", help="interpreter of a loader")
    parser.add_argument(
        "--results",
        type=Path,
        default=FOLDER / "results",
        help="folder of results, one JSON file per loader (default: beside the program)",
    )
    parser.add_argument("--publish", action="store_true", help="write RESULTS.md and the picture, of all results")
    options = parser.parse_args(arguments)
    failed, given = False, dict(each.split("=", 1) for each in options.python)
    for loader in (options.loader or loaders()) if options.histories else ():
        try:
            with Fleet(loader, interpreter(loader, given), options.timeout) as fleet:
                outcomes = []
                for name in options.check or CHECKS:
                    outcome = run_check(fleet, name, options.histories, seed=options.seed, jobs=options.jobs, say=log)
                    played = f"played {outcome.measured} of {outcome.histories} in {outcome.seconds} s"
                    log(f"{loader} {name}: {played}: {cell(outcome)}")
                    outcomes.append(outcome)
                    keep(options.results, fleet.about, [outcome])
        except (LoaderError, HostLostError) as error:
            log(f"{loader}: {error.args[0]}")
            failed = True
    results = list(kept(options.results))
    if options.publish:
        (FOLDER / "RESULTS.md").write_text(page(results))
        (FOLDER / "table.md").write_text(short_table(results))
        PICTURE.write_text(picture(results))
    print(page(results))
    return int(failed)


def log(line: str) -> None:
    """Print a line of progress."""
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
