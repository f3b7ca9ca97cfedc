"""All measurements of one dataset, one after the other."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing

from energon_grain.datasets.dataset import SavableDataset
from energon_grain.datasets.leaf import ResolvedLeaf
from energon_grain.errors import ConfigError
from energon_grain.measurement.figures import Figures, StageTime
from energon_grain.measurement.machine import memcpy_bytes_per_s, usable_cores
from energon_grain.measurement.object_store import measure_store, objects_of, past_the_cache
from energon_grain.measurement.pipeline import measure_pipeline
from energon_grain.measurement.planned_reads import plan_reads, settled_pace
from energon_grain.measurement.stages import StageClock, measure_stages
from energon_grain.measurement.storage import measure_storage
from energon_grain.storage.object_client import ObjectClient, shared_client
from energon_grain.storage.storage_settings import storage_settings
from energon_grain.stream.compile import compile_dataset
from energon_grain.stream.encode import PureStage
from energon_grain.stream.leaf_parts import wanted_block
from energon_grain.stream.spec import StreamSpec
from energon_grain.transforms.image import IMAGE_EXTENSIONS

_PACE_SECONDS = 0.5
_MOSTLY_CACHED = 0.5


def measure_dataset(
    dataset: SavableDataset,
    *,
    path: str,
    workers: Sequence[int] = (0, 1, 2, 4),
    seconds: float = 2.0,
    progress: Callable[[str], None] = lambda label: None,
) -> Figures:
    """Measure storage, decoding, hooks, batching and the pipeline on the data itself.

    Nothing is written. It takes about `4 + 1 + 2 + len(workers)` times `seconds`.

    What lies in an object store is measured as in the first epoch, past the cache on local disk; reading out of that
    is measured besides, and so are the stages, and what was read for it is kept there.

    Args:
        dataset: What `get_train_dataset` returned, for one host.
        path: How to call it.
        workers: Numbers of workers to run the pipeline with; those beyond the number of cores are left out.
        seconds: For each measurement.
        progress: Told what begins.

    Raises:
        ConfigError: `workers` or `seconds` are no such numbers.
        EmptyDatasetError: There is no complete batch.
        ReadError: Bytes could not be read.
        FatalSampleError: A hook failed as no policy may skip.
    """
    if not workers or min(workers) < 0:
        raise ConfigError(f"workers={list(workers)}: numbers of workers are meant, each 0 or more")
    if not seconds > 0:
        raise ConfigError(f"seconds={seconds}: a time above 0 is meant")
    cached = spec = compile_dataset(dataset)
    batch_size = 1 if spec.batch is None else spec.batch.size
    cores = usable_cores()
    chosen = sorted({number for number in workers if number <= cores} or {cores})
    client: ObjectClient | None = None
    with ExitStack() as stack:
        stage = stack.enter_context(closing(PureStage(spec)))
        urls = objects_of(stage.sources)
        if urls:
            with past_the_cache() as settings:
                spec, client = compile_dataset(dataset), shared_client(settings)
            stage = stack.enter_context(closing(PureStage(spec)))
        progress("planning")
        planned = plan_reads(
            spec, stage, batch_size, settled_pace(spec, stage, batch_size, min(seconds, _PACE_SECONDS))
        )
        progress("storage")
        if client is None:
            storage, chunks = measure_storage(stage, planned, seconds), len(planned.chunks)
        else:
            through = stack.enter_context(closing(PureStage(cached)))
            storage, chunks = measure_store(stage, through, planned, urls, seconds, client.settings)
            stage = through
        progress("stages")
        clock = measure_stages(spec, stage, planned.chunks[:chunks], seconds)
    quiet = dataclasses.replace(dataset.worker_config, global_error_handler=_say_nothing)
    fetched_bytes = 1.0 if storage.store is None else storage.store.fetched_bytes
    samples = sum(map(len, stage.sources))
    runs = measure_pipeline(spec, quiet, chosen, seconds, progress, client, fetched_bytes, samples if client else 0)
    alone = runs[0].workers == 0 and spec.program is None and client is None
    alone_s = 1 / max(1e-12, runs[0].samples_per_s) if alone else None
    notes = [
        f"This process may use {cores} cores: no more workers than that are tried."
        for _ in range(len(chosen) < len(set(workers)))
    ]
    if storage.store is not None:
        notes.append(
            "`cache off` and the pipeline read past the cache on local disk, as in the first epoch; the pipeline "
            "fetches ahead of need, which reading by itself does not."
        )
        if storage_settings().cache_bytes == 0:
            notes.append("The storage settings keep no blocks (cache_bytes: 0): every epoch is as the first.")
    elif storage.cold is None:
        notes.append("No cold figures: what is read are not ranges of local files, or the system cannot drop those.")
    elif storage.still_cached is not None and storage.still_cached > _MOSTLY_CACHED:
        notes.append(
            f"{storage.still_cached:.0%} of the data was still in memory although the kernel had been asked to drop "
            f"it: the cold figures are warm ones."
        )
    if spec.program is not None:
        notes.append(
            "Lanes filter, pack, group or generate here: that shows in the pipeline alone, whose samples are the items "
            "that come out, and storage is read in about the order that lanes ask for."
        )
    shuffled = [leaf for leaf in spec.leaves if leaf.order.shuffle]
    refused = max((wanted_block(leaf.leaf) or 1 for leaf in shuffled if leaf.order.block is None), default=1)
    if refused > 1:
        notes.append(
            f"Blocks of {refused:,} samples would be fewer than the {spec.lanes} lanes that take turns to read one, so "
            f"a dataset as small as this is shuffled fully."
        )
    return Figures(
        path=path,
        batch_size=batch_size,
        worker_type=dataset.worker_config.worker_type,
        block=min((leaf.order.block for leaf in shuffled if leaf.order.block is not None), default=None),
        refused_block=refused if refused > 1 else None,
        largest_block=max((leaf.order.n * leaf.order.passes // spec.lanes for leaf in shuffled), default=0),
        items=spec.program is not None,
        cores=cores,
        memcpy_bytes_per_s=memcpy_bytes_per_s(),
        dataset_samples=samples,
        sample_bytes=planned.sample_bytes,
        image_decode=_image_decode(spec),
        storage=storage,
        stages=_stages(clock, alone_s),
        pipeline=runs,
        measured=clock.samples,
        dropped=dict(clock.dropped),
        notes=tuple(notes),
    )


def _say_nothing(error: Exception, sample: object, sources: object) -> None:
    """Failing samples were counted in the stages; runs that go over them again and again have nothing to add."""


def _stages(clock: StageClock, alone_s: float | None) -> tuple[StageTime, ...]:
    """The stages with their shares; `alone_s`: what the pipeline without workers takes for a sample."""
    times = clock.microseconds()
    if alone_s is not None:
        times["rest"] = max(0.0, 1e6 * alone_s - sum(times.values()))
    total = max(1e-12, sum(times.values()))
    return tuple(
        StageTime(name=name, microseconds=time, share=time / total, serial=name in clock.serial)
        for name, time in times.items()
    )


def _image_decode(spec: StreamSpec) -> str | None:
    """What images of the first leaf that has some are decoded to."""
    for leaf in spec.leaves:
        members: Iterable[object] = (leaf.leaf,) if isinstance(leaf.leaf, ResolvedLeaf) else leaf.leaf.members
        for member in members:
            if isinstance(member, ResolvedLeaf) and member.decoder is not None and _has_images(member):
                return str(member.decoder.config()["image_decode"])
    return None


def _has_images(leaf: ResolvedLeaf) -> bool:
    return any(part.rpartition(".")[2].lower() in IMAGE_EXTENSIONS for part in leaf.source.locate(0).parts)
