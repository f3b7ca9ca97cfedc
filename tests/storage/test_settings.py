"""Where settings of stores come from, and what is wrong with them; secrets are refused, and shown nowhere."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from cli_runs import run
from metadatasets import v2

from energon_grain import (
    EPath,
    MetadatasetV2,
    StorageSettings,
    StoreSettings,
    get_train_dataset,
    get_val_dataset,
    get_val_datasets,
    load_dataset,
    use_storage,
)
from energon_grain.errors import ConfigError
from energon_grain.storage.settings import ENVIRONMENT, storage_settings, using_storage

EVERYTHING: dict[str, Any] = {
    "largest_group_bytes": 1 << 20,
    "verify": True,
    "stores": {
        "s3://bucket": {
            "endpoint": "http://minio:9000",
            "region": "eu-west-1",
            "anonymous": True,
            "profile": "team",
            "requester_pays": True,
        },
        "msc://team": {"location": "s3://bucket/folder"},
    },
    "requests_in_flight": 7,
    "request_bytes": 1 << 20,
    "timeout_s": 3,
    "attempts": 2,
    "retry_s": 30.0,
    "first_pause_s": 0.5,
    "longest_pause_s": 1.5,
    "cache_dir": "/scratch",
    "cache_bytes": 12345,
    "ahead_bytes": 77 << 20,
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CONFIG_HOME", "XDG_CACHE_HOME", ENVIRONMENT):
        monkeypatch.delenv(name, raising=False)
    use_storage(None)
    return tmp_path


def write(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return path


def test_every_key_of_a_file_is_read(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT, str(write(home / "x.yaml", EVERYTHING)))
    settings = storage_settings()
    assert {name: getattr(settings, name) for name in StorageSettings.__struct_fields__} == {
        **EVERYTHING,
        "stores": {prefix: StoreSettings(**store) for prefix, store in EVERYTHING["stores"].items()},
    }
    assert set(EVERYTHING) == set(StorageSettings.__struct_fields__)
    assert {key for store in EVERYTHING["stores"].values() for key in store} == set(StoreSettings.__struct_fields__)


def test_without_a_file_there_are_defaults(home: Path) -> None:
    assert storage_settings() == StorageSettings()
    assert storage_settings().cache_folder == f"{home}/.cache/energon-grain/objects"


def test_the_program_comes_before_the_variable_and_that_before_the_usual_file(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(home / ".config/energon-grain/storage.yaml", {"attempts": 3})
    assert storage_settings().attempts == 3
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "elsewhere"))
    assert storage_settings().attempts is None
    write(home / "elsewhere/energon-grain/storage.yaml", {"attempts": 4})
    assert storage_settings().attempts == 4
    write(home / "named.yaml", {"attempts": 5})
    monkeypatch.setenv(ENVIRONMENT, "~/named.yaml")
    assert storage_settings().attempts == 5
    use_storage(StorageSettings(attempts=8))
    assert storage_settings().attempts == 8
    use_storage(None)
    assert storage_settings().attempts == 5


def test_a_file_is_read_once_until_it_is_asked_for_anew(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(home / "x.yaml", {"attempts": 2})
    monkeypatch.setenv(ENVIRONMENT, str(file))
    assert storage_settings().attempts == 2
    write(file, {"attempts": 3})
    assert storage_settings().attempts == 2
    use_storage(None)
    assert storage_settings().attempts == 3


def test_a_file_that_is_named_must_be_there(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT, str(home / "none.yaml"))
    with pytest.raises(ConfigError, match=rf"none.yaml: No such file.*{ENVIRONMENT} must name a file"):
        storage_settings()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"attemps": 3}, r"\$.attemps: there is no such key. Did you mean `attempts`\?"),
        ({"store": {}}, r"\$.store: there is no such key. Did you mean `stores`\?"),
        ({"xyzzy": 3}, r"\$.xyzzy: there is no such key. Known keys: stores, requests_in_flight"),
        ({"stores": {"s3://b": {"regoin": "x"}}}, r"\$.stores\['s3://b'\].regoin: .* Did you mean `region`\?"),
        ({"stores": {"s3://b": {"zzz": "x"}}}, r"\$.stores\['s3://b'\].zzz: .* Known keys: endpoint, region"),
        ({"stores": {"s3://b": {"secret_access_key": "x"}}}, r"secret_access_key: credentials are not allowed here"),
        (
            {"stores": {"s3://b": {"region": 3}}},
            r"\['s3://b'\].region: expected text in quotes, got the number",
        ),
        ({"stores": {"s3://b": None}}, r"\$.stores\['s3://b'\]: expected a mapping such as `\{reg.*, got nothing"),
        ({"stores": {"s3://b": {"endpoint": "localhost:1"}}}, r"\['s3://b'\]: endpoint .* write http://localhost:1"),
        ({"stores": {"data://v": {"location": "nowhere"}}}, r"\['data://v'\]: location 'nowhere': expected the URL"),
        ({"stores": {"team": {}}}, r"stores\['team'\]: not a URL prefix; write 's3://team'"),
        ({"stores": ["s3://b"]}, r"\$.stores: expected a mapping such as .*, got a list"),
        ({"attempts": "three"}, r"\$.attempts: expected a whole number, got the text 'three'"),
        ({"attempts": 0}, r"\$: attempts=0: must be 1 or more"),
        ({"requests_in_flight": 0}, "requests_in_flight=0: must be 1 or more"),
        ({"request_bytes": 100}, "request_bytes=100: must be 65536 or more"),
        ({"timeout_s": 0}, "timeout_s=0.* must be positive"),
        ({"first_pause_s": 2, "longest_pause_s": 1}, "first_pause_s=2.* between 0 and longest_pause_s=1"),
        ({"first_pause_s": -1}, "between 0 and"),
        ({"timeout_s": float("nan")}, "timeout_s: expected a number"),
        ({"timeout_s": 1e300}, r"timeout_s=1e\+300 must be .* at most 1e"),
        ({"longest_pause_s": 1e300}, r"longest_pause_s=1e\+300, and all of them at most 1e"),
        ({"cache_bytes": -1}, "cache_bytes=-1: must be 0"),
        ("a: [", "not valid YAML"),
        ("just text", r"\$: expected a mapping such as `stores: \{'s3://bucket'.*, got the text"),
        ("", "expected a mapping such as .* got nothing"),
    ],
)
def test_what_is_wrong_names_the_file_and_the_key(
    home: Path, monkeypatch: pytest.MonkeyPatch, content: Any, said: str
) -> None:
    file = write(home / "x.yaml", content)
    monkeypatch.setenv(ENVIRONMENT, str(file))
    with pytest.raises(ConfigError, match=rf"^{file}: .*{said}"):
        storage_settings()


@pytest.mark.parametrize("changed", [{"attempts": 0}, {"timeout_s": -1}, {"cache_bytes": -5}, {"retry_s": -1}])
def test_settings_of_a_program_are_checked_too(changed: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"attempts=0: must|timeout_s=-1 must|cache_bytes=-5: must|retry_s=-1: must"):
        StorageSettings(**changed)


@pytest.mark.parametrize(
    ("url", "prefix"),
    [
        ("s3://bucket/a", "s3://bucket"),
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/folder/a", "s3://bucket/folder/"),
        ("s3://bucket/folder", "s3://bucket/folder/"),
        ("s3://bucket/folders/a", "s3://bucket"),
        ("s3://bucket2/a", "s3://"),
        ("gs://bucket/a", ""),
    ],
)
def test_the_longest_beginning_of_a_url_counts(url: str, prefix: str) -> None:
    stores = {name: StoreSettings(region=name) for name in ("s3://", "s3://bucket", "s3://bucket/folder/")}
    found, store = StorageSettings(stores=stores).store(url)
    assert found == prefix
    assert store.region == (prefix or None)


@pytest.mark.parametrize(
    ("cache_dir", "folder"), [("/x/../scratch", "/scratch"), ("~/blocks", "{home}/blocks"), (None, "{home}/c/{own}")]
)
def test_the_folder_of_the_cache_is_absolute(
    home: Path, monkeypatch: pytest.MonkeyPatch, cache_dir: str | None, folder: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "c"))
    expected = folder.format(home=home, own="energon-grain/objects")
    assert StorageSettings(cache_dir=cache_dir).cache_folder == expected


def test_settings_of_a_block_end_with_it(home: Path) -> None:
    write(home / ".config/energon-grain/storage.yaml", {"attempts": 3})
    with using_storage(StorageSettings(attempts=4)):
        assert storage_settings().attempts == 4
        with pytest.raises(ZeroDivisionError), using_storage(StorageSettings(attempts=5)):
            raise ZeroDivisionError
        assert storage_settings().attempts == 4
    assert storage_settings().attempts == 3


@pytest.mark.parametrize(
    ("prefix", "store", "said"),
    [
        ("team", {"region": "x"}, r"stores\['team'\]: not a URL prefix; write 's3://team'"),
        (
            "s3://b",
            {"endpoint": "localhost:5678"},
            "endpoint 'localhost:5678': expected a URL; write http://localhost:5678",
        ),
        ("s3://b", {"endpoint": "ftp://host"}, "endpoint 'ftp://host': expected a URL; write http://host"),
        ("data://v", {"location": "nowhere"}, "location 'nowhere': expected the URL of a store: s3://, .* file://"),
        ("data://v", {"location": "msc://team"}, "location 'msc://team': expected the URL of a store"),
    ],
)
def test_stores_that_cannot_be_reached_are_refused(prefix: str, store: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=f"^{said}"):
        StorageSettings(stores={prefix: StoreSettings(**store)})


def test_a_path_is_no_settings(home: Path) -> None:
    with pytest.raises(
        ConfigError, match=rf"not 'storage.yaml'; to use a settings file, set the environment variable {ENVIRONMENT}"
    ):
        use_storage("storage.yaml")  # type: ignore[arg-type]
    assert storage_settings() == StorageSettings()


SECRET = "do-not-tell"
USUAL: dict[str, Any] = {"batch_size": 1, "shuffle_buffer_size": None, "max_samples_per_sequence": None}
URLS = [
    f"s3://KEY:{SECRET}@bucket/data",
    f"gs://user:{SECRET}@bucket/data",
    f"az://container/data?sv=2024&sig={SECRET}",
    f"foo://u:{SECRET}@host/data",
    f"s3://bucket/data?X-Amz-Signature={SECRET}",
    f"s3://bucket/data?X-Amz-Security-Token={SECRET}&x=1",
    f"https://user:{SECRET}@host/data",
    f"https://host/data?token={SECRET}",
    f"msc://user:{SECRET}@team/data",
]
OPEN: list[Callable[[str], Any]] = [
    lambda url: get_train_dataset(url, **USUAL),
    lambda url: get_train_dataset(f"{url}/meta.yaml", **USUAL),
    lambda url: get_val_dataset(url, batch_size=1),
    lambda url: get_val_datasets(url, batch_size=1),
    lambda url: get_train_dataset(v2(train={"path": url}), **USUAL),
    lambda url: MetadatasetV2(splits={"train": {"path": url}}),
    lambda url: load_dataset(url),
    lambda url: EPath(url),
    lambda url: StoreSettings(location=url),
    lambda url: StorageSettings(stores={url: StoreSettings()}),
    lambda url: use_storage(url),  # type: ignore[arg-type]
]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "ENERGON_GRAIN_STORAGE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    yield
    assert [path for path in tmp_path.rglob("*") if SECRET in path.name] == []
    assert [path for path in tmp_path.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()] == []
    assert SECRET not in repr(storage_settings())


def refusal(call: Callable[[], Any]) -> str:
    """What is said of it, all tracebacks, causes and notes included."""
    with pytest.raises(ConfigError) as caught:
        call()
    said = "".join(traceback.format_exception(caught.value))
    assert SECRET not in said
    return str(caught.value)


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("use", OPEN)
@pytest.mark.parametrize("url", URLS)
def test_urls_that_hold_one_are_refused_without_showing_it(url: str, use: Callable[[str], Any]) -> None:
    assert refusal(lambda: use(url))


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("url", URLS)
def test_the_rest_of_the_url_is_named(url: str) -> None:
    said = refusal(lambda: get_train_dataset(url, **USUAL))
    assert "/data" in said
    assert "password" in said


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("command", ["info", "prepare", "lint", "bench", "which"])
def test_commands(command: str) -> None:
    result = run(command, URLS[0], *(("--step", "1", "--batch-size", "1") if command == "which" else ()))
    assert isinstance(result.exception, ConfigError)  # `main` prints it
    said = result.output + "".join(traceback.format_exception(result.exception))
    assert SECRET not in said
    assert "password" in said


@pytest.mark.usefixtures("cache")
def test_end_points_hold_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for endpoint in (f"http://user:{SECRET}@127.0.0.1:1", f"user:{SECRET}@127.0.0.1:1"):
        said = refusal(lambda endpoint=endpoint: StoreSettings(endpoint=endpoint))
        assert "127.0.0.1:1'" in said
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        said = refusal(lambda: len(get_train_dataset("s3://bucket/data", **USUAL)))  # type: ignore[arg-type]
        assert said.startswith("AWS_ENDPOINT_URL")
        assert "AWS_ACCESS_KEY_ID" in said
    monkeypatch.delenv("AWS_ENDPOINT_URL")


@pytest.mark.usefixtures("cache")
def test_names_that_only_look_like_it_are_read() -> None:
    for url in ("s3://bucket/what?/a@b:c", "s3://bucket/a?x=1", "gs://bucket/key=1"):
        assert str(EPath(url)) == url
