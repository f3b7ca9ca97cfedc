"""Draw the pictures that benchmarks add to the docs (groups of bars), and write the datasets that are packed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from xml.sax.saxutils import escape

import numpy as np
import numpy.typing as npt

from energon_grain.prepare import prepare_dataset
from energon_grain.testing import write_tars

COLOURS = ("#90a4ae", "#8c9eff", "#3949ab")
WIDTH, LEFT, LONGEST, BAR, STEP = 800, 250, 440, 18, 22


def bars(file: str, title: str, groups: Mapping[str, Mapping[str, float]], *, least: float, digits: int) -> None:
    """Write an SVG file: for each group a heading, and for each of its numbers a bar that begins at `least`."""
    most = max(max(group.values()) for group in groups.values())
    drawn, top = list[str](), 56
    for heading, group in groups.items():
        drawn.append(f'<text x="20" y="{top + 13}" font-weight="600">{escape(heading)}</text>')
        for colour, (name, value) in zip(COLOURS[-len(group) :], group.items(), strict=True):
            length = max(1.0, LONGEST * (value - least) / (most - least))
            drawn += [
                f'<text x="{LEFT - 8}" y="{top + 13}" text-anchor="end">{escape(name)}</text>',
                f'<rect x="{LEFT}" y="{top}" width="{length:.1f}" height="{BAR}" fill="{colour}" rx="2"/>',
                f'<text x="{LEFT + length + 8:.1f}" y="{top + 13}" fill="#607d8b">{value:.{digits}f}</text>',
            ]
            top += STEP
        top += 12
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top + 4}" font-family="system-ui, sans-serif" '
        f'font-size="13" fill="#263238" role="img">\n<title>{escape(title)}</title>\n'
        f'<rect width="{WIDTH}" height="{top + 4}" rx="10" fill="#fff" stroke="#cfd8dc"/>\n'
        f'<text x="20" y="30">{escape(title)}; bars begin at {least:g}</text>\n'
    )
    Path(file).write_text(head + "\n".join([*drawn, "</svg>", ""]), encoding="utf-8")


def texts(folder: Path, lengths: npt.NDArray[np.int64]) -> Path:
    """Write a prepared dataset with one text of each length, and return its folder."""
    samples = [{"__key__": f"{i:06d}", "txt": b"a" * length} for i, length in enumerate(lengths.tolist())]
    write_tars(folder, samples, shards=4)
    prepare_dataset(
        folder, split_ratio={"train": 1}, num_workers=0, sample_type="TextSample", field_map={"text": "txt"}
    )
    return folder
