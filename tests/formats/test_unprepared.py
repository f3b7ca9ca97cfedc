"""What is said of paths and URLs that are no prepared dataset."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from arrays import write_group
from cli_runs import run
from object_server import Bucket, Fault
from web_server import running_web_server

from energon_grain import StorageSettings, Stream, get_train_dataset, use_storage
from energon_grain.errors import DatasetNotFoundError
from energon_grain.formats.data_folder import naming, open_folder
from energon_grain.formats.nv_meta import not_prepared, read_info
from energon_grain.testing import make_text_dataset


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Shards that were never prepared, a file, an array."""
    make_text_dataset(tmp_path / "data" / "bare", n=4, shards=1)
    shutil.rmtree(tmp_path / "data" / "bare" / ".nv-meta")
    (tmp_path / "data" / "records").mkdir()
    (tmp_path / "data" / "records" / "x.array_record").write_bytes(b"x")
    (tmp_path / "data" / "file.tar").write_bytes(b"x")
    (tmp_path / "data" / "mixture.yaml").write_bytes(b"x")
    write_group(tmp_path / "data" / "rows", a=np.zeros((3, 2)))
    return tmp_path / "data"


SAID = {
    "bare": "not a prepared dataset (no .nv-meta/.info.json); run `energon-grain prepare {at}`",
    "records": "not a prepared dataset (no .nv-meta/.info.json); run `energon-grain prepare {at} --records msgpack|tf_"
    "example|raw`",
    "file.tar": "is a file; a WebDataset is a folder with tar files that was prepared",
    "mixture.yaml": "is a metadataset, which get_train_dataset and its like take; one of its datasets is expected here",
    "rows": "is an array, which is read as it is: it has no shards, indices or splits",
}


@pytest.mark.parametrize("name", SAID)
def test_a_url_is_told_from_a_path_by_nothing_else(folder: Path, bucket: Bucket, name: str) -> None:
    url = bucket.upload(folder, "sets")
    for at in (f"{folder}/{name}", f"{url}/{name}"):
        assert not_prepared(at) == f"{at}: {SAID[name].format(at=at)}"
    opened = open_folder(f"{url}/{name}")
    with pytest.raises(DatasetNotFoundError) as caught, naming(opened), naming(opened):
        read_info(opened.local)
    assert str(caught.value) == not_prepared(opened.location)


def test_nothing(folder: Path, bucket: Bucket) -> None:
    url = bucket.upload(folder, "sets")
    assert not_prepared(f"{folder}/bear") == f"{folder}/bear: no such file or folder"
    (folder / "bare" / ".nv-meta").mkdir()
    assert not_prepared(f"{folder}/bare/.nv-meta").endswith(
        f"belongs to the dataset in {folder}/bare; give that folder"
    )
    for name in ("bear", "bar", "bear.zarr"):
        assert not_prepared(f"{url}/{name}") == f"{url}/{name}: nothing lies below that URL"


def test_a_list_that_takes_too_long_is_done_without(folder: Path, bucket: Bucket) -> None:
    url = bucket.upload(folder, "sets")
    bucket.server.inject(Fault("status", times=None, match="list-type"))
    assert not_prepared(f"{url}/bare").endswith(f"run `energon-grain prepare {url}/bare`")
    assert len(bucket.server.requests("list-type")) == 1


def test_of_a_web_server_prepare_is_not_advised(folder: Path, tmp_path: Path) -> None:
    use_storage(StorageSettings(cache_dir=str(tmp_path / "cache")))
    with running_web_server(folder) as server:
        said = not_prepared(f"{server.url}/bare")
        assert said == (
            f"{server.url}/bare: no .nv-meta/.info.json is served there: check the URL, or prepare the folder on its "
            "own machine"
        )


@pytest.mark.parametrize(("ending", "command"), [("gz", "gzip -dk"), ("zst", "zstd -d")])
def test_compressed_lines(tmp_path: Path, bucket: Bucket, ending: str, command: str) -> None:
    file = tmp_path / f"my lines.jsonl.{ending}"
    file.write_bytes(b"\x1f\x8b")
    url = bucket.upload(tmp_path, "lines") + f"/{file.name}"
    usual: dict[str, Any] = {"batch_size": 1, "shuffle_buffer_size": None, "max_samples_per_sequence": None}
    unpack = f"unpack it by `{command} 'NAME'` into a .jsonl file"
    for at, name, copied in ((file, str(file), ""), (url, file.name, "copy it to this machine, and ")):
        said = re.escape(copied + unpack.replace("NAME", name))
        with pytest.raises(DatasetNotFoundError, match=f"is compressed as a whole, .* by itself; {said}"):
            Stream.of(get_train_dataset(at, **usual))
    for command_line in ("prepare", "info"):
        done = run(command_line, file)
        assert "unpack it by" in str(done.exception)
