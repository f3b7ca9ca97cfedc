"""`aux:` of a metadataset: how stores are written, and what cookers get of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from metadatasets import v2, write_v2

from energon_grain import (
    CachePool,
    ConfigError,
    Cooker,
    DatasetNotFoundError,
    DecodeFileStore,
    DefaultTaskEncoder,
    FileStore,
    NoCachePool,
    PrimaryFileStore,
    Stream,
    SystemFileStore,
    WebdatasetFileStore,
    WorkerConfig,
    cooker,
    get_val_dataset,
    reraise_exception,
)
from energon_grain.testing import make_crude_dataset

AUX = {"media": "../media", "files": "filesystem://../files"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_crude_dataset(tmp_path / "main", n=3, shards=1, seed=1)
    make_crude_dataset(tmp_path / "media", n=4, shards=2)
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a.json").write_text("[1]")
    (tmp_path / "sets").mkdir()
    return tmp_path


def cooked(
    folder: Path,
    cook: Callable[..., Any],
    aux: Any = AUX,
    *,
    from_program: bool = False,
    pool: CachePool | None = None,
    **attributes: Any,
) -> list[Any]:
    """What a cooker makes of the three samples of `main` with these stores."""
    train = {"path": "../main", "aux": aux}
    content = v2(train=train) if from_program else write_v2(folder / "sets", train=train)
    encoder = type("Encoder", (DefaultTaskEncoder,), {"cookers": (Cooker(cook),), **attributes})()
    config = WorkerConfig(0, 1, global_error_handler=reraise_exception)
    dataset = get_val_dataset(content, split_part="train", batch_size=None, worker_config=config, task_encoder=encoder)
    with Stream.of(dataset, cache_pool=pool) as stream:
        return list(stream)


def give_all(sample: Any, **stores: Any) -> dict[str, Any]:
    return stores


def test_every_form(folder: Path) -> None:
    aux = {
        "a": "../media",
        "b": {"path": "../media"},
        "c": f"{folder}/media",
        "d": "filesystem://../files",
        "e": {"fs_path": "../files"},
        "f": f"filesystem://{folder}/files",
    }
    raw = cooked(folder, give_all, aux, decoder=None)[0]
    assert list(raw) == list("abcdef")
    assert {type(raw[name]) for name in "abc"} == {WebdatasetFileStore}
    assert {type(raw[name]) for name in "def"} == {SystemFileStore}
    assert {raw[name].get_path() for name in "abc"} == {str(folder / "media")}
    assert {raw[name].get_path() for name in "def"} == {str(folder / "files")}
    assert all(raw[name].get("a.json") == b"[1]" for name in "def")
    decoded = cooked(folder, give_all, aux)[0]
    assert all(type(store) is DecodeFileStore for store in decoded.values())
    assert decoded["a"].get("000003.json")["number"] == 3
    assert decoded["d"].get("a.json") == [1]


def test_forms_from_the_program(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder / "sets")
    (folder / "sets" / "files").mkdir()
    make_crude_dataset(folder / "sets" / "media", n=4, shards=2)
    aux: dict[str, Any] = {"a": "media", "c": "filesystem://files", "d": {"fs_path": "files"}}
    stores = cooked(folder, give_all, aux, from_program=True)[0]
    assert [Path(store.get_path()).name for store in stores.values()] == ["media", "files", "files"]
    for wrong, error, said in (
        ("files", DatasetNotFoundError, "energon-grain prepare"),
        ("filesystem://nothing", DatasetNotFoundError, "no such folder"),
        (3, ConfigError, "a path, or a mapping"),
    ):
        with pytest.raises(error, match=said):
            cooked(folder, give_all, {"a": wrong}, from_program=True)


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
        cooked(folder, give_all, {"files": "filesystem://../files", "media": written})
    assert str(caught.value).startswith(f"{folder}/sets/meta.yaml: $.splits.train.aux.media: ")
    scheme, _, rest = written.removeprefix("filesystem+").partition("://")
    assert f"{scheme}://{rest.partition('/')[0]}" in str(caught.value)
    assert says in str(caught.value)


def cook_media(sample: Any, media: FileStore[Any], files: FileStore[Any]) -> Any:
    return media.get("000003.json", sample)["number"], files.get("a.json", sample), sample["__sources__"]


@cooker(need_cache=True, need_primary=True)
def cook_all(sample: Any, *, cache: CachePool, primary: FileStore[Any], **aux: FileStore[Any]) -> Any:
    lazy = cache.get_lazy(primary, ".json")
    return sorted(aux), lazy.get(sample)["number"], primary.get(".json")["number"], primary.get("000000.json")["number"]


def test_stores_are_passed_by_name(folder: Path) -> None:
    number, content, sources = cooked(folder, cook_media)[0]
    assert (number, content) == (3, [1])
    assert [source.index for source in sources[1:]] == ["000003.json", "a.json"]


def test_the_leaf_and_a_cache_are_passed_where_they_are_needed(folder: Path) -> None:
    assert cooked(folder, cook_all) == [(["files", "media"], number, number, 0) for number in range(3)]
    assert cooked(folder, cook_all, {})[2] == ([], 2, 2, 0)
    raw = cooker(need_primary=True)(lambda sample, primary: primary.get(".json"))
    assert cooked(folder, raw, {}, decoder=None)[0].startswith(b"{")


def test_the_pool_of_the_loader_is_passed(folder: Path) -> None:
    class Pool(NoCachePool):
        pass

    pool = Pool()
    give = cooker(need_cache=True)(lambda sample, cache, **others: cache)
    assert cooked(folder, give, pool=pool)[0] is pool
    assert type(cooked(folder, give)[0]) is NoCachePool


def test_a_store_named_primary_takes_the_place_of_the_leaf(folder: Path) -> None:
    def give(sample: Any, primary: Any) -> Any:
        return primary

    aux = {"primary": "../media"}
    plain, *_ = cooked(folder, give, aux)
    *_, taken = cooked(folder, cooker(need_primary=True)(give), aux)
    assert isinstance(taken, PrimaryFileStore)
    assert taken.inner.get_path() == plain.get_path() == str(folder / "media")
    assert taken.current_key == "000002"


def take_media(sample: Any, media: Any) -> Any: ...
def take_images(sample: Any, images: Any) -> Any: ...
def take_positional(sample: Any, media: Any, files: Any, /) -> Any: ...
def take_sample_only(media: Any) -> Any: ...
def take_cache(sample: Any, media: Any, files: Any, cache: Any) -> Any: ...
def take_more(sample: Any, media: Any, files: Any, more: Any) -> Any: ...


@pytest.mark.parametrize(
    ("cook", "says"),
    [
        (take_media, "take_media does not fit: it takes `media` beside the sample, not `files`; .*add the parameter"),
        (take_images, "takes `images` beside the sample, not `media`, `files`"),
        (take_positional, "not `media`, `files`"),
        (take_sample_only, "takes none beside the sample, not `media`, `files`"),
        (take_cache, r"takes `cache`, but .* are `media`, `files`; .*mark the cooker with @cooker\(need_cache=True\)"),
        (take_more, "takes `more`, but the leaf's auxiliary stores are `media`, `files`; declare the store"),
        (lambda: 0, "does not fit"),
    ],
)
def test_a_cooker_that_takes_something_else(folder: Path, cook: Callable[..., Any], says: str) -> None:
    with pytest.raises(ConfigError, match=f"main: .*{says}"):
        cooked(folder, cook)


def test_functions_of_other_kinds(folder: Path) -> None:
    class Cook:
        def __call__(self, sample: Any, media: Any, **others: Any) -> Any:
            return media.get_path()

        def method(self, sample: Any, files: Any, media: Any) -> Any:
            return files.get_path()

    assert cooked(folder, Cook())[0] == str(folder / "media")
    assert cooked(folder, Cook().method)[0] == str(folder / "files")
    more = partial(lambda sample, media, files, more: more, more=1)
    assert cooked(folder, more) == [1, 1, 1]


def test_a_store_may_not_hide_the_cache(folder: Path) -> None:
    aux = {"cache": "../media"}
    assert cooked(folder, lambda sample, cache: cache, aux)[0].get_path() == str(folder / "media")
    with pytest.raises(ConfigError, match="named `cache` is in the way"):
        cooked(folder, cooker(need_cache=True)(lambda sample, cache: cache), aux)
