"""Receipts: what they hold, which damage and which changed settings `verify` finds, and for which kinds of data."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from amended_runs import Plain, Run, write_data
from arrays import numbered, write_array, write_group
from metadatasets import write_v2
from object_server import Bucket
from parquet_files import write_parquet
from records import irregular_samples, msgpack_record, write_shards
from table_forms import write_arrow, write_mds, write_tokens

from energon_grain import (
    WorkerConfig,
    digest_dataset,
    get_savable_loader,
    get_train_dataset,
    verify_receipt,
)
from energon_grain.errors import ConfigError, StaleIndexError, StateError
from energon_grain.history.digests import DataFiles
from energon_grain.history.receipts import MOST_BYTES, datasets_field
from energon_grain.history.verify import verify_files
from energon_grain.metadataset.digests import files_at
from energon_grain.prepare import prepare_dataset
from energon_grain.sources.rows import Rows, selected
from energon_grain.testing import make_text_dataset, write_tars

DIGESTS = ".nv-meta/columnar/digests.json"
RUN: dict[str, Any] = {
    "batch_size": 4,
    "shuffle_buffer_size": None,
    "max_samples_per_sequence": None,
    "worker_config": WorkerConfig(0, 1, 0),
}


def opened(path: str | Path, **options: Any) -> Any:
    return get_savable_loader(get_train_dataset(path, **{**RUN, **options}))


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_text_dataset(tmp_path_factory.mktemp("receipts") / "text", n=120, shards=4, text_bytes=100)
    digest_dataset(folder)
    return folder


@pytest.fixture
def loader(text: Path) -> Iterator[Any]:
    with opened(text) as made:
        yield made


def test_a_receipt_is_short_and_the_same_on_all_hosts_and_from_a_state(text: Path, loader: Any) -> None:
    for _ in range(3):
        next(loader)
    receipt = loader.receipt()
    assert len(str(receipt)) < MOST_BYTES
    assert str(receipt) == json.dumps(json.loads(str(receipt)), sort_keys=True, separators=(",", ":"))
    assert (receipt["step"], receipt["batch"], receipt["seed"]) == (3, 4, [0, 0])
    assert verify_receipt(json.loads(str(receipt)), loader).differences == ()
    for host in range(2):
        config = WorkerConfig(host, 2, 0, any_host=bool)
        with opened(text, batch_size=2, worker_config=config) as other:
            other.restore_state_rank(loader.save_state_rank())
            assert other.receipt() == receipt
    next(loader)
    assert loader.receipt()["root"] != receipt["root"]


def test_the_torch_loader_has_receipts(text: Path, loader: Any) -> None:
    torch = pytest.importorskip("energon_grain_torch")
    dataset = torch.get_train_dataset(text, **{**RUN, "worker_config": torch.WorkerConfig(0, 1, 0)})
    with torch.get_savable_loader(dataset) as other:
        assert other.receipt()["root"] == loader.receipt()["root"]


def test_a_flipped_bit_is_found_and_its_shard_named_in_1000_of_1000_trials(text: Path, loader: Any) -> None:
    receipt, draw = loader.receipt(), random.Random(31)
    files = [*sorted(text.glob("*.tar")), text / ".nv-meta/dataset.yaml", text / ".nv-meta/split.yaml"]
    whole = {file: file.read_bytes() for file in files}
    assert verify_receipt(receipt, loader).differences == ()
    for trial in range(1000):
        file = draw.choice(files)
        data = bytearray(whole[file])
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        file.write_bytes(data)
        found = verify_receipt(receipt, loader).differences
        file.write_bytes(whole[file])
        assert len(found) == 1, trial
        assert [each.name for each in files if each.name in found[0]] == [file.name]
    assert verify_receipt(receipt, loader).differences == ()


CHANGED: list[tuple[dict[str, Any], str]] = [
    ({"seed": 1}, "seed"),
    ({"worker_config": WorkerConfig(0, 1, 0, seed_offset=1)}, "seed"),
    ({"batch_size": 5}, "batch"),
    ({"lanes": 24}, "'lanes'"),
    ({"subset": [0, 20]}, "'samples'"),
    ({"where": "bytes > 0"}, "'where'"),
    ({"repeat": False}, "'endless'"),
    ({"max_samples_per_sequence": 1, "shuffle_buffer_size": 2}, "'block'"),
    ({"shuffle_over_epochs_multiplier": 2}, "'passes'"),
    ({"shuffle_over_epochs_multiplier": -1}, "'replacement'"),
    ({"shuffle_over_epochs_multiplier": None}, "'shuffle'"),
    ({"virtual_epoch_length": 3}, "'batches'"),
    ({"repeat": False, "last_batch": "drop"}, "'batches'"),
    ({"split_part": "val"}, "'names'"),
]


@pytest.mark.parametrize(("change", "named"), CHANGED, ids=[repr(change) for change, _ in CHANGED])
def test_a_changed_setting_is_found_and_named(text: Path, loader: Any, change: dict[str, Any], named: str) -> None:
    receipt = loader.receipt()
    with opened(text, **change) as changed:
        found = verify_receipt(receipt, changed)
        assert any(named in each for each in found.differences), found.differences
        assert found.size_bytes > 0


def test_changed_weights_and_tags_are_found(text: Path, tmp_path: Path) -> None:
    def mixture(weight: int, **tags: Any) -> Path:
        first = {"path": str(text), "weight": 1, "subflavors": tags}
        second = {"path": str(text), "split_part": "val", "weight": weight}
        return write_v2(tmp_path, "mix.yaml", train={"blend": [first, second]})

    with opened(mixture(1)) as made:
        receipt = made.receipt()
        assert receipt["datasets"]["count"] == 1  # the same files twice
    with opened(mixture(2)) as made:
        assert [each[:17] for each in verify_receipt(receipt, made).differences] == ["setting 'mixture'"]
    with opened(mixture(1, tag=1)) as made:
        assert [each[:15] for each in verify_receipt(receipt, made).differences] == ["setting 'types'"]


def test_lost_and_swapped_shards_are_named(tmp_path: Path) -> None:
    folder = make_text_dataset(tmp_path / "text", n=60, shards=5)
    digest_dataset(folder)
    with opened(folder) as loader:
        receipt = loader.receipt()
        first, second, third = sorted(folder.glob("*.tar"))[:3]
        content = first.read_bytes(), second.read_bytes()
        first.write_bytes(content[1])
        second.write_bytes(content[0])
        third.unlink()
        (line,) = verify_receipt(receipt, loader).differences
        assert f"{first.name}, {second.name}, {third.name} differ" in line
        with pytest.raises(FileNotFoundError):
            loader.receipt()


def test_without_digests_no_receipt_pretends(tmp_path: Path) -> None:
    folder = make_text_dataset(tmp_path / "text", n=20, shards=2)
    (folder / DIGESTS).unlink(missing_ok=True)
    with opened(folder) as loader:
        with pytest.raises(StateError, match=f"no digests .* run `energon-grain measure {folder} --digest`"):
            loader.receipt()
        receipt = loader.receipt(allow_missing=True)
        assert receipt["datasets"]["root"] is None
        found = verify_receipt(receipt, loader)
        assert not found.data
        assert "lacks digests" in found.notes[0]
        digest_dataset(folder)
        assert loader.receipt()["datasets"]["root"]
        shard = next(folder.glob("*.tar"))
        shard.write_bytes(shard.read_bytes() + bytes(512))
        with pytest.raises(StaleIndexError, match=f"{shard.name} has .* bytes, but had"):
            loader.receipt()


def test_a_receipt_that_was_edited_is_refused(loader: Any) -> None:
    receipt = loader.receipt()
    with pytest.raises(StateError, match="was changed after it was made"):
        verify_receipt({**receipt, "step": 7}, loader)
    with pytest.raises(StateError, match="version 2"):
        verify_receipt({**receipt, "version": 2}, loader)
    with pytest.raises(StateError, match="is no receipt"):
        verify_receipt({"step": 7}, loader)


def test_stored_digests_that_are_not_of_the_receipt_name_no_shard(tmp_path: Path) -> None:
    folder = make_text_dataset(tmp_path / "text", n=20, shards=2)
    digest_dataset(folder)
    with opened(folder) as loader:
        receipt = loader.receipt()
        shard = next(folder.glob("*.tar"))
        data = bytearray(shard.read_bytes())
        data[700] ^= 1
        shard.write_bytes(data)
        digest_dataset(folder)  # of the damaged shard
        (line,) = verify_receipt(receipt, loader).differences
        assert "which files cannot be said" in line
        data[700] ^= 1
        shard.write_bytes(data)
        assert verify_receipt(receipt, loader).differences == ()  # the data are right, the stored digests are not


@pytest.mark.parametrize("digest", [None, True])
@pytest.mark.parametrize("size_bytes", [0, 100, 70_000])
def test_measure_stores_what_prepare_stores(tmp_path: Path, digest: bool | None, size_bytes: int) -> None:
    """Without being asked, `prepare` stores digests if the scan reads all bytes, which it does of small members."""
    folder = tmp_path / "text"
    write_tars(folder, [{"__key__": f"{i}", "txt": b"a" * size_bytes} for i in range(120)], shards=3)
    prepare_dataset(folder, digest=digest, crude=True, num_workers=0)
    assert (folder / DIGESTS).exists() == (digest is True or size_bytes < 70_000)
    digest_dataset(folder)
    kept = (folder / DIGESTS).read_bytes()
    assert [*json.loads(kept)["shards"]] == [f"shard_{number:03d}.tar" for number in range(3)]
    prepare_dataset(folder, force_overwrite=True, digest=digest, crude=True, num_workers=0)
    assert (folder / DIGESTS).exists() == (digest is True or size_bytes < 70_000)
    if (folder / DIGESTS).exists():
        assert (folder / DIGESTS).read_bytes() == kept
    report = digest_dataset(folder)
    assert (folder / DIGESTS).read_bytes() == kept
    assert (report.files, report.datasets) == (3, (str(folder),))
    assert report.size_bytes == sum(shard.stat().st_size for shard in folder.glob("*.tar"))


def test_amended_runs(tmp_path: Path) -> None:
    write_data(tmp_path)
    for name in ("a", "b", "c"):
        digest_dataset(tmp_path / name)
    run = Run(tmp_path, Plain, {"a": 1, "b": 2})
    run.start()
    run.step(3)
    before = run.loaders[0].receipt()
    run.weights = {"b": 1, "c": 3}
    run.start(run.state(), on_change="amend")
    run.step(2)
    receipt = run.loaders[0].receipt()
    assert (before["amendments"], before["datasets"]["count"]) == ([0, None], 2)
    assert (receipt["amendments"][0], receipt["datasets"]["count"]) == (1, 2)
    assert receipt["datasets"]["removed"] == 1
    state = run.state()
    run.start(state)
    assert run.loaders[0].receipt() == receipt
    assert verify_receipt(receipt, run.loaders[0], restored=True).differences == ()
    assert any("amendments" in each for each in verify_receipt(before, run.loaders[0], restored=True).differences)
    run.start()
    with pytest.raises(StateError, match="was changed 1 times"):
        verify_receipt(receipt, run.loaders[0])
    run.close()


@pytest.mark.parametrize("count", [1, 3, 8, 25, 500])
def test_many_datasets_fit(loader: Any, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries of datasets become shorter, then only their common root remains."""
    names = ("data", "dataset.yaml", "split.yaml")
    records = [dict.fromkeys(names, f"{number:032x}") for number in range(count)]
    monkeypatch.setattr("energon_grain.history.receipts.datasets_field", lambda _: datasets_field(records))
    receipt = loader.receipt()
    assert len(str(receipt)) < MOST_BYTES
    assert receipt["datasets"]["count"] == count
    each = receipt["datasets"].get("each")
    if count == 500:
        assert each is None
    else:
        assert {type(entry) for entry in each} == {dict if count < 8 else str}


