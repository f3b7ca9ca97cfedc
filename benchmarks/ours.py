"""energon-grain: the same programs as `benchmarks/peers/energon.py`, line by line."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.child import serve
from benchmarks.resources import open_files, resident_mb
from benchmarks.steady import steady, weigh_column

_FIELDS = {"text": ("txt", "json"), "blob": ("bin", "json")}


def _encoder(program: str) -> Any:
    """The task encoder of a program: `crude-text`, `crude-blob`, `plain`, or an image mode such as `rgb8`."""
    from energon_grain import (
        Cooker,
        DefaultTaskEncoder,
        Sample,
        SampleDecoder,
        basic_sample_keys,
        edataclass,
        stateless,
    )

    @edataclass
    class Document(Sample):
        first: bytes
        second: bytes

    if program == "plain":
        return DefaultTaskEncoder()
    if not program.startswith("crude-"):

        class Images(DefaultTaskEncoder):
            decoder = SampleDecoder(image_decode=program)

        return Images()

    first, second = _FIELDS[program.removeprefix("crude-")]

    @stateless
    def cook(sample: Any) -> Document:
        return Document(**basic_sample_keys(sample), first=sample[first], second=sample[second])

    class Crude(DefaultTaskEncoder):
        decoder = None
        cookers = (Cooker(cook),)

    return Crude()


def _weigh(batch: Any) -> tuple[int, int]:
    if hasattr(batch, "first"):
        count, payload = weigh_column(batch.first)
        return count, payload + weigh_column(batch.second)[1]
    return weigh_column(batch.image if hasattr(batch, "image") else batch.text)


def _loader(folder: str, program: str, workers: int, *, blocks: bool = True, savable: bool = False) -> Any:
    from energon_grain import WorkerConfig, get_loader, get_savable_loader, get_train_dataset

    dataset = get_train_dataset(
        folder,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=workers),
        batch_size=32,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100 if blocks else None,
        task_encoder=_encoder(program),
    )
    return get_savable_loader(dataset) if savable else get_loader(dataset)


def _import_all() -> None:
    """Everything that a training script imports before it builds its loader; numpy, grain and Pillow among it."""
    import simplejpeg  # noqa: F401

    _encoder("plain")


def throughput(
    folder: str, warmup_s: float, seconds: float, program: str, workers: int = 0, blocks: bool = True
) -> dict[str, Any]:
    """Steady rate of a program."""
    _import_all()

    def make() -> Iterator[Any]:
        return iter(_loader(folder, program, workers, blocks=blocks))

    return steady(make, _weigh, warmup_s=warmup_s, seconds=seconds)


def first_batch(folder: str, batches: int = 200) -> dict[str, Any]:
    """Time from the imports to the first batch; memory and open files after some more."""
    _import_all()
    memory_before, files_before = resident_mb(), open_files()
    started = time.perf_counter()
    loader = iter(_loader(folder, "plain", 0))
    next(loader)
    first_batch_s = time.perf_counter() - started
    files = 0
    for index in range(batches):
        _weigh(next(loader))
        if index % 20 == 0:
            files = max(files, open_files() - files_before)
    return {"first_batch_s": first_batch_s, "memory_mb": resident_mb() - memory_before, "open_files": files}


def import_time(loader: bool = False) -> dict[str, Any]:
    """Seconds that `import energon_grain` takes in a fresh interpreter; with `loader`, all that a script imports."""
    started = time.perf_counter()
    import energon_grain  # noqa: F401

    if loader:
        _import_all()
    return {"import_s": time.perf_counter() - started}


def resume(folder: str, batches: int, workers: int) -> dict[str, Any]:
    """Read `batches`, save, restore into a new loader of the same process, and wait for its first batch."""
    _import_all()
    loader = _loader(folder, "crude-text", workers, savable=True)
    iterator = iter(loader)
    for _ in range(batches):
        next(iterator)
    started = time.perf_counter()
    state = loader.get_state()
    save_s = time.perf_counter() - started
    expected = list(next(iterator).__key__)
    loader.close()

    fresh = _loader(folder, "crude-text", workers, savable=True)
    started = time.perf_counter()
    fresh.set_state(state)
    got = list(next(iter(fresh)).__key__)
    restore_s = time.perf_counter() - started
    return {"state_bytes": len(_bytes(state)), "save_s": save_s, "restore_s": restore_s, "exact": got == expected}


def _bytes(state: Any) -> bytes:
    return state if isinstance(state, bytes) else json.dumps(state).encode()


if __name__ == "__main__":
    serve(throughput=throughput, first_batch=first_batch, import_time=import_time, resume=resume)
