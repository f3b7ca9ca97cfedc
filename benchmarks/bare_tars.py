"""Time to the first batch of unprepared tars, by their number, compared with prepared ones and webdataset.

    python -m benchmarks.bare_tars --shards 100,1000

Each row is a separate process. Imports are not measured; opening and a batch of 64 are. webdataset (in the environment
of ENERGON_PEER_PYTHON) shuffles the list of shards and a buffer of 1,000 samples. The first row includes filling that
buffer, as its users do; the second has no buffer. Files are in the page cache; `--cold` asks the kernel to drop them
first. For energon-grain, processor time is more reliable if other programs run at the same time.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.child import ask, program
from benchmarks.machine import peer_python
from benchmarks.resources import processor_s


def ours(path: str, first: bool) -> dict[str, float]:
    """Return wall-clock and processor seconds to the first batch; `first`: prepare before."""
    import energon_grain as eg
    from energon_grain.prepare import prepare_dataset

    opened = eg.get_savable_loader, eg.get_train_dataset, eg.Stream  # import now
    began, used = time.perf_counter(), processor_s()
    if first:
        prepare_dataset(path, crude=True, split_ratio={"train": 1}, sqlite=False)
    encoder = eg.DefaultTaskEncoder()
    encoder.decoder = None
    shuffle = {"shuffle_buffer_size": None, "max_samples_per_sequence": None}
    with opened[0](opened[1](path, batch_size=64, task_encoder=encoder, **shuffle)) as loader:
        next(iter(loader))
    return {"seconds": time.perf_counter() - began, "cpu_s": processor_s() - used}


def webdataset(path: str, buffer: int) -> dict[str, float]:
    """The same for webdataset, with shuffled shards and a shuffle buffer; without processor time."""
    import webdataset as wds

    began = time.perf_counter()
    found = [str(tar) for tar in sorted(Path(path).rglob("*.tar"))]
    dataset = wds.WebDataset(found, shardshuffle=len(found), empty_check=False)
    if buffer:
        dataset = dataset.shuffle(buffer, initial=buffer)
    next(iter(dataset.batched(64)))
    return {"seconds": time.perf_counter() - began}


def write_shards(root: Path, shards: int, samples: int, image_bytes: int) -> None:
    """Write shards of samples with the bytes of an image and a little JSON."""
    from energon_grain.testing import write_tars

    image = os.urandom(image_bytes)
    for number in range(shards):
        run = ({"__key__": f"{number:05d}{i:04d}", "jpg": image, "json": {"n": i}} for i in range(samples))
        write_tars(root, run, name=f"{number // 1000:03d}/{number:06d}.tar")


def drop(root: Path) -> None:
    """Ask the kernel to drop files from the page cache."""
    for path in root.rglob("*.tar"):
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def main(
    shards: str = "100,1000",
    samples: int = 100,
    image_bytes: int = 10_000,
    cold: bool = False,
    scratch: str | None = None,
) -> None:
    for count in map(int, shards.split(",")):
        with tempfile.TemporaryDirectory(prefix="bare-tars-", dir=scratch) as folder:
            root = Path(folder)
            write_shards(root, count, samples, image_bytes)

            def seconds(call: str, python: str = sys.executable, root: Path = root, **arguments: object) -> str:
                if cold:
                    drop(root)
                found = ask("bare_tars", call, python=python, path=str(root), **arguments)
                cpu = f" ({found['cpu_s']:.2f} processor)" if "cpu_s" in found else ""
                return f"{found['seconds']:.3f} s{cpu}"

            row: dict[str, object] = {"shards": count, "samples": count * samples}
            row["bare, first use"] = seconds("ours", first=False)
            row["bare, later"] = seconds("ours", first=False)
            peers = peer_python()
            if peers is not None:
                row["webdataset"] = seconds("webdataset", str(peers), buffer=1000)
                row["webdataset, no buffer"] = seconds("webdataset", str(peers), buffer=0)
            shutil.rmtree(root / ".nv-meta")
            row["prepare and open"] = seconds("ours", first=True)
            row["prepared"] = seconds("ours", first=False)
            print("\n".join(f"{name:22} {value}" for name, value in row.items()), end="\n\n")


if __name__ == "__main__":
    program(main, ours=ours, webdataset=webdataset)
