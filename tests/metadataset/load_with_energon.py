"""Load metadatasets with Megatron-Energon and write down what they come to. Runs in Energon's environment.

Arguments: the file to write, then metadatasets.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from megatron.energon import WorkerConfig, load_dataset, traverse_metadataset


def loaded(path: str, split_part: str, training: bool) -> Any:
    found = load_dataset(path).get_datasets(
        training=training,
        split_part=split_part,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0),
        max_samples_per_sequence=None,
        parallel_shard_iters=1,
    )
    return {
        "mode": found.blend_mode.value,
        "leaves": [
            {
                "path": str(each.dataset.path),
                "weight": each.weight,
                "repetitions": each.repetitions,
                "subflavors": each.dataset.subflavors,
                "passes": each.dataset.shuffle_over_epochs,
                "range": each.dataset.subset and each.dataset.subset.compute_subset(55),
                "aux": {name: str(store.get_path()) for name, store in (each.aux or {}).items()},
            }
            for each in found.datasets
        ],
    }


def attempt(path: str, split_part: str) -> Any:
    try:
        return loaded(path, split_part, training=True)
    except (AssertionError, TypeError, ValueError) as error:
        return {"error": type(error).__name__}


def traversed(path: str, split_part: str) -> Any:
    return [
        [str(each.path), each.split_part, {name: str(aux) for name, aux in each.aux.items()}, each.subflavors]
        for each in traverse_metadataset(path, split_part=split_part)
    ]


if __name__ == "__main__":
    target, *paths = sys.argv[1:]
    answers = []
    for path in paths:
        split_part = path.split("@")[1]
        path = path.split("@")[0]
        answers.append({"loaded": attempt(path, split_part), "traversed": traversed(path, split_part)})
    with open(target, "w", encoding="utf-8") as file:
        json.dump(answers, file)
