"""What to change, by rules on figures.

Each rule is a function of the figures that says one thing or nothing; they are asked in the order of `_RULES`. Their
thresholds are constants here, so that what is said can be argued with.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto

from energon_grain.measurement.figures import Figures, ReadRate, StageTime, StoreFigures
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


COLD_FACTOR = 3.0
"""Cold reading that is so much slower than warm is worth a word."""
LARGE_REQUEST_BYTES = 512 << 10
"""Larger reads gain little from being larger still."""
SERIAL_SHARE = 0.3
DECODE_SHARE = 0.4
BATCH_SHARE = 0.3
STORAGE_SHARE = 0.5
REST_SHARE = 0.4
ENOUGH = 0.95
"""A number of workers is enough where more of them bring less than this part's complement."""
FEW_IN_BATCH = 16
SMALL_SAMPLE_BYTES = 4096
FLOAT_IMAGES = frozenset({"l", "rgb", "rgba", "torch", "torchl", "torchrgb", "torchrgba"})
"""Modes of images that are converted to float32."""
_OUR_STAGES = frozenset({"storage", "decode", "batch", "rest"})


def advise(figures: Figures) -> tuple[str, ...]:
    """Sentences on what bounds and what to change, the most general one last; of a store, the store first."""
    return tuple(sentence for rule in _RULES if (sentence := rule(figures)) is not None)


def _cold_storage(figures: Figures) -> str | None:
    storage = figures.storage
    cold, warm = storage.cold, storage.warm
    if storage.store is not None or cold is None or cold.samples_per_s >= figures.best.samples_per_s:
        return None
    slower = warm.samples_per_s / max(1e-12, cold.samples_per_s)
    if slower < COLD_FACTOR:
        return None
    said = (
        f"While the files are not in memory, storage bounds: it gives {cold.samples_per_s:,.0f} samples/s, "
        f"{slower:.0f} × fewer than out of memory, and the pipeline could take {figures.best.samples_per_s:,.0f}"
    )
    if storage.request_bytes >= LARGE_REQUEST_BYTES:
        return f"{said}. Its reads are large already: only faster storage, or more memory, helps."
    block = suggested_block(figures)
    if figures.block is None and block > 1:
        return f"{said}. Read blocks of neighbours instead of samples: max_samples_per_sequence={block} or more."
    if figures.block is not None and block > figures.block:
        return f"{said}. Read larger blocks: max_samples_per_sequence={block} in place of {figures.block}."
    return f"{said}. More workers ask for more at once; a faster disk, or more memory, helps too."


def _serial_hook(figures: Figures) -> str | None:
    hooks = [stage for stage in figures.stages if stage.name not in _OUR_STAGES]
    hook = max(hooks, key=lambda stage: stage.share, default=None)
    if hook is None or hook.share < SERIAL_SHARE:
        return None
    said = _takes(figures, f"your {hook.name}", hook)
    if not hook.serial:
        return f"{said}: only doing less in it, or more workers, helps."
    if figures.worker_type == "process":
        return f"{said}: doing less in it helps, and so do more workers."
    return (
        f"{said}, and runs in one thread at a time, however many there are. If it may run in several threads and "
        f"leaves Python's lock alone (numpy, tokenizers), set thread_safe = True on the task encoder; else try "
        f"worker_type='process'."
    )


def _decoding(figures: Figures) -> str | None:
    stage = next((stage for stage in figures.stages if stage.name == "decode"), None)
    if stage is None or stage.share < DECODE_SHARE:
        return None
    said = _takes(figures, "decoding", stage)
    if figures.image_decode in FLOAT_IMAGES:
        return (
            f"{said}, with images as float32 ({figures.image_decode!r}): take uint8 (image_decode='rgb8', or 'l8' for "
            f"grey ones), a quarter of the memory, and convert on the device."
        )
    if figures.image_decode is not None:
        return f"{said}: store images no larger than the model sees them, and give more workers."
    return f"{said}: name in the field map, or in part_filter, only parts that you use, and give more workers."


def _batching(figures: Figures) -> str | None:
    stage = next((stage for stage in figures.stages if stage.name == "batch"), None)
    if stage is None or stage.share < BATCH_SHARE:
        return None
    return (
        f"{_takes(figures, 'batching', stage)}: it copies what it stacks, and pads what differs in shape. Smaller "
        f"arrays (uint8, cropped in encode_sample) cost less."
    )


