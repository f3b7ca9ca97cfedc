"""Indices may be from anyone: a name that they give to a shard leads to nothing outside of the dataset."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hub_server import running_hub
from object_server import Bucket
from web_server import running_web_server

from energon_grain import WorkerConfig, get_savable_loader, get_val_dataset
from energon_grain.errors import ConfigError, EnergonGrainError, IndexFileError, SplitError
from energon_grain.formats.columnar_header import columnar_folder, encode_header, read_header
from energon_grain.prepare import prepare_dataset
from energon_grain.prepare.lint import lint_dataset
from energon_grain.storage.location import first_leading_out
from energon_grain.testing import make_text_dataset

NAME = "shard_000.tar"
OUTSIDE = [
    "../private/shard_000.tar",
    "a/../../private/shard_000.tar",
    "/{root}/private/shard_000.tar",
    "file://{root}/private/shard_000.tar",
    "http://127.0.0.1:9/shard_000.tar",
    "",
    "a\0.tar",
]


@pytest.fixture
def given(tmp_path: Path) -> Path:
    """A dataset whose only shard is in a folder beside it, without a columnar index."""
    for name in ("private", "given"):
        make_text_dataset(tmp_path / name, n=6, shards=1)
    (tmp_path / "given" / NAME).unlink()
    shutil.rmtree(columnar_folder(tmp_path / "given"))
    return tmp_path / "given"


def rename(root: Path, name: str) -> None:
    for file in (root / ".nv-meta").glob("*"):
        if file.is_file() and file.suffix in (".json", ".yaml"):
            file.write_text(file.read_text().replace(NAME, json.dumps(name)[1:-1]))


def keys(path: str) -> list[str]:
    one = WorkerConfig(rank=0, world_size=1, num_workers=0)
    data = get_val_dataset(path, split_part="train", batch_size=None, worker_config=one)
    with get_savable_loader(data) as loader:
        return [sample.__key__ for sample in loader]


def refused(call: Callable[[], Any], kind: type[EnergonGrainError] = IndexFileError) -> None:
    with pytest.raises(kind, match=r"names the shard .*shards must be named by their paths inside the dataset"):
        call()


@pytest.mark.parametrize("written", OUTSIDE)
def test_names_that_lead_out_are_refused(given: Path, written: str) -> None:
    name = written.format(root=given.parent)
    rename(given, name)
    refused(lambda: keys(str(given)))
    refused(lambda: lint_dataset(given))
    refused(lambda: prepare_dataset(given, tar_index_only=True))
    (given / ".nv-meta" / ".info.json").rename(given / ".nv-meta" / ".info.yaml")  # any JSON is YAML
    refused(lambda: keys(str(given)))


@pytest.mark.parametrize("name", ["sub/{}", "./{}", "a..b/{}", "...{}", "a:b/{}"])
def test_names_that_do_not_are_read(given: Path, name: str) -> None:
    name = name.format(NAME)
    (given / name).parent.mkdir(exist_ok=True)
    shutil.copy(given.parent / "private" / NAME, given / name)
    rename(given, name)
    assert keys(str(given)) == [f"{number:06d}" for number in range(6)]


def test_links_in_the_folder_are_followed(given: Path) -> None:
    (given / NAME).symlink_to(given.parent / "private" / NAME)
    assert len(keys(str(given))) == 6


def test_the_columnar_index(tmp_path: Path) -> None:
    root = make_text_dataset(tmp_path / "given", n=6, shards=1)
    folder = columnar_folder(root)
    header = read_header(folder, root)
    assert header is not None
    ((_, *rest),) = header.shards
    forged = msgspec.structs.replace(header, shards=[("../private/x.tar", *rest)])
    (folder / "header.json").write_bytes(encode_header(forged))
    refused(lambda: keys(str(root)))


def test_split_files(tmp_path: Path) -> None:
    root = make_text_dataset(tmp_path / "given", n=6, shards=1)
    (root / ".nv-meta" / "split.yaml").write_text("split_parts: {train: ['shard_000.tar', '/{a..c}.tar']}\n")
    refused(lambda: keys(str(root)), SplitError)
    config = root / ".nv-meta" / "dataset.yaml"
    config.write_text(config.read_text() + "split_config: ../../private/split.yaml\n")
    with pytest.raises(ConfigError, match=r"dataset.yaml: \$.split_config: .* is not in .nv-meta"):
        keys(str(root))


def test_lists_of_tars(given: Path) -> None:
    with pytest.raises(ConfigError, match=r"^../private/shard_000.tar: a shard's path must be inside the dataset"):
        prepare_dataset(given, shards=["../private/shard_000.tar"], force_overwrite=True)


def test_stores(given: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also names that these would read as another folder of theirs; they are not asked for them."""
    rename(given, "../private/shard_000.tar")
    bucket.upload(given.parent / "private", "private")
    url = bucket.upload(given, "given")
    refused(lambda: keys(url))
    with running_web_server(given.parent) as server:
        refused(lambda: keys(f"{server.url}/given"))
        assert not [path for path in server.asked if "private" in path]
    for name in [name for name in os.environ if name.startswith(("HF_", "HUGGING"))]:
        monkeypatch.delenv(name)
    with running_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        hub.commit("team/texts", given.parent)
        refused(lambda: keys("hf://datasets/team/texts/given"))


def test_many_names() -> None:
    names = [f"train/shard..{number}.tar" for number in range(1000)]
    assert first_leading_out(names) is first_leading_out([]) is None
    assert first_leading_out([*names, "..", "/x"]) == ".."
    assert first_leading_out(["a\n/b", "a\n\nb", "x://y"]) == "x://y"
