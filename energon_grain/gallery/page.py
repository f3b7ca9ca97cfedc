# SPDX-License-Identifier: Apache-2.0
"""The page: one file that shows samples in a browser and loads nothing from the network.

All text from data is escaped where it enters the page. In addition, the page's policy runs only its own script and
blocks all requests.
"""

from __future__ import annotations

import base64
import hashlib
import html
import io
import re
from collections.abc import Iterator, Sequence
from importlib import resources
from itertools import accumulate, zip_longest

import numpy as np
import numpy.typing as npt
from PIL import Image
from rich.filesize import decimal

from energon_grain._version import __version__
from energon_grain.gallery.cards import Card, Column, Contents
from energon_grain.gallery.fields import Shown
from energon_grain.gallery.tables import CountTable, tables_of
from energon_grain.words import visible

_PAGE_BYTES = 64_000_000
"""Total size of the files in a page; further files are shown small."""
_COLOURS = 10
_STRIP_HEIGHT, _FRAME_WIDTH = 90, 1000
_FAILED = "does not decode"
_FIRST_KINDS = ["picture", "film", "sound", "failed"]


def page(contents: Contents, beside: Contents | None = None) -> str:
    """The page of some samples, or of the samples of two steps in two columns."""
    both = [contents] if beside is None else [contents, beside]
    names = sorted({_part(field) for each in both for card in each.cards for field in card.fields})
    return _filled(both, {name: number for number, name in enumerate(names)})


