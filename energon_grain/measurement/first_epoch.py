"""What bounds the first epoch of a dataset in an object store, and what to change.

The pipeline is measured past the cache, the stages out of it. Where the pipeline gives far less than one thread makes
of bytes that are there, the store is what is waited for, whatever takes most among the stages.
"""

from __future__ import annotations

from enum import Enum, auto

from energon_grain.measurement.figures import Figures, ReadRate, StoreFigures
from energon_grain.measurement.significant import significant
from energon_grain.measurement.suggested_block import suggested_block
from energon_grain.sources.remote_runs import REMOTE_RUN_BYTES

OVERHEAD_MICROSECONDS = 10.0
"""Planning, counting and handing over take no more for a sample; they are no stage that is measured."""
STARVED_SHARE = 0.5
"""Of what one thread makes of bytes that are there: a pipeline that gives less waits for them."""
BUSY_SHARE = 0.8
"""Of what all workers could make: a pipeline that gives more waits for nothing."""
SURPLUS = 1.5
"""A store that sends so many times what is used is not waited for, unless hardly anything is used yet."""
BANDWIDTH_SHARE = 0.5
"""Of what range requests alone bring."""
WAITED_REQUESTS = 0.5
"""Requests under way, on average: with fewer it is hardly ever the store that is waited for."""
START_SHARE = 0.25
"""Of the time until all was there, for the first batch: more tells of the beginning, not of the store."""
WASTE_FACTOR = 1.5
"""Fetching so many times the bytes of a sample is worth a word."""


class StoreBound(Enum):
    """Why the store bounds."""

    BANDWIDTH = auto()
    SMALL = auto()
    """The data came all at once: there was nothing to measure."""
    SHORT = auto()
    """Most of the time went by before the first batch."""
    LATENCY = auto()
    UNKNOWN = auto()


def store_bound(figures: Figures) -> StoreBound | None:
    """Why the store bounds the first epoch; None: it does not, or there is none."""
    storage, run = figures.storage, figures.best
    store, ceiling, came = storage.store, storage.pread_cold, run.fetched
    if store is None:
        return None
    making = None if figures.items else making_per_s(figures)
    starved = making is not None and run.samples_per_s < STARVED_SHARE * making
    if came is None or ceiling is None:
        return StoreBound.UNKNOWN if starved else None
    if making is not None:
        if run.samples_per_s >= BUSY_SHARE * making * max(1, run.workers):
            return None
        if not starved and came.samples_per_s >= SURPLUS * run.samples_per_s:
            return None
    if came.bytes_per_s >= BANDWIDTH_SHARE * ceiling.bytes_per_s:
        return StoreBound.BANDWIDTH
    if starved and run.whole_pass and run.first_batch_s >= START_SHARE * came.seconds:
        return StoreBound.SMALL
    if starved and run.first_batch_s >= STARVED_SHARE * came.seconds:
        return StoreBound.SHORT
    under_way = _under_way(came, store)
    if under_way >= (WAITED_REQUESTS if starved or figures.items else WAITED_REQUESTS * store.requests_in_flight):
        return StoreBound.LATENCY
    return StoreBound.UNKNOWN if starved else None


def making_per_s(figures: Figures) -> float:
    """Samples that one thread makes of bytes that are there, in a second."""
    stages = (stage.microseconds for stage in figures.stages if stage.name not in ("storage", "rest"))
    return 1e6 / (OVERHEAD_MICROSECONDS + sum(stages))


