"""Streaming from the Hub: ours against Hugging Face `datasets` and LitData, on the same files of a Hub on loopback.

`python -m benchmarks.hub [--peer PYTHON]`, where PYTHON has `datasets`, and LitData with Polars. Each contender is a
process of its own, with an empty cache, and goes through all samples once; samples a second are those after the first
batch. Lines of JSON come first (shuffled within a buffer of 1,000 by `datasets`, and in blocks of 100 here), then rows
of Parquet, which alone LitData reads from the Hub (by an index that it makes first), then prepared tars. Requests are
those of the Hub, which it limits, and of the content network.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import pyarrow
import pyarrow.parquet
import typer

from benchmarks.child import program
from energon_grain.testing import make_blob_dataset

ROOT = Path(__file__).parents[1]
LINES, LINE_FILES, ROWS, TARS, BLOB_BYTES = 200_000, 8, 96_000, 32, 50_000

_OURS = """
import json, sys, time
from energon_grain import Stream, WorkerConfig, get_train_dataset
began = time.perf_counter()
parts = [{"path": path} for path in sys.argv[2:]]
(meta,) = [{"__module__": "megatron.energon", "__class__": "MetadatasetV2", "splits": {"train": {"concat": parts}}}]
open("meta.yaml", "w").write(json.dumps(meta))
workers = WorkerConfig(rank=0, world_size=1, num_workers=2)
shuffled = {"shuffle_buffer_size": 1000, "max_samples_per_sequence": 100}
dataset = get_train_dataset("meta.yaml", worker_config=workers, batch_size=100, **shuffled)
wanted = {"lines": 200_000, "rows": 96_000, "tars": 8_000}[sys.argv[1]]  # it has no end
n, first = 0, 0.0
with Stream.of(dataset) as stream:
    for batch in stream:
        n += 100
        first = first or time.perf_counter() - began
        if n >= wanted:
            break
print(json.dumps({"samples": n, "first_s": first, "all_s": time.perf_counter() - began}))
"""
_PEER = """
import json, sys, time
from datasets import load_dataset
began = time.perf_counter()
form = {"lines": "json", "rows": "parquet", "tars": "webdataset"}[sys.argv[1]]
dataset = load_dataset(form, data_files=sys.argv[2:], split="train", streaming=True).shuffle(seed=1, buffer_size=1000)
n, first = 0, 0.0
for batch in dataset.batch(100):
    n += len(next(iter(batch.values())))
    first = first or time.perf_counter() - began
print(json.dumps({"samples": n, "first_s": first, "all_s": time.perf_counter() - began}))
"""
_LITDATA = """
import json, sys, time
from litdata import StreamingDataLoader, StreamingDataset
from litdata.streaming.item_loader import ParquetLoader
began = time.perf_counter()
dataset = StreamingDataset(sys.argv[2], item_loader=ParquetLoader(), shuffle=True, seed=1)
n, first = 0, 0.0
for batch in StreamingDataLoader(dataset, batch_size=100, num_workers=0, collate_fn=list):
    n += len(batch)
    first = first or time.perf_counter() - began
print(json.dumps({"samples": n, "first_s": first, "all_s": time.perf_counter() - began}))
"""


def write(folder: Path) -> None:
    """Lines of some 200 bytes, and tars with blobs that do not compress."""
    folder.mkdir()
    for file in range(LINE_FILES):
        lines = (
            json.dumps({"number": number, "text": f"line {number} " * 12}) for number in range(LINES // LINE_FILES)
        )
        (folder / f"lines-{file}.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "rows").mkdir()
    for file in range(LINE_FILES):
        texts = [f"row {number} " * 60 for number in range(ROWS // LINE_FILES)]
        table = pyarrow.table({"text": texts, "number": range(len(texts))})
        pyarrow.parquet.write_table(table, folder / f"rows/{file}.parquet", row_group_size=1000)
    make_blob_dataset(folder / "tars", sample_bytes=BLOB_BYTES, n=TARS * 250, shards=TARS)
    split = {"split_parts": {"train": [f"shard_{shard:03d}.tar" for shard in range(TARS)]}, "exclude": []}
    (folder / "tars/.nv-meta/split.yaml").write_text(json.dumps(split))


def measured(python: str, program: str, endpoint: str, *arguments: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as empty:
        environment = {"HF_ENDPOINT": endpoint, "XDG_CACHE_HOME": empty, "HF_HOME": empty, "HOME": empty}
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        done = subprocess.run(
            [python, "-c", program, *arguments],
            env={**os.environ, **environment},
            cwd=empty,
            capture_output=True,
            text=True,
            check=False,
        )
    return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {"error": done.stderr[-2000:]}


def main(peer: Annotated[str, typer.Option(help="Interpreter that has `datasets`.")] = "", rounds: int = 2) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        write(Path(scratch, "data"))
        server = subprocess.Popen(
            [sys.executable, ROOT / "tests/hub_server.py", Path(scratch, "data"), "team/data"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert server.stdin is not None
        assert server.stdout is not None
        endpoint = server.stdout.readline().strip()
        lines = [f"hf://datasets/team/data/lines-{file}.jsonl" for file in range(LINE_FILES)]
        tars = [f"hf://datasets/team/data/tars/shard_{shard:03d}.tar" for shard in range(TARS)]
        rows = [("ours", sys.executable, _OURS, "lines", lines)]
        rows += [("ours", sys.executable, _OURS, "tars", ["hf://datasets/team/data/tars"])]
        rows += [("ours", sys.executable, _OURS, "rows", ["hf://datasets/team/data/rows"])]
        if peer:
            parquet = [f"hf://datasets/team/data/rows/{file}.parquet" for file in range(LINE_FILES)]
            rows += [("datasets", peer, _PEER, "lines", lines), ("datasets", peer, _PEER, "tars", tars)]
            rows += [("datasets", peer, _PEER, "rows", parquet)]
            rows += [("litdata", peer, _LITDATA, "rows", ["hf://datasets/team/data/rows"])]
        for _ in range(rounds):
            for name, python, program, kind, paths in sorted(rows, key=lambda row: row[3]):
                found = measured(python, program, endpoint, kind, *paths)
                server.stdin.write("\n")
                server.stdin.flush()
                requests = json.loads(server.stdout.readline())
                if "error" in found:
                    print(kind, name, found["error"])
                    continue
                rate = (found["samples"] - 100) / (found["all_s"] - found["first_s"])
                print(
                    f"{kind:5} {name:8} {rate:9,.0f} samples/s, first batch after {found['first_s']:.2f} s, "
                    f"{requests['hub']} requests to the Hub, {requests['cdn']} elsewhere",
                    flush=True,
                )
        server.stdin.close()
        server.wait()


if __name__ == "__main__":
    program(main)