def _filled(both: Sequence[Contents], parts: dict[str, int]) -> str:
    contents, title = both[0], both[0].title
    if len(both) > 1:
        title = f"{title}, beside {both[1].heading.lower() or f'step {both[1].step:,}'}"
    template = resources.files("energon_grain.gallery").joinpath("page.html").read_text(encoding="utf-8")
    [script] = re.findall(r"<script>(.*?)</script>", template, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    several = len(contents.datasets) > 1
    files = _Files()
    filled = {
        "script_hash": f"sha256-{digest}",
        "title": _text(title),
        "subtitle": _text("; ".join(each.subtitle for each in both)),
        "version": _text(__version__),
        "mixture": "".join(_mixture(contents)) if several else "",
        "parts": "".join(_chip(name, number, "part", "") for name, number in parts.items()) if len(parts) > 1 else "",
        "counts": "".join(map(_table, tables_of(both))),
        "columns_of_cards": " beside" if len(both) > 1 else "",
        "cards": "\n".join(_cards(both, parts, files)),
        "columns": "".join(_columns(contents.columns)),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: filled[match[1]], template)


def framed(written: str, title: str, height: int) -> str:
    """A page in a sandboxed frame of another page, such as a notebook."""
    return (
        f'<iframe sandbox="allow-scripts" title="{_text(title)}" srcdoc="{html.escape(written)}" '
        f'style="width: 100%; height: {height}px; border: 1px solid #8884; border-radius: 8px"></iframe>'
    )


def _text(text: str, *, lines: bool = False) -> str:
    return html.escape(visible(text, lines=lines))


def _part(field: Shown) -> str:
    return _FAILED if field.kind == "failed" else field.name


def _chip(label: str, number: int, kind: str, more: str) -> str:
    return (
        f'<button type="button" class="chip {_colour(number)}" data-{kind}="{number}" aria-pressed="false">'
        f"{'<i></i>' if kind == 'dataset' else ''}<bdi>{_text(label)}</bdi>{more}</button>"
    )


def _colour(number: int) -> str:
    return f"c{number}" if number < _COLOURS else "cx"


def _mixture(contents: Contents) -> Iterator[str]:
    """The shares as a bar, and the datasets as filters."""
    shares = _text(", ".join(f"{dataset.label} {dataset.share:.1%}" for dataset in contents.datasets))
    yield f'<svg class="bar" viewBox="0 0 1000 10" preserveAspectRatio="none" role="img" aria-label="Shares: {shares}">'
    ends = list(accumulate(dataset.share for dataset in contents.datasets))
    for number, (dataset, end) in enumerate(zip(contents.datasets, ends, strict=True)):
        begin = 1000 * (end - dataset.share)
        yield (
            f'<rect class="{_colour(number)}" data-of="{number}" x="{begin:.2f}" width="{1000 * dataset.share:.2f}" '
            f'height="10"><title>{_text(dataset.label)} {dataset.share:.2%}</title></rect>'
        )
    yield '</svg><ul class="chips" aria-label="Datasets">'
    for number, dataset in enumerate(contents.datasets):
        more = f" <b>{dataset.share:.1%}</b> <span>{_counted(dataset.samples)}</span>"
        chip = _chip(dataset.label, number, "dataset", more)
        yield f'<li title="{_text(dataset.path)}">{chip}</li>'
    yield "</ul>"


def _table(counts: CountTable) -> str:
    """A table of counts, each with a bar."""
    title = counts.title + (f", without {counts.left_out:,} more" if counts.left_out else "")
    head = "".join(f"<th scope=col>{_text(column)}</th>" for column in counts.columns)
    body = "".join(
        f"<tr><th scope=row><bdi>{_text(name)}</bdi></th>"
        + "".join(
            f'<td>{number:,}<meter min="0" max="{counts.most}" value="{number}" aria-hidden="true"></meter></td>'
            for number in numbers
        )
        + "</tr>"
        for name, numbers in counts.rows
    )
    return f'<table class="counts"><thead><tr><th scope=col>{_text(title)}</th>{head}</tr></thead>{body}</table>'


def _cards(both: Sequence[Contents], parts: dict[str, int], files: _Files) -> Iterator[str]:
    """The cards in reading order; with two previews, in two columns below their titles."""
    if len(both) == 1:
        yield from ("".join(_card(both[0], card, parts, files, "")) for card in both[0].cards)
        return
    sides = [" left", " right"]
    for side, contents in zip(sides, both, strict=True):
        yield f'<h2 class="step{side}">{_text(contents.heading or f"Step {contents.step:,}")}</h2>'
    for row in zip_longest(*(contents.cards for contents in both)):
        for side, contents, card in zip(sides, both, row, strict=True):
            if card is not None:
                yield "".join(_card(contents, card, parts, files, side))


def _card(contents: Contents, card: Card, parts: dict[str, int], files: _Files, side: str) -> Iterator[str]:
    own = " ".join(str(number) for number in sorted({parts[_part(field)] for field in card.fields}))
    yield f'<article class="card {_colour(card.dataset)}{side}" data-of="{card.dataset}" data-parts="{own}">'
    fields = sorted(card.fields, key=lambda field: [*_FIRST_KINDS, field.kind].index(field.kind))
    below: list[str] = []  # headings of pictures are below the key
    for field in fields:
        if field.kind in ("picture", "film"):
            shot, why = _shot(card, field, files)
            yield shot
            below.append(f'<section class="field said">{_heading(field)}{why}{_decoded(field)}</section>')
        else:
            below.append("".join(_field(field, files)))
    yield f'<h3><button type="button" class="open"><bdi>{_text(card.key)}</bdi></button></h3><p class="place">'
    if len(contents.datasets) > 1:
        yield f"<i></i><bdi>{_text(contents.datasets[card.dataset].label)}</bdi> · "
    yield f"<bdi>{_text(card.shard)}</bdi> · <span>{_text(card.place)}</span></p>"
    yield from below
    yield "</article>"


def _heading(field: Shown) -> str:
    return f"<h4><bdi>{_text(field.heading)}</bdi> <small>{_text(field.note)}</small></h4>"


def _shot(card: Card, field: Shown, files: _Files) -> tuple[str, str]:
    """The picture or video, and the reason if it is reduced."""
    called = f"{_text(field.name)} of {_text(card.key)}"
    kept = files.take(field.data, field.mime)
    why = "" if kept else _why(field, files)
    if field.kind == "picture":
        width, height = field.images[0].size
        tiny = ' class="tiny"' if max(width, height) <= 64 else ""
        source = kept or _image(field.images[0])
        shown = f'<img{tiny} src="{source}" alt="{called}" width="{width}" height="{height}" loading="lazy">'
        return f'<div class="shot">{shown}</div>', why
    shown = ""
    if kept:
        poster = f' poster="{_image(field.images[0])}"' if field.images else ""
        shown = f'<video controls playsinline preload="none" src="{kept}"{poster} aria-label="{called}"></video>'
    if field.images:
        strip = _image(_strip(field.images))
        shown += f'<img class="strip" src="{strip}" alt="Frames of {called}" loading="lazy">'
    return f'<div class="shot">{shown}</div>', why


def _why(field: Shown, files: _Files) -> str:
    why = field.left_out or ("" if field.data is None else files.full)
    return f'<p class="why">{_text(why)}</p>' if why else ""


def _field(field: Shown, files: _Files) -> Iterator[str]:
    match field.kind:
        case "sound":
            yield f'<section class="field sound">{_heading(field)}'
            if len(field.peaks):
                yield _wave(field.peaks)
            if kept := files.take(field.data, field.mime):
                yield f'<audio controls preload="none" src="{kept}" aria-label="{_text(field.name)}"></audio>'
            else:
                yield _why(field, files)
        case "failed":
            yield f'<section class="field bad">{_failed(field)}'
        case _:
            pair = " pair" if field.decoded else ""
            yield f'<section class="field{pair}"><div>{_heading(field)}{_written(field)}</div>'
            yield _decoded(field)
    yield "</section>"


def _failed(field: Shown) -> str:
    name = f"{field.heading}: {_FAILED}" if field.name else "not read"
    heading = f"<h4><bdi>{_text(name)}</bdi> <small>{_text(field.note)}</small></h4>"
    return f"{heading}<pre>{_text(field.text, lines=True)}</pre>"


def _written(field: Shown) -> str:
    tag = "p" if field.kind == "text" else "pre"
    return f'<{tag} dir="auto">{_text(field.text, lines=True)}</{tag}>' if field.text else ""


def _decoded(field: Shown) -> str:
    """The fields that are decoded from a part, to show beside it."""
    if not field.decoded:
        return ""
    shown = "".join(
        f'<div class="bad">{_failed(each)}</div>'
        if each.kind == "failed"
        else f"<h4><bdi>{_text(each.name)}</bdi> <small>{_text(each.note)}</small></h4>{_written(each)}"
        for each in field.decoded
    )
    return f'<div class="decoded">{shown}</div>'


class _Files:
    """The files that a page holds, up to `_PAGE_BYTES`."""

    full = f"shown small: the files of this page have {decimal(_PAGE_BYTES)} already"

    def __init__(self) -> None:
        self._left = _PAGE_BYTES

    def take(self, data: bytes | None, mime: str) -> str:
        """A file as a data URL; "" if the page is full."""
        if data is None or len(data) > self._left:
            return ""
        self._left -= len(data)
        return _link(data, mime)


def _link(data: bytes, mime: str) -> str:
    return f"data:{mime};base64,{base64.b64encode(data).decode()}"


def _image(image: Image.Image) -> str:
    written = io.BytesIO()
    if image.mode == "RGBA" or max(image.size) <= 128:
        image.save(written, "PNG")
        return _link(written.getvalue(), "image/png")
    image.convert("RGB").save(written, "JPEG", quality=85)
    return _link(written.getvalue(), "image/jpeg")


def _strip(frames: Sequence[Image.Image]) -> Image.Image:
    """Frames side by side, within the largest width of JPEG."""
    small = [
        frame.convert("RGB").resize(
            (min(max(1, round(frame.width * _STRIP_HEIGHT / frame.height)), _FRAME_WIDTH), _STRIP_HEIGHT)
        )
        for frame in frames
    ]
    ends = list(accumulate(frame.width + 2 for frame in small))
    strip = Image.new("RGB", (ends[-1] - 2, _STRIP_HEIGHT))
    for frame, end in zip(small, ends, strict=True):
        strip.paste(frame, (end - 2 - frame.width, 0))
    return strip


def _wave(peaks: npt.NDArray[np.float32]) -> str:
    """The outline of a sound, as bars around its middle."""
    loud = np.maximum.reduceat(peaks, np.linspace(0, len(peaks), min(120, len(peaks)) + 1).astype(np.int64)[:-1])
    scaled = loud / max(float(loud.max()), 1e-6)
    bars = "".join(
        f"M{4 * number},{23 - height:.1f}h2.6v{2 * height:.1f}h-2.6z"
        for number, height in enumerate((0.6 + 21 * scaled).tolist())
    )
    return (
        f'<svg class="wave" viewBox="0 0 {4 * len(loud)} 46" preserveAspectRatio="none" aria-hidden="true">'
        f'<path d="{bars}"/></svg>'
    )


def _columns(columns: Sequence[Column]) -> Iterator[str]:
    if columns:
        yield '<h2>Columns</h2><div class="charts">'
        yield from map(_chart, columns)
        yield "</div>"


def _chart(column: Column) -> str:
    """A histogram with stacked datasets."""
    totals = column.counts.sum(axis=0)
    most, bins = max(int(totals.max()), 1), len(totals)
    say = (lambda value: decimal(round(value))) if column.name.startswith("bytes") else _number
    rects: list[str] = []
    gap, one = (0.06, "") if bins > 1 else (0.45, " one")  # all samples have one value
    for place in range(bins):
        top = 100.0
        extent = f"{say(column.edges[place])} to {say(column.edges[place + 1])}"
        for number, count in enumerate(column.counts[:, place].tolist()):
            if count:
                height = max(100 * count / most, 0.7)
                top -= height
                rects.append(
                    f'<rect class="{_colour(number)}" data-of="{number}" x="{place + gap:.2f}" y="{top:.2f}" '
                    f'width="{1 - 2 * gap:.2f}" height="{height:.2f}"><title>{_text(extent)}: {count:,}</title></rect>'
                )
    mean = (column.edges[0], column.edges[bins // 2], column.edges[-1]) if bins > 1 else (column.edges.mean(),)
    count = _counted(int(totals.sum())) + (" counted" if column.of is not None else "")
    axis = "".join(f"<span>{_text(say(value))}</span>" for value in mean)
    return (
        f'<figure class="chart"><figcaption><bdi>{_text(column.name)}</bdi><span>{count}, up to {most:,} per bar</span>'
        f'</figcaption><svg viewBox="0 0 {bins} 100" preserveAspectRatio="none" role="img" '
        f'aria-label="Histogram of {_text(column.name)}">{"".join(rects)}</svg>'
        f'<div class="axis{one}">{axis}</div></figure>'
    )


def _counted(samples: int) -> str:
    return f"{samples:,} sample{'' if samples == 1 else 's'}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 or value == round(value) else f"{value:.3g}"