SAMPLES = irregular_samples(23)
COLUMNS = {"n": list(range(40)), "text": [f"text {i}" for i in range(40)]}


def tars(root: Path) -> Path:
    write_tars(root / "tars", SAMPLES, shards=3)
    prepare_dataset(root / "tars", split_ratio={"train": 1}, crude=True, num_workers=0)
    return root / "tars"


def records(root: Path) -> Path:
    write_shards(root / "records", [msgpack_record(sample) for sample in SAMPLES], 3)
    prepare_dataset(root / "records", split_ratio={"train": 1}, crude=True, num_workers=0, records="msgpack")
    return root / "records"


def lines(root: Path) -> Path:
    (root / "x.jsonl").write_text("".join(f'{{"i": {i}}}\n' for i in range(40)))
    return root / "x.jsonl"


def tokens(root: Path) -> Path:
    write_tokens(root / "tokens", [list(range(i % 11)) for i in range(30)])
    return root / "tokens.bin"


def arrow(root: Path) -> Path:
    write_arrow(root / "arrow" / "a.arrow", COLUMNS)
    return root / "arrow"


def bare(root: Path) -> Path:
    write_tars(root / "bare" / "deep", SAMPLES, shards=3)
    return root / "bare"


def joined(root: Path) -> Path:
    tars(root)
    write_tars(root / "other", [{"__key__": each["__key__"], "bin": b"x"} for each in SAMPLES])
    prepare_dataset(root / "other", split_ratio={"train": 1}, crude=True, num_workers=0)
    write_array(root / "score", numbered(len(SAMPLES), 2))
    join = [{"path": "tars"}, {"path": "other"}, {"array": "score"}]
    return write_v2(root, "join.yaml", train={"join": join})


