"""Some samples of every kind of data (a split part, a subset, `where`): their stream, and the ids of what is served.

The data are written apart from the golden data, so that these stay as they are. Tables are kept beside the recordings,
since other versions of pyarrow write other bytes.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import table_forms
from golden import golden_data, streams
from golden.configurations import Bench

import energon_grain
from energon_grain import open_columns
from energon_grain.conversion import convert_dataset
from energon_grain.prepare import prepare_dataset
from energon_grain.testing import write_tars

TABLES = Path(__file__).parent / "recorded" / "tables"
"""Two Parquet files with row groups of 7 and two Arrow files: a number `n` (0 to 79) and `text` of each row."""
_SPLIT = "train:0.7,val:0.3"
VIEWS: dict[str, tuple[str, dict[str, Any]]] = {
    "tars": ("tars", {"where": "bytes.txt > 7 and bytes.json > 0", "subset": [3, 70]}),
    "tars, excludes": ("excluding", {"where": "bytes.txt > 6"}),
    "bare tars": ("bare", {"where": "bytes.txt > 6", "split_ratio": _SPLIT}),
    "ArrayRecord": ("records", {"where": "bytes.txt > 7", "subset": ["10%", "90%"]}),
    "JSONL": ("x.jsonl", {"where": "bytes % 2 == 1", "subset": [1, 60], "split_ratio": _SPLIT}),
    "Parquet": ("parquet", {"where": "n % 3 != 1 and bytes > 0", "subset": [2, "end"], "split_ratio": _SPLIT}),
    "Arrow": ("arrow", {"where": "n % 3 != 1", "split_ratio": _SPLIT}),
    "Arrow, subset": ("arrow", {"subset": [2, 70]}),
    "MDS": ("mds", {"where": "n > 10 and n % 5 != 0", "split_ratio": _SPLIT}),
    "arrays": ("x.zarr", {"where": "label > 2 and bytes.image > 0", "subset": ["5%", "95%"]}),
    "tokens": ("tokens.bin", {"where": "tokens > 3", "split_ratio": _SPLIT}),
    "join": ("join.yaml", {}),
}
"""For each the dataset, and which of its samples."""


def views() -> dict[str, Any]:
    """Of each view what the stream delivers, what the manifest says of its leaves, and the ids of its columns."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            _write(Path())
            return {name: _view(path, options) for name, (path, options) in VIEWS.items()}
        finally:
            os.chdir(before)


def _view(path: str, options: dict[str, Any]) -> dict[str, Any]:
    bench = Bench(energon_grain, 0, 1)
    source = open_columns(path).source
    with energon_grain.get_savable_loader(bench.train(path, "Rows", **options)) as loader:
        return {
            "stream": streams.record(loader, 100),
            "leaves": loader.config()["leaves"],
            "columns": {"": source.content_id, **{name: source.column_id(name) for name in source.columns}},
        }


def _write(root: Path) -> None:
    samples = [
        {"__key__": f"{i:03d}", "txt": f"text {i * i}", **({"json": {"n": i}} if i % 4 else {})} for i in range(80)
    ]
    for name in ("tars", "excluding", "bare"):
        write_tars(root / name, samples, shards=4)
        if name != "bare":
            prepare_dataset(root / name, split_ratio={"train": 1}, num_workers=0, crude=True)
    shards = sorted(path.name for path in (root / "excluding").glob("*.tar"))
    chosen = [shards[2], shards[0], shards[3]]
    (root / "excluding" / ".nv-meta" / "split.yaml").write_text(
        f"split_parts: {{train: [{', '.join(chosen)}]}}\nexclude: [{shards[0]}/005, {shards[3]}/072, {shards[1]}/030]\n"
    )
    convert_dataset(root / "tars", root / "records")
    (root / "x.jsonl").write_bytes(b"".join(b'{"i": %d, "text": "%s"}\n' % (i, b"x" * (i % 7)) for i in range(90)))
    for kind in ("parquet", "arrow"):
        shutil.copytree(TABLES / kind, root / kind)
    table_forms.write_mds(root / "mds", {"n": list(range(80)), "text": [f"text {i}" for i in range(80)]})
    golden_data.write_digits(root / "x.zarr")
    documents = [[j * i % 1000 for j in range(i * 7 % 11)] for i in range(80)]
    table_forms.write_tokens(root / "tokens", documents, dtype="<i4", sequence=4)
    write_tars(root / "other", [{"__key__": each["__key__"], "bin": b"%d" % i} for i, each in enumerate(samples)][::-2])
    prepare_dataset(root / "other", split_ratio={"train": 1}, num_workers=0, crude=True)
    (root / "join.yaml").write_text(
        """
__module__: megatron.energon
__class__: MetadatasetV2
splits:
  train:
    join:
      - {path: tars}
      - {path: other, nonmatch: none}
      - {array: x.zarr/label, field: label, nonmatch: none}
    where: bytes.txt > 6 and other.bytes == 0 and label < 8
    subset: {range: [4, 60]}
"""
    )
