"""Copies to a GPU beside training steps: `python -m benchmarks.gpu_steps [--step-ms 20] [--steps 200] [--workers 8]`.

Batches of 128 decoded JPEGs of 256 x 256 (uint8, 25 MB) go to the GPU, and each step multiplies matrices for about
`--step-ms` milliseconds. Prints milliseconds per step: of the steps alone, on a batch that is on the GPU already; in
PyTorch with and without `pin_memory`; in JAX with `to_device` (2 batches and 1), and with `jax.device_put` in the step.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import datasets
from benchmarks.child import ask, program
from benchmarks.resources import CACHE, warm

BATCH, SIDE, MATRIX = 128, 256, 4096
WAYS = {
    "torch": ("alone", "pin_memory=False", "pin_memory=True"),
    "jax": ("alone", "device_put", "to_device, buffer_size=1", "to_device"),
}


class Steps:
    """Training steps of one framework: `run(image)` starts one, and `finish()` waits for all."""

    def __init__(
        self, start: Callable[[Any, int], Any], wait: Callable[[Any], None], image: Any, step_ms: float
    ) -> None:
        self.wait = wait
        self.start = start
        self.rounds = 1
        one = self.milliseconds(itertools.repeat(image), 20)
        self.rounds = 20
        twenty = self.milliseconds(itertools.repeat(image), 20)
        self.rounds = max(1, round(1 + (step_ms - one) * 19 / (twenty - one)))

    def milliseconds(self, images: Iterator[Any], steps: int) -> float:
        """Return milliseconds per step, after ten that do not count."""
        self.wait([self.start(image, self.rounds) for image in itertools.islice(images, 10)])
        begin = time.perf_counter()
        last = None
        for image in itertools.islice(images, steps):
            last = self.start(image, self.rounds)
        self.wait(last)
        return 1000 * (time.perf_counter() - begin) / steps


def loader_of(library: Any, folder: str, workers: int, **options: Any) -> Any:
    """Return a loader of decoded images, with worker threads."""
    encoder = library.DefaultTaskEncoder()
    encoder.decoder = library.SampleDecoder(image_decode="rgb8")
    dataset = library.get_train_dataset(
        folder,
        batch_size=BATCH,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        worker_config=library.WorkerConfig(0, 1, workers, worker_type="thread"),
        task_encoder=encoder,
    )
    return library.get_savable_loader(dataset, **options)


def in_torch(way: str, folder: str, workers: int, step_ms: float, steps: int) -> dict[str, float]:
    """Return milliseconds per step in PyTorch."""
    import torch

    import energon_grain_torch

    weights = torch.randn(MATRIX, MATRIX, device="cuda", dtype=torch.bfloat16) / MATRIX**0.5

    def start(image: Any, rounds: int) -> Any:
        value = weights * image.float().mean()
        for _ in range(rounds):
            value = value @ weights
        return value

    here = torch.zeros(BATCH, SIDE, SIDE, 3, dtype=torch.uint8, device="cuda")
    made = Steps(start, lambda _: torch.cuda.synchronize(), here, step_ms)
    if way == "alone":
        return {"ms": made.milliseconds(itertools.repeat(here), steps)}
    with loader_of(energon_grain_torch, folder, workers, pin_memory=way.endswith("True")) as loader:
        return {"ms": made.milliseconds((batch.image.to("cuda", non_blocking=True) for batch in loader), steps)}


def in_jax(way: str, folder: str, workers: int, step_ms: float, steps: int) -> dict[str, float]:
    """Return milliseconds per step in JAX."""
    import jax
    import jax.numpy as jnp

    import energon_grain
    from energon_grain.loader import to_device

    weights = jax.random.normal(jax.random.key(0), (MATRIX, MATRIX), jnp.bfloat16) / MATRIX**0.5

    @jax.jit
    def start(image: Any, rounds: int) -> Any:
        value = weights * image.astype(jnp.float32).mean().astype(jnp.bfloat16)
        return jax.lax.fori_loop(0, rounds, lambda _, product: product @ weights, value)

    here = jax.device_put(np.zeros((BATCH, SIDE, SIDE, 3), np.uint8))
    made = Steps(start, jax.block_until_ready, here, step_ms)
    if way == "alone":
        return {"ms": made.milliseconds(itertools.repeat(here), steps)}
    with loader_of(energon_grain, folder, workers) as loader:
        if way == "device_put":
            return {"ms": made.milliseconds((jax.device_put(batch.image) for batch in loader), steps)}
        ahead = to_device(loader, buffer_size=1 if way.endswith("1") else 2)
        return {"ms": made.milliseconds((batch.image for batch in ahead), steps)}


def main(
    step_ms: float = 20.0, steps: int = 200, workers: int = 8, frameworks: str = "torch,jax", cache: Path = CACHE
) -> None:
    cache.mkdir(parents=True, exist_ok=True)
    datasets.build(cache, ["jpeg"])
    folder = cache / "jpeg"
    warm(folder)
    for framework in frameworks.split(","):
        print(f"\n| {framework} | ms/step |\n|---|---|", flush=True)
        for way in WAYS[framework]:
            found = ask(
                "gpu_steps",
                f"in_{framework}",
                way=way,
                folder=str(folder),
                workers=workers,
                step_ms=step_ms,
                steps=steps,
            )
            print(f"| {way} | {found['ms']:.2f} |", flush=True)


if __name__ == "__main__":
    program(main, in_torch=in_torch, in_jax=in_jax)
