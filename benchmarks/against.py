"""This checkout against another revision of it: the same rows, in turns on one machine, as ratios with their spread.

python -m benchmarks.against REVISION [ROW …] [--rounds 7] [--seconds 2] [--cache FOLDER]

The other revision gets a git worktree with an environment of its own (`make setup` there) and indices of its own over
hard links to the same shards, all kept in the cache for the next time. Each side runs its own `benchmarks` programs,
with the arguments of this checkout's rows; where a program is missing there, the row says so. Rounds go A B, B A,
and so on, so that a machine that grows busier meets both alike.

A ratio is here / there, pair by pair: above 1, rates are better here; times and memory worse.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.child import program
from benchmarks.contender import REPO, Contender, MeasurementFailedError, Row, measure
from benchmarks.datasets import DATA_SETS, link, once
from benchmarks.object_store import bucket_of
from benchmarks.resources import CACHE
from benchmarks.rows import table
from benchmarks.run import build_needed, chosen

DEFAULT_ROWS = ("text-crude", "text-sample", "blobs", "jpeg-rgb8", "prepare-no-sqlite", "million", "import", "resume")
"""What a change of the house could make slower, in a few minutes."""
_BUILD = """
import sys
from pathlib import Path
from benchmarks.resources import CACHE
from benchmarks.run import build_needed, chosen
build_needed(Path(sys.argv[1]), sys.argv[2:])
"""
"""Run by the other revision, in its own words."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """A checkout with its interpreter and its data sets."""

    repo: Path
    python: str
    cache: Path

    def measure(self, contender: Contender, home: Side) -> dict[str, Any]:
        """Run a contender of `home`'s table as this side's own program."""
        told = json.dumps(dict(contender.arguments))
        told = told.replace(str(home.cache), str(self.cache)).replace(json.dumps(home.python), json.dumps(self.python))
        return measure(replace(contender, arguments=json.loads(told)), repo=self.repo, python=self.python)


def main(
    revision: Annotated[str, typer.Argument(help="What git calls it: a commit, branch or tag.")],
    rows: Annotated[list[str] | None, typer.Argument(metavar="ROW", help=f"Default: {', '.join(DEFAULT_ROWS)}")] = None,
    rounds: Annotated[int, typer.Option(help="Pairs of measurements of each program.")] = 7,
    seconds: Annotated[float, typer.Option(help="Length of a measurement.")] = 2.0,
    cache: Annotated[Path, typer.Option(help="Folder for the data sets and the other revision.")] = CACHE,
) -> None:
    home = Side(repo=REPO, python=sys.executable, cache=cache.resolve())
    compared = chosen(table(home.cache, warmup_s=0.5, seconds=seconds), rows or DEFAULT_ROWS)
    names = list(dict.fromkeys(name for row in compared for name in row.data_sets))
    build_needed(home.cache, names)
    there = _other(revision, home, names)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # both sides start from compiled modules
    for side in (home, there):
        subprocess.run(
            [side.python, "-m", "compileall", "-q", "energon_grain", "adapters", "benchmarks"],
            cwd=side.repo,
            check=True,
        )
    print(f"this checkout / {revision}, {rounds} pairs a row: median (smallest to largest)")
    for row in compared:
        for line in _compared(row, home, there, rounds):
            print(line, flush=True)


def _other(revision: str, home: Side, names: Sequence[str]) -> Side:
    """The other revision, checked out, installed and with its data; what is there already is kept."""
    commit = subprocess.run(
        ["git", "rev-parse", "--verify", f"{revision}^{{commit}}"], cwd=REPO, check=True, capture_output=True, text=True
    ).stdout.strip()
    folder = home.cache / "against" / commit[:12]
    tree = folder / "tree"
    if not tree.exists():
        subprocess.run(["git", "worktree", "prune"], cwd=REPO, check=True)
        subprocess.run(["git", "worktree", "add", "--detach", str(tree), commit], cwd=REPO, check=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "PYTHON"))}
    subprocess.run(["make", "setup"], cwd=tree, check=True, env=environment, stdout=sys.stderr)
    side = Side(repo=tree, python=str(tree / ".venv" / "bin" / "python"), cache=folder / "data")
    for name in names:
        if name in DATA_SETS:  # mixtures and joins are small: each side writes its own
            target = side.cache / name
            once(target, f"{name}: links", lambda name=name, target=target: link(home.cache / name, target))
    subprocess.run([side.python, "-c", _BUILD, str(side.cache), *names], cwd=tree, check=True, env=environment)
    return side


def _compared(row: Row, home: Side, there: Side, rounds: int) -> Iterator[str]:
    yield f"\n{row.name}: {row.title}"
    for contender in row.contenders:
        if contender.family != row.contenders[0].family:
            continue
        pairs: list[tuple[dict[str, Any], dict[str, Any]]] = []
        try:
            for number in range(rounds):
                order = (home, there) if number % 2 == 0 else (there, home)
                answers = {}
                for side in order:
                    with bucket_of(side.cache / row.served) if row.served else nullcontext():
                        answers[side] = side.measure(contender, home)
                pairs.append((answers[home], answers[there]))
        except MeasurementFailedError as error:
            yield f"  {contender.name}: {error}"
            continue
        for metric in row.metrics:
            ratios = sorted(here[metric] / other[metric] for here, other in pairs if other.get(metric))
            if ratios:
                values = [statistics.median(pair[i][metric] for pair in pairs) for i in (0, 1)]
                middle = statistics.median(ratios)
                yield (
                    f"  {contender.name}, {metric}: {middle:.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})"
                    f"    {values[0]:,.4g} / {values[1]:,.4g}"
                )


if __name__ == "__main__":
    program(main)