def advise_on_store(figures: Figures) -> str | None:
    """What bounds the first epoch, and what to change."""
    bound, store, run = store_bound(figures), figures.storage.store, figures.best
    if bound is None or store is None:
        return None
    came, ceiling = run.fetched, figures.storage.pread_cold
    if came is None or ceiling is None:
        return (
            f"{_head(figures)}. What it does meanwhile is not known of other processes: worker_type='thread' tells."
            f"{_later(figures)}"
        )
    match bound:
        case StoreBound.SMALL:
            return (
                f"The dataset is too small to tell what its store can do: all {figures.dataset_samples:,} samples had "
                f"come after {significant(came.seconds, 2)} s, {significant(run.first_batch_s, 2)} s of it for the "
                f"first batch (opening connections, looking at objects; a request takes {_latency(store)}). Measure a "
                f"larger one to learn more.{_later(figures)}"
            )
        case StoreBound.SHORT:
            return (
                f"{_head(figures)}. Of {significant(came.seconds, 2)} s {significant(run.first_batch_s, 2)} s went by "
                f"before the first batch: measure for longer (--seconds) to learn what bounds after it."
                f"{_later(figures)}"
            )
        case StoreBound.BANDWIDTH:
            return f"{_of_bandwidth(figures, came, ceiling, store)}{_later(figures)}"
        case StoreBound.LATENCY:
            return f"{_of_latency(figures, came, ceiling, store)}{_later(figures)}"
        case StoreBound.UNKNOWN:
            return (
                f"{_head(figures)}. Yet it fetches at {came.bytes_per_s / ceiling.bytes_per_s:.0%} of what range "
                f"requests alone bring, with {significant(_under_way(came, store), 1)} requests under way on average: "
                f"neither bandwidth nor latency is used up. Measure for longer (--seconds), on a machine that does "
                f"nothing else, and with more workers.{_later(figures)}"
            )


def _head(figures: Figures) -> str:
    run = figures.best
    return (
        f"In the first epoch the pipeline waits for the store: it gives {run.samples_per_s:,.0f} samples/s, and one "
        f"thread could make {making_per_s(figures):,.0f} of what is there already"
    )


def _of_bandwidth(figures: Figures, came: ReadRate, ceiling: ReadRate, store: StoreFigures) -> str:
    said = (
        f"In the first epoch bandwidth bounds: the pipeline fetches at {came.bytes_per_s / ceiling.bytes_per_s:.0%} of "
        f"what range requests alone bring ({ceiling.bytes_per_s / 1e6:,.0f} MB/s)."
    )
    block = suggested_block(figures, REMOTE_RUN_BYTES)
    if store.fetched_bytes > WASTE_FACTOR * figures.sample_bytes and _neighbours_help(figures, block):
        return (
            f"{said} Of a sample of {figures.sample_bytes:,.0f} bytes it fetches {store.fetched_bytes:,.0f}, with its "
            f"surroundings: read those too, by max_samples_per_sequence={block}."
        )
    return f"{said} Fewer bytes a sample help, or a store that is nearer."


def _of_latency(figures: Figures, came: ReadRate, ceiling: ReadRate, store: StoreFigures) -> str:
    said = (
        f"In the first epoch latency bounds: a request takes {_latency(store)} and brings "
        f"{came.bytes_per_s / max(1e-12, came.requests_per_s) / 1e3:,.0f} KB, and the pipeline fetches at "
        f"{came.bytes_per_s / ceiling.bytes_per_s:.0%} of what range requests alone bring."
    )
    block = suggested_block(figures, REMOTE_RUN_BYTES)
    if _neighbours_help(figures, block):
        return f"{said} Read runs of neighbours: max_samples_per_sequence={block}, or None."
    return (
        f"{said} Let more be under way at a time: requests_in_flight (now {store.requests_in_flight}) and ahead_bytes "
        f"in the storage settings."
    )


def _neighbours_help(figures: Figures, block: int) -> bool:
    return block > 1 and figures.refused_block is None and (figures.block is None or figures.block < block / 2)


def _later(figures: Figures) -> str:
    """What comes after the first epoch."""
    storage = figures.storage
    if storage.cold is storage.warm:
        return ""
    return (
        f" Later epochs come out of the cache on disk, as far as it holds them: that gives "
        f"{storage.warm.samples_per_s:,.0f} samples/s."
    )


def _under_way(came: ReadRate, store: StoreFigures) -> float:
    """Requests under way at a time, on average, if each takes no longer than the smallest."""
    return came.requests_per_s * store.latency_s


def _latency(store: StoreFigures) -> str:
    return f"{significant(1e3 * store.latency_s)} ms"
