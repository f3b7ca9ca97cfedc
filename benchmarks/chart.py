"""Draw five figures of RESULTS.md as a chart: `python -m benchmarks.chart` rewrites docs/images/benchmark.svg."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

REPO = Path(__file__).resolve().parents[1]
RESULTS = REPO / "benchmarks" / "RESULTS.md"
CHART = REPO / "docs" / "images" / "benchmark.svg"

WIDTH, BAR, GAP, HEAD = 820, 18, 5, 34
LEFT, LONGEST = 125, 500
PROGRAMS = {"energon-grain": ("ours", "#3949ab"), "Grain": ("grain", "#8c9eff"), "Energon": ("energon", "#b0bec5")}


@dataclass(frozen=True)
class Panel:
    """One figure: a column of a row of RESULTS.md, for each program in the row."""

    row: str
    title: str
    column: str
    unit: str
    better: str = "more is better"


PANELS = (
    Panel("text-sample", "Texts of 1 KB, shuffled", "samples/s", "samples/s"),
    Panel("jpeg-rgb8", "Images: JPEGs of 256 × 256, decoded", "samples/s", "samples/s"),
    Panel("packing", "Texts packed into sequences of 4,096 words", "samples/s", "samples/s"),
    Panel("bucket", "Samples of 100 KB from an S3 bucket, first pass", "samples/s", "samples/s"),
    Panel(
        "resume", "Resume: from the saved state to the first batch", "restore to first batch, s", "s", "less is better"
    ),
)


def table(results: str, row: str) -> dict[str, dict[str, str]]:
    """Return the cells of a row's table in RESULTS.md, by program and heading."""
    section = re.search(rf"^### {re.escape(row)}\n(.*?)(?=^### |\Z)", results, re.MULTILINE | re.DOTALL)
    if section is None:
        raise SystemExit(f"RESULTS.md has no row {row!r}")
    head, _, *lines = [line.strip("|").split("|") for line in section[1].splitlines() if line.startswith("|")]
    names = [cell.strip() for cell in head]
    cells = [dict(zip(names, (cell.strip() for cell in line), strict=False)) for line in lines]
    return {line["program"]: line for line in cells}


def figures(panel: Panel, programs: Mapping[str, Mapping[str, str]]) -> Iterator[tuple[str, float, float]]:
    """Yield name, figure and ratio (at least 1 if energon-grain is better) of each program, with Grain's best settings.

    The ratio is that of RESULTS.md, a median over pairs, if it is for this column, which is the first one.
    """
    sign = -1 if panel.better.startswith("less") else 1
    ours = _number(programs["ours"][panel.column])
    for name, (family, _) in PROGRAMS.items():
        variants = [cells for program, cells in programs.items() if program in (family, f"{family} default")]
        variants += [cells for program, cells in programs.items() if program.startswith(f"{family} tuned")]
        if variants:
            best = max(variants, key=lambda cells: sign * _number(cells[panel.column]))
            value = _number(best[panel.column])
            first = list(best)[1] == panel.column and best["ours / it"]
            yield name, value, (_number(best["ours / it"].removesuffix(" x")) if first else ours / value) ** sign


def _number(cell: str) -> float:
    return float(cell.replace(",", ""))


def chart(results: str) -> str:
    """Return the chart of RESULTS.md."""
    lines, top = [], 44
    for panel in PANELS:
        bars = list(figures(panel, table(results, panel.row)))
        longest = max(value for _, value, _ in bars)
        lines.append(f'<text x="20" y="{top + 12}" class="title">{escape(panel.title)}</text>')
        lines.append(f'<text x="{WIDTH - 20}" y="{top + 12}" class="note end">{panel.unit}, {panel.better}</text>')
        top += HEAD - 12
        for name, value, ratio in bars:
            length, middle = max(2.0, LONGEST * value / longest), top + BAR / 2 + 4.5
            lines.append(f'<text x="{LEFT - 8}" y="{middle}" class="end">{name}</text>')
            lines.append(f'<rect x="{LEFT}" y="{top}" width="{length:.1f}" height="{BAR}" fill="{PROGRAMS[name][1]}"/>')
            text = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
            lines.append(f'<text x="{LEFT + length + 8:.1f}" y="{middle}">{text}</text>')
            if name != "energon-grain":
                times = f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.1f}"
                lines.append(f'<text x="{WIDTH - 20}" y="{middle}" class="note end">{times} × slower</text>')
            top += BAR + GAP
        top += 16
    body = "\n".join(lines)
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top + 18}" font-family="system-ui, sans-serif" \
font-size="12.5" fill="#263238">
<!-- Written by `python -m benchmarks.chart` from benchmarks/RESULTS.md. -->
<style>.title {{ font-weight: 600 }} .note {{ fill: #607d8b }} .end {{ text-anchor: end }}</style>
<rect width="{WIDTH}" height="{top + 18}" rx="10" fill="#fff" stroke="#cfd8dc"/>
<text x="20" y="26" class="note">Medians on one machine with two cores. Grain: the best of five settings. \
All rows and caveats: benchmarks/RESULTS.md</text>
{body}
</svg>
"""


def main() -> None:
    """Write the chart."""
    CHART.parent.mkdir(parents=True, exist_ok=True)
    CHART.write_text(chart(RESULTS.read_text()))


if __name__ == "__main__":
    main()
