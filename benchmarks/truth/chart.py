"""The picture of the results: how many histories of each check were exact, by loader."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from xml.sax.saxutils import escape

from benchmarks.truth.fleet import REPOSITORY
from benchmarks.truth.report import percent
from benchmarks.truth.run import Outcome

PICTURE = REPOSITORY / "docs" / "images" / "truth.svg"
COLUMNS = ("resume", "elastic", "mixture", "packs", "change", "repeatability", "audit", "restart")
TITLES = {"repeatability": "repeat"}
WIDTH, LEFT, TOP, ROW, CELL, HIGH = 820, 288, 64, 27, 65, 22
GOOD, PARTLY, NOT = "#3949ab", "#c5cae9", "#eceff1"


def picture(results: Iterable[tuple[dict[str, Any], dict[str, Outcome]]]) -> str:
    """Return the picture as SVG. A cell without a claim is grey."""
    rows = sorted(results, key=lambda each: (not each[0]["name"].startswith("energon-grain"), each[0]["name"]))
    lines = [
        f'<text x="{LEFT + CELL * number + CELL / 2 - 3:.0f}" y="{TOP - 10}" class="middle note">{title}</text>'
        for number, title in enumerate(TITLES.get(check, check) for check in COLUMNS)
    ]
    for place, (about, outcomes) in enumerate(rows):
        top = TOP + ROW * place
        lines.append(f'<text x="{LEFT - 10}" y="{top + 15}" class="end">{escape(about["name"])}</text>')
        for number, check in enumerate(COLUMNS):
            if check in outcomes:
                lines += _cell(outcomes[check], LEFT + CELL * number, top)
    height = TOP + ROW * len(rows) + 12
    body = "\n".join(lines)
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="system-ui, sans-serif" \
font-size="12.5" fill="#263238">
<!-- Written by `benchmarks.truth` from the results of LoaderTruth. -->
<style>.note {{ fill: #607d8b }} .end {{ text-anchor: end }} .middle {{ text-anchor: middle }}</style>
<rect width="{WIDTH}" height="{height}" rx="10" fill="#fff" stroke="#cfd8dc"/>
<text x="20" y="26" class="note">Random runs, killed and resumed without a repeated or lost sample, in %. \
A dash: not claimed. Restart: after 10⁶ samples</text>
{body}
</svg>
"""


def _cell(outcome: Outcome, left: int, top: int) -> list[str]:
    """Return the box of one check of one loader, with its number."""
    if not outcome.claimed:
        colour, ink, text = NOT, "#90a4ae", "–"
    elif outcome.check == "restart":
        colour, ink, text = "none", "#263238", _seconds(outcome)
    else:
        whole = outcome.exact == outcome.histories
        colour, ink, text = (GOOD, "#fff", "100") if whole else (PARTLY, "#263238", percent(outcome))
    return [
        f'<rect x="{left}" y="{top}" width="{CELL - 6}" height="{HIGH}" rx="3" fill="{colour}"/>',
        f'<text x="{left + CELL / 2 - 3:.0f}" y="{top + 15}" class="middle" style="fill:{ink}">{text}</text>',
    ]


def _seconds(outcome: Outcome) -> str:
    if not outcome.measured:
        return "failed"
    seconds = outcome.middle("seconds_1000000")
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.{1 if seconds < 10 else 0}f} s"
