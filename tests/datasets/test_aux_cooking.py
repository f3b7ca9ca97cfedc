"""What a cooker is given beside its sample."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from energon_grain import (
    CachePool,
    ConfigError,
    Cooker,
    FileStore,
    NoCachePool,
    PrimaryFileStore,
    SampleDecoder,
    cooker,
)
from energon_grain.datasets.aux_cooking import BoundCooker, bind_cooker
from energon_grain.datasets.aux_stores import open_aux, open_primary
from energon_grain.testing import make_crude_dataset

Stores = dict[str, FileStore[Any]]


@pytest.fixture
def stores(tmp_path: Path) -> Stores:
    make_crude_dataset(tmp_path / "media", n=4, shards=2)
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a.txt").write_text("file a")
    return open_aux({"media": tmp_path / "media", "files": f"filesystem://{tmp_path / 'files'}"}, SampleDecoder())


@pytest.fixture
def primary(tmp_path: Path) -> FileStore[Any]:
    return open_primary(make_crude_dataset(tmp_path / "main", n=3, shards=1, seed=1), SampleDecoder())


def sample(key: str = "000002") -> dict[str, Any]:
    return {"__key__": key, "__sources__": ()}


def cook_media(sample: Any, media: FileStore[Any], files: FileStore[Any]) -> Any:
    return media.get("000003.json", sample)["number"], files.get("a.txt", sample), sample["__sources__"]


@cooker(need_cache=True, need_primary=True)
def cook_all(sample: Any, *, cache: CachePool, primary: FileStore[Any], **aux: FileStore[Any]) -> Any:
    lazy = cache.get_lazy(primary, ".json")
    return sorted(aux), lazy.get(sample)["number"], primary.get(".json")["number"], primary.get("000000.json")["number"]


def test_stores_are_passed_by_name(stores: Stores) -> None:
    cook = bind_cooker(Cooker(cook_media), stores)
    number, text, sources = cook(sample())
    assert (number, text) == (3, "file a")
    assert [source.index for source in sources] == ["000003.json", "a.txt"]


def test_the_leaf_and_a_cache_are_passed_where_they_are_needed(stores: Stores, primary: FileStore[Any]) -> None:
    cook = bind_cooker(Cooker(cook_all), stores, primary)
    assert cook(sample("000001")) == (["files", "media"], 1, 1, 0)
    assert cook(sample("000002")) == (["files", "media"], 2, 2, 0)
    assert bind_cooker(Cooker(cook_all), {}, primary)(sample("000002"))[0] == []
    copy = pickle.loads(pickle.dumps(cook))
    assert copy(sample("000001")) == (["files", "media"], 1, 1, 0)
    assert isinstance(cook, BoundCooker)
    cook.close()
    assert cook(sample("000001"))[1] == 1


def test_the_pool_of_the_loader_is_passed(primary: FileStore[Any]) -> None:
    class Pool(NoCachePool):
        pass

    pool = Pool()
    give = cooker(need_cache=True)(lambda sample, cache: cache)
    assert bind_cooker(Cooker(give), {}, primary, pool)(sample()) is pool
    assert type(bind_cooker(Cooker(give), {})(sample())) is NoCachePool


def test_a_store_named_primary_takes_the_place_of_the_leaf(stores: Stores, primary: FileStore[Any]) -> None:
    give = cooker(need_primary=True)(lambda sample, primary: primary)
    taken = bind_cooker(Cooker(give), {"primary": stores["media"]}, primary)(sample())
    assert isinstance(taken, PrimaryFileStore)
    assert taken.inner is stores["media"]
    assert taken.current_key == "000002"
    plain = bind_cooker(Cooker(lambda sample, primary: primary), {"primary": stores["media"]}, primary)(sample())
    assert plain is stores["media"]
    with pytest.raises(ConfigError, match="needs `primary`"):
        bind_cooker(Cooker(give), {})


def test_nothing_to_give_costs_nothing(primary: FileStore[Any]) -> None:
    def cook(sample: Any) -> Any:
        return sample

    assert bind_cooker(Cooker(cook), {}, primary) is cook


def test_an_encoders_own_cooking_gets_the_stores(stores: Stores, primary: FileStore[Any]) -> None:
    def through(sample: Any, cooker: Cooker, aux: dict[str, Any]) -> Any:
        return sorted(aux), cooker.cook(sample, **aux)

    cook = bind_cooker(Cooker(cook_all), stores, primary, through=through)
    names, cooked = cook(sample("000001"))
    assert names == ["cache", "files", "media", "primary"]
    assert cooked == (["files", "media"], 1, 1, 0)
    assert bind_cooker(Cooker(lambda sample: 5), {}, through=through)(sample()) == ([], 5)


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
def test_a_cooker_that_takes_something_else(stores: Stores, cook: Callable[..., Any], says: str) -> None:
    with pytest.raises(ConfigError, match=f"^set/main: .*{says}"):
        bind_cooker(Cooker(cook), stores, where="set/main")


def test_a_cooker_in_want_of_stores() -> None:
    with pytest.raises(ConfigError, match="takes `media`, but the leaf's auxiliary stores are none"):
        bind_cooker(Cooker(take_media), {})
    bind_cooker(Cooker(lambda sample, media=None: media), {})
    bind_cooker(Cooker(dict), {})


def test_functions_of_other_kinds(stores: Stores) -> None:
    class Cook:
        def __call__(self, sample: Any, media: Any, **others: Any) -> Any:
            return media

        def method(self, sample: Any, files: Any, media: Any) -> Any:
            return files

    assert bind_cooker(Cooker(Cook()), stores)(sample()) is stores["media"]
    assert bind_cooker(Cooker(Cook().method), stores)(sample()) is stores["files"]
    assert bind_cooker(Cooker(partial(take_more, more=1)), stores)(sample()) is None


def test_a_store_may_not_hide_the_cache(stores: Stores) -> None:
    give = cooker(need_cache=True)(lambda sample, cache: cache)
    with pytest.raises(ConfigError, match="named `cache` is in the way"):
        bind_cooker(Cooker(give), {"cache": stores["media"]})
    assert bind_cooker(Cooker(lambda sample, cache: cache), {"cache": stores["media"]})(sample()) is stores["media"]
