"""Mixtures: folders of several small data sets with a metadataset beside them, weights all equal.

CACHE/NAME/leaf_000/ …  data sets of the same kind of samples, prepared
CACHE/NAME/blend.yaml     a blend of them
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.datasets import DATA_SETS, OURS, REPO, DataSet, prepare, prepare_options
from benchmarks.tar_writer import write_shard

METADATASET = "blend.yaml"


@dataclass(frozen=True, kw_only=True, slots=True)
class Mixture:
    """The samples of `data`, dealt to `leaves` data sets."""

    name: str
    data: DataSet
    leaves: int
    shards_per_leaf: int
    by_energon: bool  # who prepares: where Energon reads it too, Energon, as in `datasets.py`
    alike: bool = False  # all leaves are copies of the first one


MIXTURES = {
    mixture.name: mixture
    for mixture in (
        Mixture(name="text-2", data=DATA_SETS["text"], leaves=2, shards_per_leaf=10, by_energon=True),
        Mixture(name="text-100", data=DATA_SETS["text"], leaves=100, shards_per_leaf=1, by_energon=False),
        Mixture(name="text-1000", data=DATA_SETS["text"], leaves=1000, shards_per_leaf=1, by_energon=False, alike=True),
    )
}


def write_mixture(folder: Path, mixture: Mixture) -> None:
    """Write shards, indices and the metadataset."""
    data, leaves = mixture.data, mixture.leaves
    shards = leaves * mixture.shards_per_leaf
    bounds = [data.samples * shard // shards for shard in range(shards + 1)]
    for leaf in range(leaves):
        target = folder / f"leaf_{leaf:03d}"
        if leaf and mixture.alike:
            shutil.copytree(folder / "leaf_000", target)
            continue
        target.mkdir(parents=True)
        for number in range(mixture.shards_per_leaf):
            shard = leaf * mixture.shards_per_leaf + number
            samples = data.contents(bounds[shard], bounds[shard + 1])
            write_shard(target / f"shard_{number:06d}.tar", samples)
        if mixture.by_energon:
            prepare(target, data)
        else:
            command = [*OURS, "prepare", *prepare_options(data), str(target)]
            subprocess.run(command, check=True, cwd=REPO, stdout=sys.stderr)
    lines = ["__module__: megatron.energon", "__class__: MetadatasetV2", "splits:", "  train:", "    blend:"]
    for leaf in range(leaves):
        lines += [f"      - path: leaf_{leaf:03d}", "        weight: 1"]
    (folder / METADATASET).write_text("\n".join(lines) + "\n")
