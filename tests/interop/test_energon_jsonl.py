"""JSONL files that we index load in Megatron-Energon, with the same samples: keys, values, provenance."""

from __future__ import annotations

import json
from pathlib import Path

from cli_runs import run
from energon_peer import needs_energon, run_there

from energon_grain import WorkerConfig, get_val_dataset

pytestmark = needs_energon
THERE = """
import json, sys
from megatron.energon import Cooker, DefaultTaskEncoder, WorkerConfig, get_loader, get_val_dataset, stateless

@stateless
def keep(sample):
    return sample

class Keeping(DefaultTaskEncoder):
    cookers = [Cooker(keep)]

dataset = get_val_dataset(
    sys.argv[1],
    batch_size=None,
    worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0),
    task_encoder=Keeping(),
)
found = []
for sample in get_loader(dataset):
    sources = [[s.index, s.shard_name, list(s.file_names)] for s in sample["__sources__"]]
    found.append([sample["__key__"], sample["json"], sample["__shard__"], sources])
print(json.dumps(found))
"""


def test_the_same_samples(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    lines = [json.dumps({"n": i, "text": "ä" * (i % 5), "nested": {"list": [i, None, 0.5]}}) for i in range(30)]
    path.write_text("\n" + "\n".join(lines[:10]) + "\n\n  " + "\r\n".join(lines[10:]))
    assert run("prepare", path).exit_code == 0
    said = run_there("-c", THERE, path)
    here = [
        [
            sample["__key__"],
            sample["json"],
            sample["__shard__"],
            [[source.index, source.shard_name, list(source.file_names)] for source in sample["__sources__"]],
        ]
        for sample in get_val_dataset(path, batch_size=None, worker_config=WorkerConfig(0, 1, num_workers=0))
    ]
    assert here == json.loads(said.splitlines()[-1])
