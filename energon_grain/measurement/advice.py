"""What to change, by rules on figures.

Each rule is a function of the figures that says one thing or nothing; they are asked in the order of `_RULES`. Their
thresholds are constants here, so that what is said can be argued with.
"""

from __future__ import annotations

from collections.abc import Callable

from energon_grain.measurement.figures import Figures, StageTime
from energon_grain.measurement.first_epoch import StoreBound, advise_on_store, store_bound
from energon_grain.measurement.significant import significant
from energon_grain.measurement.suggested_block import suggested_block

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
