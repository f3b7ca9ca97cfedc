"""What to change, by rules on figures.

Each rule is a function of the figures that says one thing or nothing; they are asked in the order of `_RULES`. Their
thresholds are constants here, so that what is said can be argued with.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from energon_grain.measurement.figures import Figures
from energon_grain.sources.remote_runs import REMOTE_RUN_BYTES

COLD_FACTOR = 3.0
"""Cold reading that is so much slower than warm is worth a word."""
LARGE_REQUEST_BYTES = 512 << 10
"""Larger reads gain little from being larger still."""
BLOCK_BYTES = 1 << 20
"""What a block should hold at least."""
MAX_BLOCK = 1000
WASTE_FACTOR = 1.5
"""Fetching so many times the bytes of a sample is worth a word."""
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
    """Sentences on what bounds and what to change, the most general one last."""
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
    block = suggested_block(figures.sample_bytes)
    if figures.block is None and block > 1:
        return f"{said}. Read blocks of neighbours instead of samples: max_samples_per_sequence={block} or more."
    if figures.block is not None and block > figures.block:
        return f"{said}. Read larger blocks: max_samples_per_sequence={block} in place of {figures.block}."
    return f"{said}. More workers ask for more at once; a faster disk, or more memory, helps too."


def _object_store(figures: Figures) -> str | None:
    storage, came = figures.storage, figures.best.fetched
    store, ceiling = storage.store, storage.pread_cold
    if store is None or ceiling is None or came is None:
        return None
    later = (
        f" Later epochs come out of the cache on disk, as far as it holds them: that gives "
        f"{storage.warm.samples_per_s:,.0f} samples/s."
    )
    reached = came.bytes_per_s / max(1e-12, ceiling.bytes_per_s)
    block = suggested_block(figures.sample_bytes, REMOTE_RUN_BYTES)
    neighbours = block > 1 and (figures.block is None or figures.block < block / 2)
    if reached >= STORAGE_SHARE:
        fetched = store.fetched_bytes
        said = (
            f"In the first epoch bandwidth bounds: the pipeline fetches at {reached:.0%} of what range requests alone "
            f"bring ({ceiling.bytes_per_s / 1e6:,.0f} MB/s)."
        )
        if fetched > WASTE_FACTOR * figures.sample_bytes and neighbours:
            return (
                f"{said} Of a sample of {figures.sample_bytes:,.0f} bytes it fetches {fetched:,.0f}, with its "
                f"surroundings: read those too, by max_samples_per_sequence={block}.{later}"
            )
        return f"{said} Fewer bytes a sample help, or a store that is nearer.{later}"
    waited = came.requests_per_s * store.latency_s
    if waited < STORAGE_SHARE:
        return None  # there is hardly ever a request under way: the store is not what is waited for
    said = (
        f"In the first epoch latency bounds: a request takes {1e3 * store.latency_s:,.3g} ms and brings "
        f"{came.bytes_per_s / max(1e-12, came.requests_per_s) / 1e3:,.0f} KB, and the pipeline fetches at "
        f"{reached:.0%} of what range requests alone bring."
    )
    if neighbours:
        return f"{said} Read runs of neighbours: max_samples_per_sequence={block}, or None.{later}"
    return (
        f"{said} Let more be under way at a time: requests_in_flight (now {store.requests_in_flight}) and ahead_bytes "
        f"in the storage settings.{later}"
    )


def suggested_block(sample_bytes: float, block_bytes: int = BLOCK_BYTES) -> int:
    """Samples that hold a MiB, up to a round number; 1000 at most: the larger a block, the less samples mix."""
    block = max(1, math.ceil(block_bytes / max(1.0, sample_bytes)))
    if block > 10:
        step = 10 ** (len(str(block)) - 1)
        block = math.ceil(block / step) * step
    return min(block, MAX_BLOCK)


def _serial_hook(figures: Figures) -> str | None:
    hooks = [stage for stage in figures.stages if stage.name not in _OUR_STAGES]
    hook = max(hooks, key=lambda stage: stage.share, default=None)
    if hook is None or hook.share < SERIAL_SHARE:
        return None
    said = f"Your {hook.name} takes {hook.share:.0%} of the time ({hook.microseconds:,.0f} µs a sample)"
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
    said = f"Decoding takes {stage.share:.0%} of the time ({stage.microseconds:,.0f} µs a sample)"
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
        f"Batching takes {stage.share:.0%} of the time ({stage.microseconds:,.0f} µs a sample): it copies what it "
        f"stacks, and pads what differs in shape. Smaller arrays (uint8, cropped in encode_sample) cost less."
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
    said = f"Planning and handing over take {stage.share:.0%} of the time ({stage.microseconds:,.0f} µs a sample)"
    if figures.batch_size < FEW_IN_BATCH:
        return f"{said} with batches of {figures.batch_size}: larger batches cost less a sample."
    return f"{said}: the samples themselves cost little, so there is little to change, unless the machine was busy."


def _workers(figures: Figures) -> str | None:
    if len(figures.pipeline) < 2:
        return None
    best = figures.best
    enough = next(run for run in figures.pipeline if run.samples_per_s >= ENOUGH * best.samples_per_s)
    most = figures.pipeline[-1]
    if enough is most:
        more = f"; try more, there are {figures.cores} cores" if most.workers < figures.cores else ""
        return f"num_workers={most.workers} is the fastest of those tried ({most.samples_per_s:,.0f} samples/s){more}."
    if enough.workers == 0:
        return (
            f"Workers bring nothing here by themselves: num_workers=0 gives {enough.samples_per_s:,.0f} samples/s, "
            f"{most.workers} give {most.samples_per_s:,.0f}. One still lets loading go on while the step computes."
        )
    return (
        f"num_workers={enough.workers} is enough: it gives {enough.samples_per_s:,.0f} samples/s, "
        f"{most.workers} give {most.samples_per_s:,.0f}."
    )


def _drops(figures: Figures) -> str | None:
    if not figures.dropped:
        return None
    reasons = ", ".join(f"{reason} ({count:,} ×)" for reason, count in sorted(figures.dropped.items()))
    return f"Of {figures.measured:,} samples some were dropped: {reasons}. `energon-grain lint` lists what is broken."


def _need(figures: Figures) -> str | None:
    best = figures.best
    step_ms = 1e3 * figures.batch_size / max(1e-12, best.samples_per_s)
    return (
        f"With num_workers={best.workers} a batch of {figures.batch_size} comes every {step_ms:,.2g} ms: loading "
        f"bounds a training whose step is faster than that, and no other."
    )


_RULES: tuple[Callable[[Figures], str | None], ...] = (
    _drops,
    _cold_storage,
    _object_store,
    _serial_hook,
    _decoding,
    _batching,
    _storage_ceiling,
    _rest,
    _workers,
    _need,
)
