"""Runs checks of loaders, several histories at a time, and keeps the outcomes."""

from __future__ import annotations

import json
import os
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


@dataclass
class Outcome:
    """The outcome of one check of one loader."""

    loader: str
    check: str
    claimed: bool
    histories: int = 0
    values: list[Values] = field(default_factory=list[Values])
    failures: list[str] = field(default_factory=list[str])  # of histories in which the loader raised or hung
    seconds: float = 0.0


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
    fleet: Fleet, name: str, histories: int, *, seed: int = 0, jobs: int = 1, say: Callable[[str], None] = print
) -> Outcome:
    """Run one check of one loader. Histories have the seeds from `seed` on."""
    check, loader = CHECKS[name], str(fleet.about["name"])
    if not check.needs(fleet.claims):
        return Outcome(loader, name, claimed=False)
    count = min(histories, check.most)
    outcome, started = Outcome(loader, name, claimed=True, histories=count), time.monotonic()

    def one(number: int) -> Values | str:
        try:
            return check.measure(fleet, number)
        except (FailedError, LoaderError, HostLostError) as error:
            return f"history {number}: {error.args[0]}"

    with ThreadPoolExecutor(1 if name == "restart" else jobs) as pool:
        for result in pool.map(one, range(seed, seed + count)):
            if isinstance(result, str):
                outcome.failures.append(result)
                say(f"{loader} {name} {result}")
            else:
                outcome.values.append(result)
    outcome.seconds = round(time.monotonic() - started, 1)
    return outcome


def keep(folder: Path, about: dict[str, Any], outcomes: Sequence[Outcome]) -> None:
    """Write the outcomes of a loader into its file, in place of earlier ones of the same checks."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{about['name']}.json"
    document = json.loads(file.read_text()) if file.exists() else {"checks": {}}
    document["about"] = about
    for outcome in outcomes:
        document["checks"][outcome.check] = asdict(outcome)
    file.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")


def kept(folder: Path) -> Iterable[tuple[dict[str, Any], dict[str, Outcome]]]:
    """Yield what was kept of each loader: what it says of itself, and its outcomes by check."""
    for file in sorted(folder.glob("*.json")):
        document = json.loads(file.read_text())
        yield document["about"], {name: Outcome(**each) for name, each in document["checks"].items()}