KINDS: dict[str, tuple[Callable[[Path], Any], int]] = {
    "tars": (tars, 3),
    "bare tars": (bare, 3),
    "records": (records, 3),
    "jsonl": (lines, 1),
    "parquet": (lambda root: write_parquet(root / "parquet", COLUMNS, files=3) and root / "parquet", 3),
    "arrow": (arrow, 1),
    "mds": (lambda root: write_mds(root / "mds", COLUMNS) and root / "mds", 2),
    "tokens": (tokens, 2),
    "arrays": (lambda root: write_group(root / "zarr", "zarr3", a=numbered(40, 3), n=np.arange(40)), 5),
    "join": (joined, 6),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind(kind: str, tmp_path: Path) -> None:
    make, at_least = KINDS[kind]
    path = make(tmp_path)
    with opened(path) as loader:
        if kind not in ("tars", "join"):  # `prepare` stores those of tars
            with pytest.raises(StateError, match="run `energon-grain measure "):
                loader.receipt()
        assert digest_dataset(path).files >= at_least
        receipt = loader.receipt()
        assert verify_receipt(receipt, loader).differences == ()
        assert verify_files(receipt, files_at(path)).differences == ()
        files = [(each, name, Path(at)) for each in files_at(path) for name, at in each.files.items()]
        for dataset, name, file in files:
            whole = file.read_bytes()
            file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
            (line,) = verify_receipt(receipt, loader).differences
            file.write_bytes(whole)
            assert line.startswith(f"{dataset.named}: {name} ")


class Letters(Rows):
    """A kind of data of another package, without a word about digests."""

    part_names = ("txt",)
    digest = "letters"

    def __init__(self, path: str) -> None:
        self.path = path

    @property
    def shard_counts(self) -> dict[str, int]:
        return {file.name: file.stat().st_size for file in sorted(Path(self.path).glob("*.txt"))}

    def read_rows(self, numbers: Any) -> Any:
        raise NotImplementedError

    def sizes(self, numbers: Any) -> Any:
        return np.ones(len(numbers), np.int64)


def test_kinds_of_other_packages_need_nothing(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(name)
    with closing(selected(Letters(str(tmp_path)))) as source:
        (files,) = DataFiles.of(source)
        assert files.kept() is None
        assert files.store() == 10
        kept = files.kept()
        assert kept == files.now()
        assert list(kept or ()) == ["a.txt", "b.txt"]
    assert Path(f"{tmp_path}.columns/digests.json").is_file()


def test_a_source_without_a_list_of_files_is_an_error() -> None:
    class Nothing:
        path = "nowhere"

    with pytest.raises(ConfigError, match="nowhere: does not list its files"):
        list(DataFiles.of(Nothing()))


@pytest.mark.parametrize("kind", ["tars", "records", "jsonl", "parquet", "tokens", "arrays"])
def test_in_a_store(kind: str, tmp_path: Path, bucket: Bucket) -> None:
    """The digests are those of the same files on a disk."""
    path = KINDS[kind][0](tmp_path / "local" if (tmp_path / "local").mkdir() is None else tmp_path)
    url = f"{bucket.upload(tmp_path / 'local')}/{path.name}"
    digest_dataset(path)
    report = digest_dataset(url)
    local, remote = files_at(path), files_at(url)
    assert [each.kept() for each in local] == [each.kept() for each in remote] == [each.now() for each in remote]
    assert report.size_bytes == sum(each.size_bytes for each in local)
    with opened(path) as here, opened(url) as there:
        assert here.receipt()["datasets"] == there.receipt()["datasets"]
        receipt = there.receipt()
        name, at = next(reversed(remote[0].files.items()))
        key = at.removeprefix(f"{bucket.url}/")
        data = bucket.get(key)
        bucket.put(key, data[:-1] + bytes([data[-1] ^ 1]))
        (line,) = verify_files(receipt, remote).differences
        assert f": {name} differs" in line
