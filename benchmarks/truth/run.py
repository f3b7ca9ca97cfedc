"""Runs checks of loaders, several histories at a time, and keeps the outcomes."""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.truth.checks import CHECKS
from benchmarks.truth.checks.check import FailedError, Values
from benchmarks.truth.fleet import REPOSITORY, Fleet, HostLostError, LoaderError

LOADERS = Path(__file__).parent / "loaders"


FAULTS = ("repeated", "lost", "batches", "randoms", "batches_workers", "randoms_workers")
"""Values of which an exact history has none."""
ANSWERS = ("which", "when")
"""Values that are 1 in an exact history."""


@dataclass
class Outcome:
    """The outcome of one check of one loader. A summary of values has `least`, `median`, `most`, `mean` and counts."""

    loader: str
    check: str
    claimed: bool
    histories: int = 0
    measured: int = 0  # histories that were played to their end
    exact: int = 0
    failed: int = 0
    failures: list[str] = field(default_factory=list[str])  # the first of the failed ones
    seconds: float = 0.0
    summary: dict[str, dict[str, float]] = field(default_factory=dict[str, dict[str, float]])

    def add(self, values: Sequence[Values]) -> None:
        """Set the summary of the values of all histories."""
        self.measured = len(values)
        self.exact = sum(is_exact(each) for each in values)
        for key in sorted({key for each in values for key in each}):
            numbers = [each[key] for each in values if key in each]
            self.summary[key] = {
                "least": min(numbers),
                "median": statistics.median(numbers),
                "most": max(numbers),
                "mean": statistics.fmean(numbers),
                "count": len(numbers),
                "positive": sum(number > 0 for number in numbers),
            }

    def middle(self, key: str) -> float:
        """Return the median of a value."""
        return self.summary[key]["median"]

    def positive(self, key: str) -> int:
        """Return the histories in which a value is above zero."""
        return int(self.summary.get(key, {}).get("positive", 0))


def is_exact(values: Values) -> bool:
    """Return whether a history has no violation, and only right answers."""
    return not any(values.get(key, 0) for key in FAULTS) and all(values.get(key, 1) == 1 for key in ANSWERS)


def loaders() -> list[str]:
    """Return the names of all adapters."""
    return sorted(file.stem for file in LOADERS.glob("*.py") if file.stem not in ("__init__", "lists"))


def interpreter(loader: str, given: dict[str, str]) -> str:
    """Return the interpreter of a loader; `loaders/README.md` has the order."""
    own = REPOSITORY / f".venv-truth-{loader}" / "bin" / "python"
    return (
        given.get(loader)
        or os.environ.get("TRUTH_PYTHON_" + loader.upper())
        or (str(own) if own.exists() else sys.executable)
    )


def run_check(
    fleet: Fleet,
    name: str,
    histories: int,
    *,
    seed: int = 0,
    jobs: int = 1,
    say: Callable[[str], None] = print,
    watch: Callable[[Values], None] | None = None,
) -> Outcome:
    """Run one check of one loader. Histories have the seeds from `seed` on. `watch` gets the values of each."""
    check, loader = CHECKS[name], str(fleet.about["name"])
    if not check.needs(fleet.claims):
        return Outcome(loader, name, claimed=False)
    count = min(histories, check.most)
    outcome, started, found = Outcome(loader, name, claimed=True, histories=count), time.monotonic(), list[Values]()

    def one(number: int) -> Values | str:
        try:
            return check.measure(fleet, number)
        except (FailedError, LoaderError, HostLostError) as error:
            return f"history {number}: {_brief(str(error.args[0]))}"

    with ThreadPoolExecutor(1 if name == "restart" else jobs) as pool:
        for result in pool.map(one, range(seed, seed + count)):
            if isinstance(result, str):
                outcome.failed += 1
                outcome.failures = [*outcome.failures, result][:3]
                say(f"{loader} {name} {result}")
            else:
                found.append(result)
                if watch:
                    watch(result)
    outcome.add(found)
    outcome.seconds = round(time.monotonic() - started, 1)
    return outcome


def _brief(message: str) -> str:
    """Return the first and the last line of a message: workers raise with their traceback between the two."""
    lines = message.strip().splitlines() or [message]
    return " … ".join(dict.fromkeys([lines[0][:300], lines[-1][:300]]))


def keep(folder: Path, about: dict[str, Any], outcomes: Sequence[Outcome]) -> None:
    """Write the outcomes of a loader into its file, in place of earlier ones of the same checks."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{about['name']}.json"
    document = json.loads(file.read_text()) if file.exists() else {"checks": {}}
    document["about"] = about
    for outcome in outcomes:
        document["checks"][outcome.check] = asdict(outcome)
    file.write_text(json.dumps(document, indent=1, sort_keys=True, default=float) + "\n")


def kept(folder: Path) -> Iterable[tuple[dict[str, Any], dict[str, Outcome]]]:
    """Yield what was kept of each loader: what it says of itself, and its outcomes by check."""
    for file in sorted(folder.glob("*.json")):
        document = json.loads(file.read_text())
        yield document["about"], {name: Outcome(**each) for name, each in document["checks"].items()}
