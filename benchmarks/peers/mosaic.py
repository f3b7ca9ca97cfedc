"""Mosaic's StreamingDataset over its own uncompressed MDS shards (64 MB, shuffled), read in the main process.

The shuffle is the default, `py1e`. Mosaic has an environment of its own, because it needs an older NumPy.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.child import serve
from benchmarks.peers.samples import pixels, tar_samples
from benchmarks.steady import steady

_BATCH = 32
_LIBRARIES: list[Any] = []  # an operator ends with its library


def _import_torchvision() -> None:
    """Define the operators that torchvision, built with CUDA, expects of a PyTorch without it."""
    import torch

    if not torch.backends.cuda.is_built():
        library = torch.library.Library("torchvision", "DEF")
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _LIBRARIES.append(library)
    import torchvision  # noqa: F401


def build(tars: list[str], target: str, option: str) -> dict[str, Any]:
    """Write shards with {part: bytes} samples."""
    _import_torchvision()
    from streaming import MDSWriter

    columns = dict.fromkeys(next(tar_samples(tars[0])), "bytes")
    with MDSWriter(out=target, columns=columns, size_limit="64mb") as writer:
        for tar in tars:
            for sample in tar_samples(tar):
                writer.write(sample)
    return {}


def _weigh(batch: list[dict[str, Any]]) -> tuple[int, int]:
    return len(batch), sum(getattr(part, "nbytes", 0) or len(part) for sample in batch for part in sample.values())


def throughput(folder: str, warmup_s: float, seconds: float, workers: int = 0, image: bool = False) -> dict[str, Any]:
    """Measure the rate over endless epochs; with `image`, the part `jpg` is decoded."""
    _import_torchvision()
    from streaming import StreamingDataLoader, StreamingDataset
    from streaming.base.constant import BARRIER_FILELOCK, CACHE_FILELOCK, SHM_TO_CLEAN

    class Images(StreamingDataset):
        def __getitem__(self, at: Any) -> Any:
            sample = super().__getitem__(at)
            return {**sample, "jpg": pixels(sample["jpg"])}

    datasets: list[StreamingDataset] = []

    def make() -> Iterator[list[dict[str, Any]]]:
        dataset = (Images if image else StreamingDataset)(local=folder, batch_size=_BATCH, shuffle=True)
        datasets.append(dataset)
        loader = StreamingDataLoader(dataset, batch_size=_BATCH, num_workers=workers, collate_fn=list)
        while True:
            yield from loader

    found = steady(make, _weigh, warmup_s=warmup_s, seconds=seconds)
    # These files outlive a process that ends without exit handlers, as this one does. Mosaic's own function for that,
    # `clean_stale_shared_memory`, also removes those of other runs on this machine.
    for folder, names in (("/dev/shm", SHM_TO_CLEAN), (tempfile.gettempdir(), (BARRIER_FILELOCK, CACHE_FILELOCK))):
        for name in names:
            Path(folder, f"{datasets[0]._shm_prefix_int:06}_{name}").unlink(missing_ok=True)
    return found


if __name__ == "__main__":
    serve(build=build, throughput=throughput)
