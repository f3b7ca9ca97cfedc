"""Compare this checkout with another revision: the same rows, alternating on one machine, as ratios with their spread.

python -m benchmarks.against REVISION [ROW …] [--rounds 7] [--seconds 2] [--quick] [--cache FOLDER]

Both sides run the `benchmarks` programs of this checkout in its Python environment. The programs use only public
functions, so only the library differs and any two revisions can be compared. A row that needs a function which the
other revision lacks reports that. The other revision gets a git worktree, and its own indexes over hard links to the
same shards, all kept in the cache for the next run. Rounds alternate A B, B A, so a machine that becomes busier slows
both sides down.

A ratio is this checkout / revision, for each pair: above 1, rates are better in this checkout; times and memory are
worse.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
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
from benchmarks.run import chosen

DEFAULT_ROWS = ("text-crude", "text-sample", "blobs", "jpeg-rgb8", "prepare-no-sqlite", "million", "import", "resume")
"""Rows that a change of the package could slow down, in a few minutes."""
_BUILD = """
import sys
from pathlib import Path
from benchmarks.datasets import build
cache = Path(sys.argv[1])
cache.mkdir(parents=True, exist_ok=True)
build(cache, sys.argv[2:])
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """A revision of the library, and its datasets.

    Attributes:
        repo: Its checkout.
        programs: A folder that contains only the `benchmarks` of this checkout, so their imports resolve in `repo`.
    """

    repo: Path
    programs: Path
    cache: Path

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of measuring processes. Both sides start from compiled modules."""
        dropped = ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH")
        kept = {name: value for name, value in os.environ.items() if name not in dropped}
        return {**kept, "PYTHONPATH": os.pathsep.join((str(self.repo), str(self.repo / "adapters")))}

    def compile(self) -> None:
        """Compile its modules, and the programs."""
        folders = [self.repo / "energon_grain", self.repo / "adapters", self.programs]
        subprocess.run([sys.executable, "-m", "compileall", "-q", *map(str, folders)], check=True)

    def build(self, names: Sequence[str]) -> None:
        """Write missing datasets of these names with this side's library."""
        command = [sys.executable, "-c", _BUILD, str(self.cache), *names]
        subprocess.run(command, cwd=self.programs, check=True, env=self.environment, stdout=sys.stderr)

    def measure(self, contender: Contender, home: Side) -> dict[str, Any]:
        """Run a contender of `home`'s table on this side."""
        arguments = json.dumps(dict(contender.arguments)).replace(str(home.cache), str(self.cache))
        contender = replace(contender, arguments=json.loads(arguments))
        return measure(contender, folder=self.programs, environment=self.environment)


def main(
    revision: Annotated[str, typer.Argument(help="A commit, branch or tag.")],
    rows: Annotated[list[str] | None, typer.Argument(metavar="ROW", help=f"Default: {', '.join(DEFAULT_ROWS)}")] = None,
    rounds: Annotated[int, typer.Option(help="Pairs of measurements per program.")] = 7,
    seconds: Annotated[float, typer.Option(help="Duration of a measurement, in seconds.")] = 2.0,
    quick: Annotated[bool, typer.Option("--quick", help="Two pairs of one second.")] = False,
    cache: Annotated[Path, typer.Option(help="Folder for the datasets and the other revision.")] = CACHE,
) -> None:
    cache = cache.resolve()
    rounds, seconds = (2, 1.0) if quick else (rounds, seconds)
    compared = chosen(table(cache, warmup_s=0.5, seconds=seconds), rows or DEFAULT_ROWS)
    with tempfile.TemporaryDirectory(prefix="energon-grain-against-") as folder:
        _copy_programs(Path(folder))
        _compare(revision, compared, Side(repo=REPO, programs=Path(folder), cache=cache), rounds)


def _compare(revision: str, compared: Sequence[Row], home: Side, rounds: int) -> None:
    names = list(dict.fromkeys(name for row in compared for name in row.data_sets))
    home.build(names)
    there = _other(revision, home, names)
    for side in (home, there):
        side.compile()
    print(f"this checkout / {revision}, {rounds} pairs per row: median (smallest to largest)")
    for row in compared:
        for line in _compared(row, home, there, rounds):
            print(line, flush=True)


def _copy_programs(folder: Path) -> None:
    """Copy the `benchmarks` of this checkout to an empty folder."""
    shutil.copytree(REPO / "benchmarks", folder / "benchmarks", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "tests").mkdir()
    for server in (REPO / "tests").glob("object_server*.py"):  # used by the rows about buckets
        shutil.copy(server, folder / "tests")


def _other(revision: str, home: Side, names: Sequence[str]) -> Side:
    """Check out the other revision with its data; existing ones are reused."""
    commit = subprocess.run(
        ["git", "rev-parse", "--verify", f"{revision}^{{commit}}"], cwd=REPO, check=True, capture_output=True, text=True
    ).stdout.strip()
    folder = home.cache / "against" / commit[:12]
    tree = folder / "tree"
    if not tree.exists():
        subprocess.run(["git", "worktree", "prune"], cwd=REPO, check=True)
        subprocess.run(["git", "worktree", "add", "--detach", str(tree), commit], cwd=REPO, check=True)
    side = Side(repo=tree, programs=home.programs, cache=folder / "data")
    for name in names:
        if name in DATA_SETS:  # mixtures and joins are small: each side writes its own
            target = side.cache / name
            once(target, f"{name}: tars", lambda name=name, target=target: link(home.cache / name, target))
    side.build(names)
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
