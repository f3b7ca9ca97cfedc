"""`aux:` of a metadataset, here and in a bucket: how stores are written, and what cookers get of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
from forking import may_fork
from metadatasets import v2, write_v2
from object_server import Bucket

from energon_grain import (
    CachePool,
    ConfigError,
    Cooker,
    DatasetNotFoundError,
    DecodeFileStore,
    DefaultTaskEncoder,
    FatalSampleError,
    FileStore,
    KeyNotFoundError,
    NoCachePool,
    ObjectFileStore,
    PrimaryFileStore,
    Sample,
    Stream,
    SystemFileStore,
    WebdatasetFileStore,
    WorkerConfig,
    basic_sample_keys,
    cooker,
    get_train_dataset,
    get_val_dataset,
    reraise_exception,
    stateless,
)
from energon_grain.prepare import prepare_dataset
from energon_grain.testing import make_crude_dataset, make_text_dataset, write_tars

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
        (
            take_media,
            r"take_media do not fit: it takes `media` besides the sample, but not `files`\. .*add the parameter",
        ),
        (take_images, "takes `images` besides the sample, but not `media`, `files`"),
        (take_positional, "not `media`, `files`"),
        (take_sample_only, "takes none besides the sample, but not `media`, `files`"),
        (
            take_cache,
            r"needs `cache`, but .* are `media`, `files`.*, or mark the cooker with @cooker\(need_cache=True\)",
        ),
        (take_more, "needs `more`, but .* auxiliary stores of this dataset are `media`, `files`.*, or declare a store"),
        (lambda: 0, "do not fit"),
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
    with pytest.raises(ConfigError, match="named `cache` hides"):
        cooked(folder, cooker(need_cache=True)(lambda sample, cache: cache), aux)


@dataclass
class Cooked(Sample):
    """What cookers of this module make."""

    value: Any
    lazy: Any = None


@stateless
def cook(sample: Any, media: Any, files: Any) -> Cooked:
    value = media.get(sample["json"]["media"], sample) + files.get(sample["json"]["file"], sample)
    return Cooked(**basic_sample_keys(sample), value=value)


@stateless
@cooker(need_cache=True, need_primary=True)
def cook_late(sample: Any, cache: Any, primary: Any, media: Any, files: Any) -> Cooked:
    lazy = cache.get_lazy(media, sample["json"]["media"])
    return Cooked(**basic_sample_keys(sample), value=primary.get(".json", sample)["file"], lazy=lazy)


class Encoder(DefaultTaskEncoder):
    cookers = (Cooker(cook),)


class LateEncoder(DefaultTaskEncoder):
    cookers = (Cooker(cook_late),)


def prepared(root: Path, samples: list[dict[str, Any]]) -> None:
    write_tars(root, samples, shards=2)
    prepare_dataset(root, split_ratio={"train": 1}, crude=True, num_workers=0, sqlite=False)


@pytest.fixture(scope="module")
def metadataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("aux")
    facts = [{"media": f"m/{i % 5:03d}.txt", "file": f"{i % 2}.txt"} for i in range(20)]
    facts[7]["media"] = "m/nothing.txt"
    prepared(folder / "main", [{"__key__": f"{i:03d}", "json": fact} for i, fact in enumerate(facts)])
    prepared(folder / "media", [{"__key__": f"m/{i:03d}", "txt": f"media {i}"} for i in range(5)])
    (folder / "files").mkdir()
    for number in range(2):
        (folder / "files" / f"{number}.txt").write_text(f" file {number}")
    make_text_dataset(folder / "typed", n=4, shards=1)
    for name, leaf in {"meta": "main", "typed": "typed"}.items():
        aux = {"media": "media", "files": "filesystem://files"}
        write_v2(folder, f"{name}.yaml", train={"path": leaf, "aux": aux})
    return folder / "meta.yaml"


def read(
    metadataset: Path,
    encoder: DefaultTaskEncoder,
    num_workers: int = 0,
    worker_type: Literal["thread", "process"] = "thread",
    handler: Callable[..., None] = lambda error, sample, sources: None,
) -> list[Cooked]:
    config = WorkerConfig(0, 1, num_workers, worker_type=worker_type, global_error_handler=handler)
    dataset = get_val_dataset(
        metadataset, split_part="train", batch_size=None, worker_config=config, task_encoder=encoder
    )
    with Stream.of(dataset) as stream:
        return list(stream)


def test_cookers_read_from_stores(metadataset: Path) -> None:
    errors: list[Exception] = []
    samples = read(metadataset, Encoder(), handler=lambda error, sample, sources: errors.append(error))
    assert [sample.__key__ for sample in samples] == [f"{i:03d}" for i in range(20) if i != 7]
    assert [sample.value for sample in samples[:7]] == [f"media {i % 5} file {i % 2}" for i in range(7)]
    assert [source.file_names for source in samples[4].__sources__ or ()] == [
        ("004.json",),
        ("m/004.txt",),
        ("0.txt",),
    ]
    assert [(type(error).__name__, "no file 'm/nothing.txt'" in str(error)) for error in errors] == [
        ("KeyNotFoundError", True)
    ]


@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_workers_change_nothing(metadataset: Path, worker_type: Literal["thread", "process"]) -> None:
    for encoder in (Encoder(), LateEncoder()):
        alone, helped = (read(metadataset, encoder, workers, worker_type) for workers in (0, 2))
        assert [(sample.__key__, sample.value, sample.__sources__) for sample in helped] == [
            (sample.__key__, sample.value, sample.__sources__) for sample in alone
        ]


def test_lazy_values_arrive_from_worker_processes(metadataset: Path) -> None:
    samples = read(metadataset, LateEncoder(), 2, "process")
    assert len(samples) == 20
    assert [sample.lazy.get(sample) for sample in samples[:5]] == [f"media {i}" for i in range(5)]
    assert (samples[3].__sources__ or ())[-1].index == "m/003.txt"
    assert samples[0].lazy == samples[5].lazy
    assert len({id(sample.lazy.ds.inner) for sample in samples}) == 1


def test_a_store_that_cannot_be_read_ends_the_iteration(metadataset: Path, tmp_path: Path) -> None:
    prepared(tmp_path / "media", [{"__key__": f"m/{i:03d}", "txt": f"media {i}"} for i in range(5)])
    with open(tmp_path / "media" / "shard_001.tar", "ab") as file:
        file.write(bytes(512))
    aux = {"media": "media", "files": f"filesystem://{metadataset.with_name('files')}"}
    file = write_v2(tmp_path, train={"path": str(metadataset.with_name("main")), "aux": aux})
    with pytest.raises(FatalSampleError, match=r"shard_001\.tar: was indexed with \d+ bytes"):
        read(file, Encoder())


def test_what_does_not_fit_is_told_before_anything_is_read(metadataset: Path) -> None:
    class Wrong(DefaultTaskEncoder):
        cookers = (Cooker(lambda sample, media: sample),)

    with pytest.raises(
        ConfigError, match=r"main: the parameters of the cooker .* takes `media` besides the sample, but not `files`"
    ):
        read(metadataset, Wrong())
    with pytest.raises(ConfigError, match=r"typed\.yaml: \$\.splits\.train\.aux: .*holds samples of type TextSample"):
        read(metadataset.with_name("typed.yaml"), Encoder())


def test_cook_crude_sample_may_be_overridden(metadataset: Path) -> None:
    class Own(LateEncoder):
        def cook_crude_sample(self, sample: Any, cooker: Cooker, aux: dict[str, Any]) -> Any:
            assert sorted(aux) == ["cache", "files", "media", "primary"]
            cooked = super().cook_crude_sample(sample, cooker, aux)
            cooked.value = "own " + cooked.value
            return cooked

    assert read(metadataset, Own())[1].value == "own 1.txt"


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


def test_every_form_in_a_bucket(bucket: Bucket, url: str) -> None:
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
        missing = rf"^{url}/(media|files|main\.jsonl): no (file |object |key )?'none.json'"
        with pytest.raises(KeyNotFoundError, match=missing):
            store.get("none.json")
        assert "none.json" not in store, name


def test_what_is_refused(bucket: Bucket, url: str) -> None:
    for aux, said in (
        ("nothing", "there is nothing below"),
        ("files", "not a prepared"),
        ("meta.yaml", "is a metadataset"),
    ):
        put_metadataset(bucket, {"media": aux})
        with pytest.raises(DatasetNotFoundError, match=rf"meta\.yaml: .*aux\.media: {url}/{aux}: {said}"):
            opened(url)
    put_metadataset(bucket, {"media": "ftp://host/media"})
    with pytest.raises(ConfigError, match=r"meta\.yaml: \$\.splits\.train\.aux\.media: ftp://host/media: "):
        opened(url)


@stateless
@cooker(need_primary=True)
def cook_remote(sample: Any, primary: Any, media: Any, files: Any) -> Any:
    number = sample["json"]["n"]
    own, there, file = primary.get(".json"), media.get(f"{number:06d}.json"), files.get(f"{number}.json")
    return {**sample, "found": (own["n"], there["number"], file[0])}


class CookedRemote(DefaultTaskEncoder):
    cookers = (Cooker(cook_remote),)


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
            get_train_dataset(path, worker_config=config, batch_size=None, task_encoder=CookedRemote(), **options)
        )

    return make
