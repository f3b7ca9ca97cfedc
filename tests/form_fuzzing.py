"""Damaged and hostile files of every form that needs no preparation: errors are named, and nothing else happens.

    python tests/form_fuzzing.py [--count 5000] [--seed 1] [FORM …]

reads so many of each form, each form in a process of its own, and says how they ended, and how much memory and time
that took.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from parquet_files import FILE, features, files
from table_forms import damaged, write_arrow, write_feather, write_mds, write_parquet_file, write_tokens

from energon_grain import WorkerConfig, get_val_dataset
from energon_grain.datasets.leaf import LeafDataset, SampleDefinition, open_leaf
from energon_grain.errors import EnergonGrainError
from energon_grain.task_encoder import DefaultTaskEncoder
from energon_grain.testing import write_tars

_SECONDS_A_FILE = 20
_ROWS = 20
_PLAIN: dict[str, Any] = {
    "n": list(range(_ROWS)),
    "text": [f"text {number}" for number in range(_ROWS)],
    "raw": [bytes([number]) * number for number in range(_ROWS)],
}
_RICH: dict[str, Any] = {
    **_PLAIN,
    "lists": pa.array([[1] * (number % 3) for number in range(_ROWS)]),
    "kind": pa.array(["a", "b"] * (_ROWS // 2)).dictionary_encode(),
    "picture": pa.array(files([b"P%d" % number for number in range(_ROWS)]), FILE),
    "inner": pa.array([{"a": [number]} if number % 4 else None for number in range(_ROWS)]),
    "views": pa.array(["x" * number for number in range(_ROWS)], pa.string_view()),
}


def _hub_arrow(folder: Path) -> Path:
    return write_arrow(folder / "x.arrow", _RICH, metadata=features(picture={"_type": "Image"}))


def _tar(folder: Path) -> Path:
    samples = ({"__key__": f"{number:04d}", "txt": f"text {number}", "bin": bytes(number)} for number in range(_ROWS))
    write_tars(folder, samples, shards=1)
    return next(folder.glob("*.tar"))


FORMS: dict[str, tuple[Callable[[Path], Path], tuple[str, ...]]] = {
    "parquet": (lambda folder: write_parquet_file(folder / "x.parquet", _RICH), ("x.parquet",)),
    "arrow": (_hub_arrow, ("x.arrow",)),
    "feather": (lambda folder: write_feather(folder / "x.feather", _RICH), ("x.feather",)),
    "compressed": (lambda folder: write_feather(folder / "x.feather", _RICH, compression="zstd"), ("x.feather",)),
    "mds": (lambda folder: write_mds(folder, _PLAIN), ("index.json", "shard.00000.mds")),
    "mds-zstd": (lambda folder: write_mds(folder, _PLAIN, compression="zstd"), ("index.json", "shard.00000.mds.zstd")),
    "tokens": (
        lambda folder: write_tokens(folder / "x", [range(number % 5) for number in range(_ROWS)], sequence=3),
        ("x.idx", "x.idx", "x.bin"),
    ),
    "tars": (_tar, ("*.tar",)),
}
"""What writes a good one into a folder and gives its path, and which of its files are damaged, in turn."""


def container_source(path: Path) -> Any:
    """The source of a dataset that needs no preparation. Raises as opening does."""
    leaf: Any = LeafDataset(
        path=str(path),
        split_part="train",
        task_encoder=DefaultTaskEncoder(),
        definition=SampleDefinition(),
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0),
    )
    return open_leaf(leaf, True).source


def read_all(path: Path) -> None:
    """Open, read everything, and the columns of numbers."""
    worker_config = WorkerConfig(rank=0, world_size=1, num_workers=0)
    leaf: Any = get_val_dataset(path, split_part="train", worker_config=worker_config, batch_size=None)
    del leaf  # which checks what is there
    source = container_source(path)
    try:
        for begin in range(0, min(len(source), 1000), 7):
            source.read(np.arange(begin, min(begin + 7, len(source))))
        source.place_of(len(source) - 1)
        for name in source.columns:
            source.column(name, np.arange(min(len(source), 1000)))
    finally:
        source.close()


def fuzz(form: str, folder: Path, count: int, seed: int) -> Counter[str]:
    """Read so many damaged files of a form; how they ended: "fine", or the name of the error.

    Raises what is none of our errors, one that does not name the file, or an alarm after 20 s.
    """
    write, names = FORMS[form]
    good = folder / "good"
    path = write(good)
    found = Counter[str]()
    ways = [next(good.glob(name)) for name in names]
    for number, way in enumerate(ways):
        share = count // len(ways) + (number < count % len(ways))
        for turn, data in enumerate(damaged(way.read_bytes(), share, seed + number)):
            bad = folder / f"{turn}"
            shutil.copytree(good, bad)
            (bad / way.name).write_bytes(data)
            signal.alarm(_SECONDS_A_FILE)
            try:
                read_all(bad / path.relative_to(good))
                found["fine"] += 1
            except EnergonGrainError as error:
                if str(bad) not in str(error) and way.name not in str(error):
                    raise AssertionError(f"names no file: {error}") from error
                found[type(error).__name__] += 1
            except BaseException:
                kept = Path(tempfile.gettempdir(), f"{form}-{seed}-{number}-{turn}")
                shutil.copytree(bad, kept, dirs_exist_ok=True)
                print(f"see {kept}", file=sys.stderr)
                raise
            finally:
                signal.alarm(0)
            shutil.rmtree(bad)
    return found


def main() -> None:
    """Fuzz all forms, or one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("forms", nargs="*", metavar="FORM", help=", ".join(FORMS))
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--here", action="store_true", help="in this process, one form")
    options = parser.parse_args()
    if options.here:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["XDG_CACHE_HOME"] = f"{folder}/cache"
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            began = time.process_time()
            found = fuzz(options.forms[0], Path(folder, "data"), options.count, options.seed)
            more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
            print(json.dumps({**found, "MB more": more >> 10, "CPU seconds": round(time.process_time() - began)}))
        return
    for form in options.forms or FORMS:
        command = [sys.executable, "-X", "faulthandler", __file__, form, "--here"]
        command += ["--count", str(options.count), "--seed", str(options.seed)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        print(
            form, done.stdout.strip() if not done.returncode else f"ended with {done.returncode}: {done.stderr[-3000:]}"
        )


if __name__ == "__main__":
    main()
