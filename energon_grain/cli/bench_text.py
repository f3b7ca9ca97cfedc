"""Figures of a measurement in lines of text."""

from __future__ import annotations

from collections.abc import Sequence

from energon_grain.cli.sizes import format_bytes
from energon_grain.measurement.figures import Figures, ReadRate
from energon_grain.measurement.significant import significant

_BAR_WIDTH = 30


def figure_lines(figures: Figures, advice: Sequence[str]) -> list[str]:
    """Lay out figures as tables, and advice as a list."""
    return [
        f"{figures.path}: {figures.dataset_samples:,} samples of {format_bytes(figures.sample_bytes)}, "
        f"batches of {figures.batch_size:,}, {_shuffle(figures)}",
        "",
        *_storage(figures),
        "",
        *_stages(figures),
        "",
        *_pipeline(figures),
        "",
        "What to change",
        *(f"  * {sentence}" for sentence in advice),
        *(f"  note: {note}" for note in figures.notes),
    ]


def _shuffle(figures: Figures) -> str:
    if figures.block is None:
        return "full shuffle" + (", for there are too few samples for blocks" if figures.refused_block else "")
    return "full shuffle (blocks of 1)" if figures.block == 1 else f"blocks of {figures.block:,}"


def _storage(figures: Figures) -> list[str]:
    storage = figures.storage
    rates: list[tuple[str, ReadRate | None]] = [
        ("reading, warm", storage.warm),
        ("pread alone, warm", storage.pread_warm),
        ("reading, cold", storage.cold),
        ("pread alone, cold", storage.pread_cold),
    ]
    of = f", in reads of {format_bytes(storage.request_bytes)}" if storage.request_bytes else ""
    if storage.store is not None:
        rates = [
            ("reading, cache warm", storage.warm),
            ("reading, cache off", storage.cold),
            ("range requests alone", storage.pread_cold),
        ]
        of += (
            f"; a request takes {significant(1e3 * storage.store.latency_s)} ms, and up to "
            f"{storage.store.requests_in_flight} are made at a time"
        )
    rows: list[tuple[str, ...]] = [("", "samples/s", "bytes/s", "requests/s" if storage.store else "reads/s")]
    for name, rate in rates:
        if rate is not None:
            requests = f"{rate.requests_per_s:,.0f}" if rate.requests_per_s else "-"
            rows.append((name, f"{rate.samples_per_s:,.0f}", format_bytes(rate.bytes_per_s), requests))
    rows.append(("copying memory", "", format_bytes(figures.memcpy_bytes_per_s), ""))
    return [f"Storage, one thread{of}", *_table(rows)]


def _stages(figures: Figures) -> list[str]:
    rows: list[tuple[str, ...]] = [("", "µs a sample", "share", "")]
    in_store = figures.storage.store is not None
    for stage in figures.stages:
        bar = "█" * round(stage.share * _BAR_WIDTH)
        if stage is figures.bound:
            bar += "  bounds later epochs" if in_store else "  bounds"
        rows.append((stage.name, significant(stage.microseconds), f"{stage.share:.0%}", bar))
    return [f"Stages, one thread, {'cache warm, as in later epochs' if in_store else 'warm'}", *_table(rows)]


def _pipeline(figures: Figures) -> list[str]:
    kind = {"thread": "threads", "process": "processes"}[figures.worker_type]
    store = figures.storage.store is not None
    rows: list[tuple[str, ...]] = [("workers", "samples/s", "batches/s", "first batch")]
    if store:
        rows[0] += ("fetched/s", "requests/s")
    for run in figures.pipeline:
        batches = run.samples_per_s / figures.batch_size
        row = (
            f"{run.workers}",
            f"{run.samples_per_s:,.0f}",
            significant(batches, 4),
            f"{1e3 * run.first_batch_s:,.0f} ms",
        )
        if store:
            came = run.fetched
            row += ("-", "-") if came is None else (format_bytes(came.bytes_per_s), f"{came.requests_per_s:,.1f}")
        rows.append(row)
    off = ", cache off, as in the first epoch" if store else ""
    return [f"Pipeline, {kind} of {figures.cores} cores{off}", *_table(rows)]


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """The first column to the left, bars too, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines: list[str] = []
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [
            text if text.startswith(("█", " ")) else text.rjust(width)
            for text, width in zip(row[1:], widths[1:], strict=True)
        ]
        lines.append(("  " + "  ".join(cells)).rstrip())
    return lines
