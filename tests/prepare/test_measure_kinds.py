"""Columns of what is no prepared dataset: joins, Parquet files and tars that nobody prepared."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from arrays import write_array, write_group
from cli_runs import run
from metadatasets import write_v2
from table_forms import write_arrow, write_mds, write_tokens
from web_server import running_web_server

from energon_grain import WorkerConfig, get_loader, get_val_dataset, measure_dataset, open_columns
from energon_grain.errors import ConfigError, KeyNotFoundError
from energon_grain.formats.data_folder import look_again, open_folder
from energon_grain.prepare import prepare_dataset
from energon_grain.testing import write_tars

N = 30
HOST = WorkerConfig(rank=0, world_size=1, num_workers=0)
FUNCTIONS = """
def length(parts):
    return sum(len(part) for part in parts.values() if isinstance(part, bytes))

def parts_count(parts):
    return len(parts) + 2**60
"""


def tars(folder: Path, times: int = 1, samples: int = N) -> Path:
    write_tars(
        folder, [{"__key__": f"{n:03d}", "txt": "x" * n * times, "bin": b"12"} for n in range(samples)], shards=3
    )
    return folder


def prepared(folder: Path, times: int = 1, samples: int = N) -> Path:
    prepare_dataset(tars(folder, times, samples), split_ratio={"train": 1}, num_workers=0, crude=True)
    return folder


def join(folder: Path) -> tuple[str, str, str]:
    prepared(folder / "images")
    prepared(folder / "texts", 10, N - 5)
    members = {"images": {"path": "images"}, "texts": {"path": "texts", "nonmatch": "none"}}
    return str(write_v2(folder, train={"join": members})), "txt,texts.txt", "texts.txt"


def parquet(folder: Path) -> str:
    rows = pa.table({"txt": ["x" * n for n in range(N)], "bin": [b"12"] * N, "n": list(range(N))})
    (folder / "rows").mkdir()
    pq.write_table(rows, folder / "rows" / "rows.parquet", row_group_size=7)
    return str(folder / "rows")


KINDS: dict[str, Callable[[Path], tuple[str, str, str]]] = {
    "join": join,
    "folder of Parquet": lambda folder: (parquet(folder), "txt", "txt"),
    "Parquet file": lambda folder: (f"{parquet(folder)}/rows.parquet", "txt", "txt"),
    "pattern of Parquet": lambda folder: (f"{parquet(folder)}/*.parquet", "txt", "txt"),
    "tars": lambda folder: (str(tars(folder / "bare")), "txt", "txt"),
    "pattern of tars": lambda folder: (f"{tars(folder / 'bare')}/*.tar", "txt", "txt"),
    "prepared": lambda folder: (str(prepared(folder / "data")), "txt", "txt"),
}


@pytest.fixture(autouse=True)
def functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "of_kinds.py").write_text(FUNCTIONS)
    monkeypatch.syspath_prepend(tmp_path / "code")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delitem(sys.modules, "of_kinds", raising=False)
    return tmp_path / "code"


def keys(path: str, where: str) -> list[int]:
    """The numbers of the samples that a condition keeps."""
    dataset = get_val_dataset(path, split_part="train", worker_config=HOST, batch_size=None, where=where)
    with get_loader(dataset) as loader:
        return [int(sample["__key__"].rpartition("/")[2]) for sample in loader]


@pytest.mark.parametrize("kind", KINDS)
def test_all_kinds_are_measured_alike(kind: str, tmp_path: Path) -> None:
    path, parts, one = KINDS[kind](tmp_path)
    lengths = [n * 11 if kind == "join" and n < N - 5 else n for n in range(N)]
    report = measure_dataset(path, {"length": "of_kinds:length"}, parts=parts.split(","), num_workers=2)
    assert report.samples == N
    assert report.columns["length"].mean == pytest.approx(np.mean(lengths))
    measured = run("measure", path, "--column=count=of_kinds:parts_count", f"--parts={one}", "--num-workers=0")
    assert measured.exit_code == 0, measured.output
    assert keys(path, "length >= 20 and count > 1") == [n for n in range(N) if lengths[n] >= 20]
    columns = open_columns(path)
    assert (columns["length"].tolist(), [*columns.stored], columns.samples) == (lengths, ["length", "count"], N)
    assert not columns["length"].flags.writeable
    linted = run("lint", path, "--trust-module=of_kinds")
    assert linted.exit_code == 0, linted.output
    assert "The column" not in linted.output
    sys.modules["of_kinds"].parts_count = lambda parts: len(parts) + 2**60 + 8  # type: ignore[attr-defined]
    said = run("lint", path, "--trust-module=of_kinds").output  # as a float it is the same number
    assert f"The column 'count' says {2**60 + 1} of" in said
    assert f"says {2**60 + 9}; of {N} samples that were measured again {N} differ" in said
    assert f"--column count=of_kinds:parts_count --parts {one}" in said
    with pytest.raises(KeyNotFoundError, match="there is no column"):
        keys(path, "lengths > 1")


def test_rows_of_a_join_have_the_parts_of_all_members(tmp_path: Path) -> None:
    prepared(tmp_path / "images", samples=6)
    prepared(tmp_path / "texts", 2, 6)
    write_array(tmp_path / "vectors.zarr", np.arange(12.0).reshape(6, 2))
    members = {"images": {"path": "images"}, "captions": {"path": "texts"}, "vectors": {"array": "vectors.zarr"}}
    path = write_v2(tmp_path, train={"join": members})
    seen: list[dict[str, object]] = []
    measure_dataset(path, {"number": lambda parts: seen.append(parts) or len(seen)}, num_workers=0)
    assert set(seen[3]) == {"txt", "bin", "captions.txt", "captions.bin", "vectors"}
    assert (seen[3]["captions.txt"], np.asarray(seen[3]["vectors"]).tolist()) == (b"x" * 6, [6.0, 7.0])
    with pytest.raises(ConfigError, match=r"has no part 'captions\.jpg'; there are txt, bin, captions.txt"):
        measure_dataset(path, {"number": len}, parts=["captions.jpg"])
    (folder,) = Path(f"{path}.cache").glob(".join_*/columns.json")
    assert folder.parent.joinpath("columns").is_dir()
    measure_dataset(tmp_path / "texts", {"words": len})
    with pytest.raises(ConfigError, match=r"has a column 'captions\.words' of its own; call the new one otherwise"):
        measure_dataset(path, {"captions.words": len})
    measure_dataset(path, attach={"rank": np.arange(6)})


def test_what_was_measured_of_a_join_outlives_its_damaged_rows(tmp_path: Path) -> None:
    path, _, _ = join(tmp_path)
    measure_dataset(path, attach={"rank": np.arange(N)})
    (rows,) = Path(f"{path}.cache").glob(".join_*/*.npy")
    damaged = bytearray(rows.read_bytes())
    damaged[-8] ^= 1
    rows.write_bytes(damaged)
    assert run("prepare", path).exit_code == 0
    assert keys(path, "rank >= 27") == [27, 28, 29]


def test_which_join_is_measured(tmp_path: Path) -> None:
    for times, name in enumerate(("a", "b", "c")):
        prepared(tmp_path / name, times, 6)
    pairs = [{"join": [{"path": "a"}, {"path": other}]} for other in ("b", "c")]
    of_train = [{"path": name, "split_part": "train"} for name in ("a", "b")]
    two = write_v2(tmp_path, "two.yaml", train={"concat": pairs}, val={"join": of_train})
    with pytest.raises(ConfigError, match="has 2 joins in the split 'train'"):
        measure_dataset(two, {"n": len})
    assert measure_dataset(two, {"n": len}, split_part="val", num_workers=0).samples == 6
    none = write_v2(tmp_path, "none.yaml", train={"path": "a"})
    with pytest.raises(ConfigError, match=r"has no joins in the split 'train'.* measure datasets by their paths"):
        measure_dataset(none, {"n": len})


def test_where_columns_of_parquet_files_lie(tmp_path: Path) -> None:
    folder = parquet(tmp_path)
    measure_dataset(folder, {"length": "of_kinds:length"}, parts=["txt"], num_workers=0)
    measure_dataset(f"{folder}/rows.parquet", {"other": "of_kinds:length"}, num_workers=0)
    assert sorted(os.listdir(folder)) == [".columns", "rows.parquet", "rows.parquet.columns"]
    assert keys(folder, "length >= 27") == [27, 28, 29]
    with pytest.raises(ConfigError, match="has a column 'n' of its own"):
        measure_dataset(folder, {"n": len})
    assert "length" in run("info", folder).output
    pattern = f"{folder}/*.parquet"
    measure_dataset(pattern, {"length": "of_kinds:length"}, num_workers=0)
    assert len([*(tmp_path / "cache").rglob("columns.json")]) == 1
    rows = pa.table({"txt": ["y"] * N, "bin": [b"12"] * N, "n": list(range(N))})
    pq.write_table(rows, f"{folder}/rows.parquet")  # other rows
    for path in (pattern, folder):
        with pytest.raises(KeyNotFoundError, match=r"'length' is of samples that are not here any more; make it again"):
            keys(path, "length > 1")
    with pytest.raises(KeyNotFoundError, match="there is no column of numbers 'lengths'"):
        keys(folder, "lengths > 1")
    assert open_columns(folder)["n"].tolist() == [*range(N)]
    assert (open_columns(folder).stale, [*open_columns(folder)]) == (("length",), ["bytes", "n"])


def test_columns_of_members_of_a_join_and_of_what_is_not_measured(tmp_path: Path) -> None:
    path, _, _ = join(tmp_path)
    rows = open_columns(path)
    assert rows["bytes.txt"].tolist() == [*range(N)]
    assert rows["texts.bytes.txt"].tolist() == [10 * n for n in range(N - 5)] + [0] * 5
    assert sum(map(len, rows.blocks("texts.bytes.txt"))) == N
    with pytest.raises(ConfigError, match="there is no split 'val'"):
        open_columns(path, split_part="val")
    group = open_columns(write_group(tmp_path / "group", score=np.arange(6.0), vector=np.ones((6, 2))))
    assert (group["score"].tolist(), [*group.stored]) == ([*range(6)], [])
    documents = open_columns(f"{write_tokens(tmp_path / 'corpus', [[1, 2, 3], [4], [5, 6]])}.bin")
    assert documents["tokens"].tolist() == [3, 1, 2]
    tables = open_columns(write_mds(tmp_path / "mds", {"n": [3, 1, 2], "text": ["a", "b", "c"]}))
    assert tables["n"].tolist() == [3, 1, 2]
    assert open_columns(write_arrow(tmp_path / "x.arrow", {"n": [3, None, 2]}))["n"][::2].tolist() == [3, 2]


def test_where_nothing_can_be_written_beside_columns_are_kept_for_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(prepared(tmp_path / "data"), tmp_path / "web" / "data")
    (tmp_path / "web" / "x.jsonl").write_text("".join(f'{{"n": {n}}}\n' for n in range(10, 10 + N)))
    (tmp_path / "web" / "y.jsonl").write_text("".join(f'{{"n": {n}}}\n' for n in range(50, 50 + N)))
    with running_web_server(tmp_path / "web") as server:
        for name, parts in (("data", ["txt"]), ("x.jsonl", None)):
            path = f"{server.url}/{name}"
            report = measure_dataset(path, {"length": "of_kinds:length"}, parts=parts, num_workers=0)
            assert (
                "for this machine alone: on every other host of a run they are to be measured, too" in report.notes[0]
            )
            assert f"{tmp_path}/cache" in report.notes[0]
            columns = open_columns(path)
            assert columns["length"].tolist() == (([*range(N)]) if name == "data" else [10] * N)
        assert keys(f"{server.url}/data", "length >= 27") == [27, 28, 29]
        # Lines of the same lengths have the same content id, and are others all the same.
        with pytest.raises(KeyNotFoundError, match="there is no column 'length'"):
            open_columns(f"{server.url}/y.jsonl")["length"]
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "of another host"))
        with pytest.raises(KeyNotFoundError, match=r"`energon-grain measure .*so each machine keeps .* on every host"):
            keys(f"{server.url}/data", "length >= 27")
    assert {path.name for path in (tmp_path / "web").iterdir()} == {"data", "x.jsonl", "y.jsonl"}


def test_columns_of_this_machine_stand_before_those_beside_the_data(tmp_path: Path) -> None:
    data = prepared(tmp_path / "web")
    measure_dataset(data, {"length": "of_kinds:length", "count": "of_kinds:parts_count"}, num_workers=0)
    with running_web_server(tmp_path) as server:
        url = f"{server.url}/web"
        of_owner = open_columns(url)
        assert of_owner["length"].tolist() == [n + 2 for n in range(N)]
        measure_dataset(url, {"length": "of_kinds:length"}, parts=["txt"], num_workers=0)
        assert open_columns(url)["length"].tolist() == [*range(N)]
        assert open_columns(url)["count"].tolist() == of_owner["count"].tolist()
        tars(data, samples=6)
        prepare_dataset(data, force_overwrite=True, split_ratio={"train": 1}, num_workers=0, crude=True)
        look_again(open_folder(url))
        assert open_columns(url).stale == ("length", "count")


def test_columns_stay_when_tars_are_indexed_again(tmp_path: Path) -> None:
    path = str(tars(tmp_path / "bare"))
    measure_dataset(path, {"length": "of_kinds:length"}, parts=["txt"], num_workers=0)
    for tar in Path(path).glob("*.tar"):
        os.utime(tar, (1, 1))
    assert keys(path, "length >= 25") == [25, 26, 27, 28, 29]
    write_tars(Path(path), [{"__key__": "new", "txt": "x"}], name="zzz_{}.tar")
    with pytest.raises(KeyNotFoundError, match=r"is of samples that are not here any more; make it again"):
        keys(path, "length >= 25")
