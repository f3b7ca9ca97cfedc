"""The report: a Markdown page from the outcomes of all loaders, and a short table for the documentation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.truth.checks import CHECKS
from benchmarks.truth.run import Outcome

HEAD = """\
# LoaderTruth: results

Written by `python -m benchmarks.truth --histories 0 --publish`. [LoaderTruth](../../docs/loader-truth.md) explains the
checks. Numbers are medians over histories, with the range in parentheses. *exact* is the number of histories without
any repeat or loss. *failed*: the loader raised or hung where nothing had been killed; such a history is not exact.
*own* are repeats and losses of the same loader without any interruption, which are subtracted.
"""
SHORT_HEAD = """\
| loader | resume | elastic | mixture | packs | change | repeatability | restart | shuffle | audit |
|---|---|---|---|---|---|---|---|---|---|
"""

Results = Iterable[tuple[dict[str, Any], dict[str, Outcome]]]


def page(results: Results) -> str:
    """Return the page of results."""
    found = list(results)
    lines = [HEAD, short_table(found), "## In detail", ""]
    for name in CHECKS:
        outcomes = [(about, each[name]) for about, each in found if name in each]
        lines += [f"### {name}", "", "| loader | result | own | seconds |", "|---|---|---|---|"]
        for about, outcome in outcomes:
            own = _own(outcome)
            lines.append(f"| {about['name']} {about['version']} | {cell(outcome)} | {own} | {outcome.seconds:,.0f} |")
        lines.append("")
    lines += ["## Settings", ""]
    for about, _ in found:
        lines.append(f"* **{about['name']} {about['version']}** ([page]({about['page']})): {about['settings']}")
    failed = [outcome for _, each in found for outcome in each.values() if outcome.failures]
    if failed:
        lines += ["", "## Failures", ""]
    for outcome in failed:
        first = " ".join(outcome.failures[0].split())[:500]
        lines.append(f"* **{outcome.loader}**, {outcome.check}: {outcome.failed:,}, such as `{first}`")
    return "\n".join(lines) + "\n"


def short_table(results: Results) -> str:
    """Return the table for the documentation: the percentage of exact histories, or the number of the check."""
    lines = [SHORT_HEAD.rstrip()]
    for about, outcomes in results:
        cells = [short(outcomes[name]) if name in outcomes else "" for name in CHECKS]
        lines.append(f"| {about['name']} {about['version']} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def cell(outcome: Outcome) -> str:
    """Return the result of a check in words."""
    if not outcome.claimed:
        return "not claimed"
    failed = f"{outcome.failed:,} of {outcome.histories:,} failed" if outcome.failed else ""
    if not outcome.measured:
        return failed
    return "; ".join(filter(None, [_CELLS.get(outcome.check, _counted)(outcome), failed]))


def short(outcome: Outcome) -> str:
    """Return the result of a check in at most ten characters."""
    if not outcome.claimed:
        return "–"
    if outcome.check == "restart":
        return _seconds(outcome.middle("seconds_1000000")) if outcome.measured else "failed"
    if outcome.check == "shuffle":
        return f"χ² {outcome.middle('chi2'):.3g}" if outcome.measured else "failed"
    return f"{percent(outcome)} %"


def _seconds(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.2g} s"


def percent(outcome: Outcome) -> str:
    """Return the percentage of exact histories, which is 100 only if all are."""
    share = outcome.exact / max(1, outcome.histories)
    return f"{min(share * 100, 99 if share < 1 else 100):.0f}"


def spread(outcome: Outcome, key: str, digits: int = 0) -> str:
    """Return median and range of a value: `12 (0–40)`, or one number if all are equal."""
    low, middle, high = (f"{outcome.summary[key][name]:,.{digits}f}" for name in ("least", "median", "most"))
    return middle if low == high else f"{middle} ({low}–{high})"


def _own(outcome: Outcome) -> str:
    if "own_lost" not in outcome.summary:
        return ""
    return f"repeated {spread(outcome, 'own_repeated')}, lost {spread(outcome, 'own_lost')}"


def _counted(outcome: Outcome) -> str:
    text = f"exact {outcome.exact:,} of {outcome.histories:,}"
    if outcome.exact < outcome.measured:
        text += f"; repeated {spread(outcome, 'repeated')}, lost {spread(outcome, 'lost')}"
    differing = outcome.positive("differing_steps")
    if differing:
        text += f"; other batches in {differing:,}"
    if "share_error" in outcome.summary:
        text += f"; share error {spread(outcome, 'share_error', 1)}"
    return text


def _repeatability(outcome: Outcome) -> str:
    parts = list[str]()
    for key, name in (("", "again"), ("_workers", "other workers")):
        for what in ("batches", "randoms"):
            if what + key in outcome.summary:
                count = outcome.summary[what + key]["count"]
                parts.append(f"{name}: {what} equal in {count - outcome.positive(what + key):,.0f} of {count:,.0f}")
    return "; ".join(parts)


def _restart(outcome: Outcome) -> str:
    times = [f"{spread(outcome, f'seconds_{samples}', 3)} s" for samples in (100, 10_000, 1_000_000)]
    return " / ".join(times) + f"; {spread(outcome, 'bytes_1000000')} bytes"


def _shuffle(outcome: Outcome) -> str:
    values = (("χ²", "chi2", 2), ("neighbours", "neighbours", 3), ("moved", "moved", 3))
    return "; ".join(f"{name} {spread(outcome, key, digits)}" for name, key, digits in values)


def _audit(outcome: Outcome) -> str:
    known = [key for key in ("which", "when") if key in outcome.summary]
    return "; ".join(f"{key}: {100 * outcome.summary[key]['mean']:.0f} % right" for key in known)


_CELLS: dict[str, Callable[[Outcome], str]] = {
    "repeatability": _repeatability,
    "restart": _restart,
    "shuffle": _shuffle,
    "audit": _audit,
}
