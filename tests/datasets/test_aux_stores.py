"""`aux:` of a metadataset, from the file to open stores."""

from __future__ import annotations

from pathlib import Path

import pytest
from metadatasets import write_v2

from energon_grain.datasets.aux_stores import check_aux_has_a_cooker, open_aux, open_primary
from energon_grain.datasets.file_store_views import DecodeFileStore
from energon_grain.datasets.leaf import LeafDataset
from energon_grain.errors import ConfigError, DatasetNotFoundError
from energon_grain.metadataset.documents import load_metadataset
from energon_grain.metadataset.flat import leaves_of
from energon_grain.samples.types import TextSample
from energon_grain.sources.file_store import SystemFileStore
from energon_grain.sources.webdataset_file_store import WebdatasetFileStore
from energon_grain.testing import make_crude_dataset
from energon_grain.transforms.decode import SampleDecoder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_crude_dataset(tmp_path / "main", n=2, shards=1)
    make_crude_dataset(tmp_path / "media", n=4, shards=2)
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a.json").write_text("[1]")
    return tmp_path


def leaf(folder: Path, aux: str) -> LeafDataset:
    (folder / "sets").mkdir(exist_ok=True)
    file = write_v2(folder / "sets", train=f"{{path: ../main, aux: {aux}}}")
    (found,) = leaves_of(load_metadataset(file, split_part="train"))
    assert isinstance(found, LeafDataset)
    return found


def test_every_form(folder: Path) -> None:
    aux = leaf(
        folder,
        f"{{a: ../media, b: {{path: ../media}}, c: {folder}/media, d: filesystem://../files, e: {{fs_path: ../files}}, "
        f"f: 'filesystem://{folder}/files'}}",
    ).aux
    raw = open_aux(aux, None)
    assert list(raw) == list("abcdef")
    assert {type(raw[name]) for name in "abc"} == {WebdatasetFileStore}
    assert {type(raw[name]) for name in "def"} == {SystemFileStore}
    assert {raw[name].get_path() for name in "abc"} == {str(folder / "media")}
    assert {raw[name].get_path() for name in "def"} == {str(folder / "files")}
    assert all(raw[name].get("a.json") == b"[1]" for name in "def")
    decoded = open_aux(aux, SampleDecoder())
    assert all(type(store) is DecodeFileStore for store in decoded.values())
    assert decoded["a"].get("000003.json")["number"] == 3
    assert decoded["d"].get("a.json") == [1]


def test_forms_from_the_program(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    stores = open_aux({"a": "media", "b": Path("media"), "c": "filesystem://files", "d": {"fs_path": "files"}}, None)
    assert [store.get_path() for store in stores.values()] == [str(folder / name) for name in ("media", "media")] + [
        str(folder / "files")
    ] * 2
    assert open_aux({}, None) == {}
    with pytest.raises(DatasetNotFoundError, match="energon-grain prepare"):
        open_aux({"a": "files"}, None)
    with pytest.raises(DatasetNotFoundError, match="no such folder"):
        open_aux({"a": "filesystem://nothing"}, None)
    with pytest.raises(ConfigError, match="a path, or a mapping"):
        open_aux({"a": 3}, None)


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("msc://store/set", "has a profile 'store'"),
        ("dss://set@1/x", "NVDATASET_CACHE_DIR"),
        ("ftp://host/set", "object stores are s3://"),
        ("filesystem+msc://store/files", "has a profile 'store'"),
    ],
)
def test_stores_of_unknown_kinds_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, written: str, says: str
) -> None:
    for name in ("MSC_CONFIG", "RCLONE_CONFIG", "NVDATASET_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
    monkeypatch.setenv("HOME", str(folder))
    with pytest.raises(ConfigError) as caught:
        open_aux(leaf(folder, f"{{media: '{written}'}}").aux, None)
    assert str(caught.value).startswith(f"{folder}/sets/meta.yaml: $.splits.train.aux.media: ")
    assert written.removeprefix("filesystem+") in str(caught.value)
    assert says in str(caught.value)


def test_only_crude_leaves_have_stores(folder: Path) -> None:
    aux = leaf(folder, "{media: ../media}").aux
    check_aux_has_a_cooker(aux, "main", None)
    check_aux_has_a_cooker({}, "main", TextSample)
    with pytest.raises(ConfigError, match=r"meta\.yaml: \$\.splits\.train\.aux: main holds TextSamples.*\(media\)"):
        check_aux_has_a_cooker(aux, "main", TextSample)


def test_the_leaf_itself(folder: Path) -> None:
    assert open_primary(folder / "media", None).get("000000.json").startswith(b"{")
    assert open_primary(folder / "media", SampleDecoder()).get("000003.json")["number"] == 3
