"""Streaming from the Hub: energon-grain, Hugging Face `datasets` and LitData, on the same files of a local Hub.

`python -m benchmarks.hub [--peer PYTHON]`, where PYTHON has `datasets`, and LitData with Polars. Each contender is a
separate process with an empty cache, and reads all samples once; samples per second are those after the first batch.
The order is: lines of JSON (shuffled within a buffer of 1,000 by `datasets`, and in blocks of 100 by energon-grain);
rows of Parquet, the only format that LitData reads from the Hub (with an index that it makes first); prepared tars.
Requests are counted for the Hub, which limits them, and for the content network.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.child import ask, program

ROOT = Path(__file__).parents[1]
LINES, LINE_FILES, ROWS, TARS, BLOB_BYTES = 200_000, 8, 96_000, 32, 50_000


def ours(kind: str, paths: list[str]) -> Iterator[int]:
    """Yield the number of samples of each batch; endless."""
    from energon_grain import Stream, WorkerConfig, get_train_dataset

    parts = [{"path": path} for path in paths]
    meta = {"__module__": "megatron.energon", "__class__": "MetadatasetV2", "splits": {"train": {"concat": parts}}}
    workers = WorkerConfig(rank=0, world_size=1, num_workers=2)
    dataset = get_train_dataset(
        meta, worker_config=workers, batch_size=100, shuffle_buffer_size=1000, max_samples_per_sequence=100
    )
    with Stream.of(dataset) as stream:
        for _ in stream:
            yield 100


def datasets(kind: str, paths: list[str]) -> Iterator[int]:
    """The same with Hugging Face's `datasets`, once."""
    from datasets import load_dataset

    form = {"lines": "json", "rows": "parquet", "tars": "webdataset"}[kind]
    dataset = load_dataset(form, data_files=paths, split="train", streaming=True).shuffle(seed=1, buffer_size=1000)
    for batch in dataset.batch(100):
        yield len(next(iter(batch.values())))


def litdata(kind: str, paths: list[str]) -> Iterator[int]:
    """The same with LitData, once."""
    from litdata import StreamingDataLoader, StreamingDataset
    from litdata.streaming.item_loader import ParquetLoader

    dataset = StreamingDataset(paths[0], item_loader=ParquetLoader(), shuffle=True, seed=1)
    yield from map(len, StreamingDataLoader(dataset, batch_size=100, num_workers=0, collate_fn=list))


def once(name: str, kind: str, paths: list[str]) -> dict[str, float]:
    """Read all samples; returns their number, and seconds to the first and last batch."""
    wanted = {"lines": LINES, "rows": ROWS, "tars": TARS * 250}[kind]
    began, samples, first = time.perf_counter(), 0, 0.0
    for count in {"ours": ours, "datasets": datasets, "litdata": litdata}[name](kind, paths):
        samples += count
        first = first or time.perf_counter() - began
        if samples >= wanted:
            break
    return {"samples": samples, "first_s": first, "all_s": time.perf_counter() - began}


def write(folder: Path) -> None:
    """Write lines of about 200 bytes, and tars with incompressible blobs."""
    import pyarrow
    import pyarrow.parquet

    from energon_grain.testing import make_blob_dataset

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


def measured(python: str, endpoint: str, **arguments: Any) -> dict[str, Any]:
    """Run it with an empty cache; `error` if it fails."""
    with tempfile.TemporaryDirectory() as empty:
        own = {"HF_ENDPOINT": endpoint, "XDG_CACHE_HOME": empty, "HF_HOME": empty, "HOME": empty}
        try:
            return ask("hub", "once", python=python, environment=own, **arguments)
        except RuntimeError as error:
            return {"error": str(error)}


def main(peer: str = "", rounds: int = 2) -> None:
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
        rows = [("ours", "lines", lines)]
        rows += [("ours", kind, [f"hf://datasets/team/data/{kind}"]) for kind in ("tars", "rows")]
        if peer:
            parquet = [f"hf://datasets/team/data/rows/{file}.parquet" for file in range(LINE_FILES)]
            rows += [("datasets", "lines", lines), ("datasets", "tars", tars), ("datasets", "rows", parquet)]
            rows += [("litdata", "rows", ["hf://datasets/team/data/rows"])]
        for _ in range(rounds):
            for name, kind, paths in sorted(rows, key=lambda row: row[1]):
                python = sys.executable if name == "ours" else peer
                found = measured(python, endpoint, name=name, kind=kind, paths=paths)
                server.stdin.write("\n")
                server.stdin.flush()
                requests = json.loads(server.stdout.readline())
                if "error" in found:
                    print(kind, name, found["error"])
                    continue
                rate = (found["samples"] - 100) / (found["all_s"] - found["first_s"])
                print(
                    f"{kind:5} {name:8} {rate:9,.0f} samples/s, first batch after {found['first_s']:.2f} s, "
                    f"{requests['hub']} requests to the Hub, {requests['cdn']} to the content network",
                    flush=True,
                )
        server.stdin.close()
        server.wait()


if __name__ == "__main__":
    program(main, once=once)