def _storage_ceiling(figures: Figures) -> str | None:
    stage = next((stage for stage in figures.stages if stage.name == "storage"), None)
    pread = figures.storage.pread_warm
    if stage is None or stage.share < STORAGE_SHARE or pread is None:
        return None
    reached = figures.storage.warm.bytes_per_s / max(1e-12, pread.bytes_per_s)
    if reached >= STORAGE_SHARE:
        return (
            f"Reading takes {stage.share:.0%} of the time and is at {reached:.0%} of what `pread` alone gives on this "
            f"machine: more workers, or fewer bytes a sample, help."
        )
    if figures.sample_bytes < SMALL_SAMPLE_BYTES:
        return (
            f"Reading takes {stage.share:.0%} of the time, and samples are small ({figures.sample_bytes:,.0f} bytes): "
            f"the price is paid by the sample, not by the byte. Fewer parts a sample help."
        )
    return None


def _rest(figures: Figures) -> str | None:
    stage = next((stage for stage in figures.stages if stage.name == "rest"), None)
    if stage is None or stage.share < REST_SHARE:
        return None
    said = _takes(figures, "planning and handing over", stage, "take")
    if figures.batch_size < FEW_IN_BATCH:
        return f"{said} with batches of {figures.batch_size}: larger batches cost less a sample."
    return f"{said}: the samples themselves cost little, so there is little to change, unless the machine was busy."


def _workers(figures: Figures) -> str | None:
    if len(figures.pipeline) < 2 or store_bound(figures) is not None:
        return None  # workers do not make a store faster
    best = figures.best
    enough = next(run for run in figures.pipeline if run.samples_per_s >= ENOUGH * best.samples_per_s)
    most = figures.pipeline[-1]
    if enough is most:
        more = f"; try more, there are {figures.cores} cores" if most.workers < figures.cores else ""
        return _first_epoch(
            figures,
            f"num_workers={most.workers} is the fastest of those tried ({most.samples_per_s:,.0f} samples/s){more}.",
        )
    if enough.workers == 0:
        return _first_epoch(
            figures,
            f"workers bring nothing here by themselves: num_workers=0 gives {enough.samples_per_s:,.0f} samples/s, "
            f"{most.workers} give {most.samples_per_s:,.0f}. One still lets loading go on while the step computes.",
        )
    return _first_epoch(
        figures,
        f"num_workers={enough.workers} is enough: it gives {enough.samples_per_s:,.0f} samples/s, "
        f"{most.workers} give {most.samples_per_s:,.0f}.",
    )


def _drops(figures: Figures) -> str | None:
    if not figures.dropped:
        return None
    reasons = ", ".join(f"{reason} ({count:,} ×)" for reason, count in sorted(figures.dropped.items()))
    return f"Of {figures.measured:,} samples some were dropped: {reasons}. `energon-grain lint` lists what is broken."


def _need(figures: Figures) -> str | None:
    if store_bound(figures) is StoreBound.SMALL:
        return None  # there is no going on in which batches would come at a rate
    best = figures.best
    step_ms = 1e3 * figures.batch_size / max(1e-12, best.samples_per_s)
    return _first_epoch(
        figures,
        f"with num_workers={best.workers} a batch of {figures.batch_size} comes every {significant(step_ms, 2)} ms: "
        f"loading bounds a training whose step is faster than that, and no other.",
    )


def _takes(figures: Figures, what: str, stage: StageTime, verb: str = "takes") -> str:
    """How much of the time a stage takes; of a store, of epochs after the first."""
    said = f"{what} {verb} {stage.share:.0%} of the time ({stage.microseconds:,.0f} µs a sample)"
    return _sentence(said if figures.storage.store is None else f"once the cache is warm, {said}")


def _first_epoch(figures: Figures, said: str) -> str:
    """What the pipeline showed: of a store, in the first epoch."""
    if figures.storage.store is None:
        return said if said.startswith("num_workers") else _sentence(said)
    return f"In the first epoch, {said}"


def _sentence(said: str) -> str:
    return said[0].upper() + said[1:]


_RULES: tuple[Callable[[Figures], str | None], ...] = (
    _drops,
    _cold_storage,
    advise_on_store,
    _serial_hook,
    _decoding,
    _batching,
    _storage_ceiling,
    _rest,
    _workers,
    _need,
)
