"""Time to the first batch of tars that nobody prepared, by their number; beside prepared ones, and webdataset.

    python -m benchmarks.bare_tars --shards 100,1000

Each row is a process of its own: its imports do not count, opening and a batch of 64 do. webdataset (the environment
named by ENERGON_PEER_PYTHON) shuffles the list of shards and a buffer of 1,000 samples; first is what it
takes to fill that buffer, as its users do; then without it. Files are in the page cache, `--cold` asks the kernel to
drop them before. Of ours, the time of processors says more where other programs run beside it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.child import program
from benchmarks.machine import peer_python
from energon_grain.testing import write_tars

_OURS = """
import resource, sys, time
import energon_grain as eg, energon_grain.loader.iterator, energon_grain.stream.stream
import energon_grain.prepare.preparation
eg.get_savable_loader, eg.get_train_dataset  # imported here
path, prepare = sys.argv[1], sys.argv[2] == "prepare"
def now():
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return time.perf_counter(), sum(each.ru_utime + each.ru_stime for each in used)
began = now()
if prepare:
    eg.prepare.prepare_dataset(path, crude=True, split_ratio={"train": 1}, sqlite=False)
encoder = eg.DefaultTaskEncoder()
encoder.decoder = None
shuffle = {"shuffle_buffer_size": None, "max_samples_per_sequence": None}
dataset = eg.get_train_dataset(path, batch_size=64, task_encoder=encoder, **shuffle)
with eg.get_savable_loader(dataset) as loader:
    next(iter(loader))
print(*(after - before for before, after in zip(began, now())))
"""
_WEBDATASET = """
import sys, time, glob
import webdataset as wds
path, buffer = sys.argv[1], int(sys.argv[2])
began = time.perf_counter()
found = sorted(glob.glob(path + "/**/*.tar", recursive=True))
dataset = wds.WebDataset(found, shardshuffle=len(found), empty_check=False)
if buffer:
    dataset = dataset.shuffle(buffer, initial=buffer)
next(iter(dataset.batched(64)))
print(time.perf_counter() - began)
"""


def write_shards(root: Path, shards: int, samples: int, image_bytes: int) -> None:
    """Write shards of samples with an image's worth of bytes and a little JSON."""
    image = os.urandom(image_bytes)
    for number in range(shards):
        run = ({"__key__": f"{number:05d}{i:04d}", "jpg": image, "json": {"n": i}} for i in range(samples))
        write_tars(root, run, name=f"{number // 1000:03d}/{number:06d}.tar")


def drop(root: Path) -> None:
    """Ask the kernel to forget files."""
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

            def seconds(program: str, *arguments: str, python: object = sys.executable, root: Path = root) -> str:
                if cold:
                    drop(root)
                command = [str(python), "-c", program, str(root), *arguments]
                taken = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
                return f"{float(taken[0]):.3f} s" + "".join(f" ({float(each):.2f} of processors)" for each in taken[1:])

            row: dict[str, object] = {"shards": count, "samples": count * samples}
            row["bare, first use"] = seconds(_OURS, "bare")
            row["bare, later"] = seconds(_OURS, "bare")
            peers = peer_python()
            if peers is not None:
                row["webdataset"] = seconds(_WEBDATASET, "1000", python=peers)
                row["webdataset, no buffer"] = seconds(_WEBDATASET, "0", python=peers)
            shutil.rmtree(root / ".nv-meta")
            row["prepare and open"] = seconds(_OURS, "prepare")
            row["prepared"] = seconds(_OURS, "bare")
            print("\n".join(f"{name:22} {value}" for name, value in row.items()), end="\n\n")


if __name__ == "__main__":
    program(main)
