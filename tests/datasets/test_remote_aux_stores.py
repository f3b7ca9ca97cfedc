"""`aux:` in a bucket, from the metadataset to what cookers get."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from forking import may_fork
from metadatasets import v2
from object_server import Bucket

from energon_grain import (
    ConfigError,
    Cooker,
    DatasetNotFoundError,
    DefaultTaskEncoder,
    KeyNotFoundError,
    ObjectFileStore,
    Stream,
    WebdatasetFileStore,
    WorkerConfig,
    cooker,
    get_train_dataset,
    get_val_dataset,
    stateless,
)
from energon_grain.testing import make_crude_dataset

COUNT = 30


@pytest.fixture
def url(bucket: Bucket, tmp_path: Path) -> str:
    """A JSONL file, and what its lines name: tars and plain files."""
    root = tmp_path / "data"
    make_crude_dataset(root / "media", n=COUNT, shards=3)
    (root / "files").mkdir()
    for number in range(COUNT):
        (root / "files" / f"{number}.json").write_text(f"[{number}]")
    (root / "main.jsonl").write_text("".join(f'{{"n": {number}}}\n' for number in range(COUNT)))
    url = bucket.upload(root)
    put_metadataset(bucket, {"media": "media", "files": "filesystem://files"})
    return url


def put_metadataset(bucket: Bucket, aux: dict[str, Any]) -> None:
    leaf = {"path": "main.jsonl", "aux": aux}
    bucket.put("meta.yaml", json.dumps(v2(train=leaf)).encode())


def opened(url: str) -> Any:
    """The stores that a cooker gets for the first sample."""

    class Giving(DefaultTaskEncoder):
        cookers = (Cooker(lambda sample, **stores: stores),)
        decoder = None

    config = WorkerConfig(0, 1, 0)
    path = f"{url}/meta.yaml"
    return next(
        iter(get_val_dataset(path, split_part="train", batch_size=None, worker_config=config, task_encoder=Giving()))
    )


def test_every_form(bucket: Bucket, url: str) -> None:
    put_metadataset(
        bucket,
        {
            "a": "media",
            "b": {"path": "./media"},
            "c": f"{url}/media",
            "d": "filesystem://files",
            "e": {"fs_path": "media/../files"},
            "f": f"filesystem+{url}/files",
            "g": "main.jsonl",
        },
    )
    stores = opened(url)
    assert {type(stores[name]) for name in "abc"} == {WebdatasetFileStore}
    assert {type(stores[name]) for name in "def"} == {ObjectFileStore}
    assert {stores[name].get_path() for name in "abc"} == {f"{url}/media"}
    assert {stores[name].get_path() for name in "def"} == {f"{url}/files"}
    assert all(json.loads(stores[name].get("000003.json"))["number"] == 3 for name in "abc")
    assert all(stores[name].get("3.json") == b"[3]" for name in "def")
    assert stores["g"].get("3.json") == b'{"n": 3}\n'
    for name, store in stores.items():
        missing = rf"^{url}/(media|files|main\.jsonl): there is no (file |object )?'none.json'"
        with pytest.raises(KeyNotFoundError, match=missing):
            store.get("none.json")
        assert "none.json" not in store, name


def test_what_is_refused(bucket: Bucket, url: str) -> None:
    for aux, said in (("nothing", "nothing lies below"), ("files", "not a prepared"), ("meta.yaml", "is a file")):
        put_metadataset(bucket, {"media": aux})
        with pytest.raises(DatasetNotFoundError, match=rf"meta\.yaml: .*aux\.media: {url}/{aux}: {said}"):
            opened(url)
    put_metadataset(bucket, {"media": "ftp://host/media"})
    with pytest.raises(ConfigError, match=r"meta\.yaml: \$\.splits\.train\.aux\.media: ftp://host/media: "):
        opened(url)


@stateless
@cooker(need_primary=True)
def cook(sample: Any, primary: Any, media: Any, files: Any) -> Any:
    number = sample["json"]["n"]
    own, there, file = primary.get(".json"), media.get(f"{number:06d}.json"), files.get(f"{number}.json")
    return {**sample, "found": (own["n"], there["number"], file[0])}


class Cooked(DefaultTaskEncoder):
    cookers = (Cooker(cook),)


@may_fork
@pytest.mark.parametrize(("workers", "kind"), [(0, "thread"), (2, "thread"), (2, "process")])
def test_cookers_read_from_them(url: str, workers: int, kind: Any, open_cooked: Callable[..., Stream]) -> None:
    with open_cooked(f"{url}/meta.yaml", workers, kind) as stream:
        found = [next(stream)["found"] for _ in range(COUNT)]
    assert sorted(found) == [(number, number, number) for number in range(COUNT)]


@pytest.fixture
def open_cooked() -> Callable[..., Stream]:
    def make(path: str, workers: int, kind: Any) -> Stream:
        config = WorkerConfig(0, 1, workers, worker_type=kind)
        options: dict[str, Any] = {"shuffle_buffer_size": None, "max_samples_per_sequence": None}
        return Stream.of(
            get_train_dataset(path, worker_config=config, batch_size=None, task_encoder=Cooked(), **options)
        )

    return make
