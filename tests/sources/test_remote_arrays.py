"""Arrays in a real S3 server: the rows of local ones, few requests, and failures that pass."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from arrays import DRIVERS, numbered, write_array, write_group
from object_server import Bucket, Fault
from patience import PATIENCE_S

from energon_grain import StorageSettings, use_storage
from energon_grain.errors import ConfigError, DatasetNotFoundError, ReadError
from energon_grain.formats.array_folder import is_array_folder
from energon_grain.sources.arrays import ArrayGroupSource, ArraySource

ROWS = 50


@pytest.fixture(autouse=True)
def _quick() -> None:
    use_storage(StorageSettings(first_pause_s=0.01, longest_pause_s=0.05, attempts=4))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_group(tmp_path / "g.zarr", "zarr3", image=numbered(ROWS, 3, 2), label=np.arange(ROWS))


def rows(source: ArrayGroupSource, indices: list[int]) -> dict[str, Any]:
    columns = source.read(np.array(indices)).columns
    return {name: np.stack(cast("list[Any]", column)).tolist() for name, column in columns.items()}


@pytest.mark.parametrize("driver", DRIVERS)
def test_rows_of_local_ones(tmp_path: Path, bucket: Bucket, driver: str) -> None:
    here = write_group(tmp_path / "g.zarr", driver, image=numbered(ROWS, 3, 2), label=np.arange(ROWS))
    local, remote = ArrayGroupSource(here), ArrayGroupSource(f"{bucket.upload(here, 'data/g.zarr')}/")
    assert (remote.path, remote.shard, remote.part_names) == (f"{bucket.url}/data/g.zarr", "g.zarr", local.part_names)
    assert remote.content_id == local.content_id
    wanted = [49, 3, 3, 20, 21, 22]
    assert rows(remote, wanted) == rows(local, wanted)
    assert remote.locate(9).key == "9"


def test_chunks_are_asked_for_once(folder: Path, bucket: Bucket) -> None:
    url = bucket.upload(folder, "g.zarr")
    source = ArrayGroupSource(url, parts={"image"})
    bucket.server.reset()
    copy = pickle.loads(pickle.dumps(source))
    assert len(copy) == ROWS
    assert not bucket.server.requests()  # a copy knows what the array is
    for wanted in ([0, 1, 8, 9, 20], [20, 2, 9]):
        rows(copy, wanted)
    asked = [request.path for request in bucket.server.requests("/c/")]
    assert sorted(path.partition("/image/")[2] for path in asked) == ["c/0/0/0", "c/1/0/0", "c/2/0/0"]


def test_groups_that_name_what_lies_in_them(tmp_path: Path, folder: Path, bucket: Bucket) -> None:
    """No list of all chunks is needed then."""
    old = write_group(tmp_path / "old.zarr", "zarr", image=numbered(ROWS, 2))
    (old / ".zmetadata").write_text('{"zarr_consolidated_format": 1, "metadata": {".zgroup": {}, "image/.zarray": {}}}')
    metadata = json.loads((folder / "zarr.json").read_text())
    metadata["consolidated_metadata"] = {"kind": "inline", "metadata": {"image": {}, "label": {}, "more/deep": {}}}
    (folder / "zarr.json").write_text(json.dumps(metadata))
    for group, names in ((old, ("image",)), (folder, ("image", "label"))):
        url = bucket.upload(group, group.name)
        bucket.server.reset()
        assert ArrayGroupSource(url).part_names == names
        assert not bucket.server.requests("list-type")


def test_what_lies_there(folder: Path, bucket: Bucket) -> None:
    url = bucket.upload(folder, "g.zarr")
    assert is_array_folder(url)
    assert is_array_folder(f"{url}/label")
    assert not is_array_folder(f"{url}/label/c")
    with pytest.raises(DatasetNotFoundError, match="array or group, but there is none"):
        ArrayGroupSource(f"{bucket.url}/none.zarr")
    with pytest.raises(DatasetNotFoundError, match="is a group; name one of the arrays"):
        ArraySource(url)
    bucket.put("g.zarr/short/zarr.json", (folder / "label" / "zarr.json").read_bytes().replace(b"[50]", b"[9]"))
    with pytest.raises(ConfigError, match="image has 50, label has 50, short has 9"):
        ArrayGroupSource(url)


@pytest.mark.parametrize(
    "fault",
    [
        Fault("status", status=503, times=3, match="/c/"),
        Fault("status", status=500, times=3, match="/c/"),
        Fault("close", times=3, match="/c/"),
        Fault("close", sent=0.5, times=3, match="/c/"),
        Fault("reset", sent=0.5, times=2, match="/c/"),
        Fault("status", status=503, times=3, match="zarr.json"),
    ],
    ids=str,
)
def test_failures_that_pass(folder: Path, bucket: Bucket, fault: Fault) -> None:
    url = bucket.upload(folder, "g.zarr")
    bucket.server.inject(fault)
    assert rows(ArrayGroupSource(url, parts={"image"}), [0, 9])["image"] == numbered(ROWS, 3, 2)[[0, 9]].tolist()


def test_failures_that_stay(folder: Path, bucket: Bucket) -> None:
    url = bucket.upload(folder, "g.zarr")
    source = ArrayGroupSource(url, parts={"label"})
    bucket.server.inject(Fault("status", status=503, times=None, match="/c/1"))
    assert rows(source, [1, 2]) == {"label": [1, 2]}
    with pytest.raises(ReadError, match=r"g.zarr/label: rows 1 to 8: .*label/c/1"):
        rows(source, [8, 1])
    assert len(bucket.server.requests("/c/1")) == 4
    bucket.server.inject(Fault("status", status=503, times=None, match="image"))
    with pytest.raises(ReadError, match=r"g\.zarr/image"):
        ArrayGroupSource(url)
    source.close()
    bucket.server.inject(Fault("status", status=503, times=None, match="label/zarr.json"))
    with pytest.raises(ReadError, match=r"g\.zarr/label: TensorStore cannot open it: .*attempts"):
        rows(source, [8])


STALLED = """
import os, sys
import numpy as np
from energon_grain.sources.arrays import ArraySource
from energon_grain.storage.settings import StorageSettings, use_storage

use_storage(StorageSettings(timeout_s=1, first_pause_s=0.01, longest_pause_s=0.05))
source = ArraySource(sys.argv[1])
print(source.read(np.array([1, 20]))[1].tolist(), flush=True)
os._exit(0)
"""


def test_requests_that_stall(tmp_path: Path, bucket: Bucket) -> None:
    """In a process of its own, since TensorStore learns the time-out once."""
    url = bucket.upload(write_array(tmp_path / "a", numbered(ROWS, 2), chunk=(7, 2)), "a")
    bucket.server.inject(Fault("stall", sent=0.5, match="/c/0"))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TENSORSTORE_CURL")}
    done = subprocess.run(
        [sys.executable, "-c", STALLED, url],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env=environment,
    )
    assert done.stdout == "[40.0, 41.0]\n", done.stderr
