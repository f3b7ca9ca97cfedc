"""Joins: a second data set with the keys of a first one, and a metadataset that joins both.

CACHE/NAME/first/         hard links to the first one, index and all
CACHE/NAME/second/        the second data set, prepared
CACHE/NAME/ours.yaml      the join, as energon-grain is told to make samples of its rows
CACHE/NAME/energon.yaml   the same for Megatron-Energon
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.datasets import DATA_SETS, OURS, REPO, DataSet, prepare
from benchmarks.peer_python import energon_program, peer_python
from benchmarks.tar_writer import write_shard

OURS_YAML, ENERGON_YAML = "ours.yaml", "energon.yaml"


@dataclass(frozen=True, kw_only=True, slots=True)
class TwoWayJoin:
    """The samples of `data` joined with as many others of the same kind, in `shards` shards."""

    name: str
    data: DataSet
    shards: int
    same_order: bool


JOINS = {
    join.name: join
    for join in (
        TwoWayJoin(name="text-join", data=DATA_SETS["text"], shards=16, same_order=True),
        TwoWayJoin(name="text-join-mixed", data=DATA_SETS["text"], shards=16, same_order=False),
        TwoWayJoin(name="tiny-join", data=DATA_SETS["tiny"], shards=100, same_order=True),
    )
}


def write_join(folder: Path, join: TwoWayJoin) -> None:
    """Write the second data set and the metadatasets, and prepare both; the first data set must have been built."""
    data, second = join.data, folder / "second"
    second.mkdir(parents=True)
    shutil.copytree(folder.parent / data.name, folder / "first", copy_function=os.link)
    numbers = np.arange(data.samples)
    if not join.same_order:
        numbers = np.random.default_rng(6).permutation(data.samples)
    bounds = [data.samples * shard // join.shards for shard in range(join.shards + 1)]
    for shard in range(join.shards):
        begin, end = bounds[shard], bounds[shard + 1]
        write_shard(second / f"shard_{shard:06d}.tar", _renumbered(data, begin, numbers[begin:end]))
    prepare(second, data)
    prepare_joins(folder)


def prepare_joins(folder: Path) -> None:
    """Write the join once for each program, which differ in the module of the joiner alone, and have it prepared."""
    programs = [(OURS_YAML, "benchmarks.ours", OURS)]
    if peer_python():
        programs.append((ENERGON_YAML, "benchmarks.peers.energon", energon_program()))
    for name, module, program in programs:
        joiner = {"__module__": module, "__class__": "Pair"}
        split = {"join": [{"path": "first"}, {"path": "second"}], "joiner": joiner}
        document = {"__module__": "megatron.energon", "__class__": "MetadatasetV2", "splits": {"train": split}}
        (folder / name).write_text(json.dumps(document, indent=2) + "\n")
        subprocess.run([*program, "prepare", str(folder / name)], check=True, cwd=REPO, stdout=sys.stderr)


def _renumbered(data: DataSet, begin: int, numbers: npt.NDArray[np.int64]) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Samples of `data` under the keys of others."""
    samples = data.contents(begin, begin + len(numbers))
    for number, (_, parts) in zip(numbers.tolist(), samples, strict=True):
        yield f"{number:09d}", dict(parts)
