"""Measure the rate of reading Parquet, beside Grain, Hugging Face's streaming and LitData, on the same files.

    python -m benchmarks.parquet --peer .venv-peers/bin/python

The data: pictures of 224 x 224, decoded to RGB bytes; the same pictures, not decoded; and texts of 1 KB. All programs
deliver shuffled batches of 32: ours shuffles over all row groups in use (48 x 100 rows), Grain and `datasets` through
windows of 1,000 samples, and LitData (which needs Polars) file by file, by an index that it builds first. Each program
runs in a process of its own, and the programs take turns. A rate is samples per second of wall time over some seconds
after the first batches; beside it are samples per second of processor time, which a busy machine affects less.
"""

from __future__ import annotations

import io
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.child import ask, program
from benchmarks.steady import steady

FILES, ROWS, GROUP = 8, 1500, 100
KINDS = ("pictures", "bytes", "texts")


def write(folder: Path) -> None:
    """Write eight files of 1,500 rows of pictures, and eight files of texts."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from PIL import Image

    rng = np.random.default_rng(0)
    features = {"image": {"_type": "Image"}, "label": {"dtype": "int64", "_type": "Value"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    for number in range(FILES):
        pictures: list[dict[str, Any]] = []
        for row in range(ROWS):
            file = io.BytesIO()
            rough = rng.integers(0, 255, (14, 14, 3), np.uint8)
            Image.fromarray(rough).resize((224, 224), Image.Resampling.BICUBIC).save(file, "JPEG", quality=92)
            pictures.append({"bytes": file.getvalue(), "path": f"{row}.jpg"})
        labels = rng.integers(0, 1000, ROWS)
        (folder / "pictures").mkdir(exist_ok=True)
        (folder / "texts").mkdir(exist_ok=True)
        table = pa.table({"image": pictures, "label": labels}).replace_schema_metadata(metadata)
        pq.write_table(table, folder / "pictures" / f"train-{number:05d}.parquet", row_group_size=GROUP)
        texts = [rng.bytes(500).hex() for _ in range(ROWS * 4)]
        table = pa.table({"text": texts, "label": np.arange(ROWS * 4)})
        pq.write_table(table, folder / "texts" / f"train-{number:05d}.parquet", row_group_size=1000)


def ours(kind: str, folder: Path, workers: int) -> Iterator[Any]:
    """Yield batches without end."""
    from energon_grain import DefaultTaskEncoder, SampleDecoder, WorkerConfig, get_savable_loader, get_train_dataset

    class Encoder(DefaultTaskEncoder):
        decoder = None if kind == "bytes" else SampleDecoder(image_decode="rgb8")

    dataset = get_train_dataset(
        folder,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=workers),
        batch_size=32,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        task_encoder=Encoder(),
    )
    with get_savable_loader(dataset) as loader:
        yield from loader


def grain(kind: str, folder: Path, workers: int) -> Iterator[Any]:
    """Do the same with Grain: a window shuffle, and decoding in its only thread."""
    from grain.experimental import ParquetIterDataset, WindowShuffleIterDataset
    from PIL import Image

    def decode(row: Any) -> Any:
        with Image.open(io.BytesIO(row["image"]["bytes"])) as image:
            return {"image": np.asarray(image.convert("RGB")), "label": row["label"]}

    files = [str(path) for path in sorted(folder.glob("*.parquet"))]
    dataset = WindowShuffleIterDataset(ParquetIterDataset(files), window_size=1000, seed=1)
    dataset = dataset.map(decode) if kind == "pictures" else dataset
    dataset = dataset.batch(32, batch_fn=None if kind == "pictures" else list)
    while True:
        yield from dataset


def streaming(kind: str, folder: Path, workers: int) -> Iterator[Any]:
    """Do the same with Hugging Face's `datasets`."""
    from datasets import Image, load_dataset

    files = [str(path) for path in sorted(folder.glob("*.parquet"))]
    dataset = load_dataset("parquet", data_files=files, split="train", streaming=True)
    if kind != "texts":
        dataset = dataset.cast_column("image", Image(decode=kind == "pictures"))
    dataset = dataset.shuffle(seed=1, buffer_size=1000)
    while True:
        batch: list[Any] = []
        for row in dataset:
            batch.append({**row, "image": np.asarray(row["image"])} if kind == "pictures" else row)
            if len(batch) == 32:
                yield np.stack([each["image"] for each in batch]) if kind == "pictures" else batch
                batch = []


def litdata(kind: str, folder: Path, workers: int) -> Iterator[Any]:
    """Do the same with LitData, in the main process."""
    from litdata import StreamingDataLoader, StreamingDataset, index_parquet_dataset
    from litdata.streaming.item_loader import ParquetLoader
    from PIL import Image

    def decode(row: Any) -> Any:
        with Image.open(io.BytesIO(row["image"]["bytes"])) as image:
            return {"image": np.asarray(image.convert("RGB")), "label": row["label"]}

    def collate(rows: list[Any]) -> Any:
        if kind != "pictures":
            return rows
        decoded = [decode(row) for row in rows]
        return np.stack([row["image"] for row in decoded]), [row["label"] for row in decoded]

    index_parquet_dataset(str(folder))
    dataset = StreamingDataset(str(folder), item_loader=ParquetLoader(), shuffle=True, seed=1)
    loader = StreamingDataLoader(dataset, batch_size=32, num_workers=0, collate_fn=collate)
    while True:
        yield from loader


def measure(name: str, kind: str, folder: str, workers: int, seconds: float) -> dict[str, float]:
    """Measure the rates of a program."""
    programs = {"ours": ours, "grain": grain, "streaming": streaming, "litdata": litdata}
    return steady(lambda: programs[name](kind, Path(folder), workers), lambda _: (32, 0), warmup_s=1, seconds=seconds)


def main(peer: str = sys.executable, rounds: int = 3, seconds: float = 4.0) -> None:
    contenders = [("ours", 0), ("ours", 2), ("grain", 0), ("streaming", 0), ("litdata", 0)]
    with tempfile.TemporaryDirectory() as made:
        write(Path(made))
        for kind in KINDS:
            folder = str(Path(made, "texts" if kind == "texts" else "pictures"))
            rates: dict[tuple[str, int], list[dict[str, float]]] = {}
            for _ in range(rounds):
                for name, workers in contenders:
                    arguments = {"name": name, "kind": kind, "folder": folder, "workers": workers, "seconds": seconds}
                    try:
                        found = ask(
                            "parquet", "measure", python=sys.executable if name == "ours" else peer, **arguments
                        )
                    except RuntimeError as error:
                        print(f"{name}: {str(error).strip().splitlines()[-1:]}")
                    else:
                        rates.setdefault((name, workers), []).append(found)
            for (name, workers), each in rates.items():
                wall, cpu = (
                    statistics.median(rate[which] for rate in each) for which in ("samples_per_s", "samples_per_cpu_s")
                )
                threads = f", {workers} workers" if name == "ours" else ""
                print(f"{kind:9} {name}{threads}: {wall:,.0f} samples/s, {cpu:,.0f} per second of processor time")


if __name__ == "__main__":
    program(main, measure=measure)
