"""The report: a Markdown page from the outcomes of all loaders."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from benchmarks.truth.checks import CHECKS
from benchmarks.truth.checks.check import Values
from benchmarks.truth.run import Outcome

HEAD = """\
# LoaderTruth: results

Written by `python -m benchmarks.truth --page benchmarks/truth/RESULTS.md`. [LoaderTruth](../../docs/loader-truth.md)
explains the checks. Numbers are medians over histories, with the range in parentheses. *exact* is the number of
histories without any repeat or loss. *failed*: the loader raised or hung where nothing had been killed; such a history
is not exact.
"""


def page(results: Iterable[tuple[dict[str, Any], dict[str, Outcome]]]) -> str:
    """Return the page."""
    found = list(results)
    lines = [HEAD, "| loader | " + " | ".join(CHECKS) + " |", "|---" * (len(CHECKS) + 1) + "|"]
    for about, outcomes in found:
        cells = [cell(outcomes[name]) if name in outcomes else "" for name in CHECKS]
        lines.append(f"| {about['name']} {about['version']} | " + " | ".join(cells) + " |")
    lines += ["", "## Settings", ""]
    lines += [f"* **{about['name']}** ([page]({about['page']})): {about['settings']}" for about, _ in found]
    failures = [(outcome.loader, outcome.check, outcome.failures) for _, each in found for outcome in each.values()]
    failures = [each for each in failures if each[2]]
    if failures:
        lines += ["", "## Failures", ""]
    for loader, check, texts in failures:
        lines.append(f"* **{loader}**, {check}: {len(texts)}, such as `{' '.join(texts[0].split())[:300]}`")
    return "\n".join(lines) + "\n"


def cell(outcome: Outcome) -> str:
    """Return the result of a check in a table."""
    if not outcome.claimed:
        return "not claimed"
    failed = f"{len(outcome.failures)} of {outcome.histories} failed" if outcome.failures else ""
    if not outcome.values:
        return failed
    text = _CELLS.get(outcome.check, _counted)(outcome.values, outcome.histories)
    return "; ".join(filter(None, [text, failed]))


def exact(values: Sequence[Values]) -> int:
    """Return the histories without a repeat, a loss, or a difference in what the loader calls repeatable."""
    return sum(not any(each.get(key, 0) for key in ("repeated", "lost")) for each in values)


def spread(values: Sequence[Values], key: str, digits: int = 0, scale: float = 1.0) -> str:
    """Return median and range of a value: `12 (0–40)`, or one number if all are equal."""
    numbers = [each[key] * scale for each in values if key in each]
    low, middle, high = (f"{each:,.{digits}f}" for each in (min(numbers), statistics.median(numbers), max(numbers)))
    return middle if low == high else f"{middle} ({low}–{high})"


def _counted(values: Sequence[Values], histories: int) -> str:
    text = f"exact {exact(values):,} of {histories:,}"
    if exact(values) < len(values):
        text += f"; repeated {spread(values, 'repeated')}, lost {spread(values, 'lost')}"
    differing = sum(each.get("differing_steps", 0) > 0 for each in values)
    if differing:
        text += f"; other batches in {differing}"
    if any("share_error" in each for each in values):
        text += f"; share error {spread(values, 'share_error', 1)}"
    return text


def _repeatability(values: Sequence[Values], histories: int) -> str:
    parts = list[str]()
    for key, name in (("", "again"), ("_workers", "other workers")):
        for what in ("batches", "randoms"):
            known = [each for each in values if what + key in each]
            if known:
                equal = sum(not each[what + key] for each in known)
                parts.append(f"{name}: {what} equal in {equal:,} of {len(known):,}")
    return "; ".join(parts)


def _restart(values: Sequence[Values], histories: int) -> str:
    times = [f"{spread(values, f'seconds_{samples}', 3)} s" for samples in (100, 10_000, 1_000_000)]
    return " / ".join(times) + f"; {spread(values, 'bytes_1000000')} bytes"


def _shuffle(values: Sequence[Values], histories: int) -> str:
    return (
        f"χ² {spread(values, 'chi2', 2)}; neighbours {spread(values, 'neighbours', 3)}; "
        f"moved {spread(values, 'moved', 3)}"
    )


def _audit(values: Sequence[Values], histories: int) -> str:
    parts = [
        f"{key}: {100 * statistics.fmean(each[key] for each in values):.0f} % right"
        for key in ("which", "when")
        if key in values[0]
    ]
    return "; ".join(parts)


_CELLS: dict[str, Callable[[Sequence[Values], int], str]] = {
    "repeatability": _repeatability,
    "restart": _restart,
    "shuffle": _shuffle,
    "audit": _audit,
}
