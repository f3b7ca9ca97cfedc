"""WebDatasetSource against `tarfile`: what is read, in which order, from how few open files."""

from __future__ import annotations

import io
import os
import pickle
import tarfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from energon_grain import Source, WebDatasetSource
from energon_grain.errors import ConfigError, EmptyDatasetError
from energon_grain.prepare import prepare_dataset
from energon_grain.sources.webdataset import WebDatasetGroup, read_alike
from energon_grain.testing import write_tars

Sample = tuple[str, str, list[tuple[str, bytes]]]
"""Shard, key, and (part, payload) as often as the part comes."""


def prepared(root: Path, samples: Sequence[dict[str, Any]], **options: Any) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    write_tars(root, samples, **options)
    prepare_dataset(root, split_ratio={"train": 1}, crude=True, num_workers=0, sqlite=False)
    return root


def oracle(root: Path) -> list[Sample]:
    """Every sample of every shard, by `tarfile`."""
    samples: list[Sample] = []
    for shard in sorted(root.rglob("*.tar")):
        name = shard.relative_to(root).as_posix()
        with tarfile.open(shard) as tar:
            for member in tar:
                folder, _, file = member.name.rpartition("/")
                stem, _, part = file.partition(".")
                key = f"{folder}/{stem}" if folder else stem
                if not samples or samples[-1][:2] != (name, key):
                    samples.append((name, key, []))
                payload = tar.extractfile(member)
                assert payload is not None
                samples[-1][2].append((part, payload.read()))
    return samples


def told(source: WebDatasetSource, indices: Sequence[int]) -> list[tuple[str, str, dict[str, bytes]]]:
    return [(raw.shard, raw.key, dict(raw.parts)) for raw in source.read(np.array(indices, np.int64))]


def expected(samples: Sequence[Sample], indices: Sequence[int]) -> list[tuple[str, str, dict[str, bytes]]]:
    return [(samples[i][0], samples[i][1], dict(samples[i][2])) for i in indices]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """23 samples in 3 shards: parts that come and go, empty ones, large ones, keys in every alphabet."""
    rng = np.random.default_rng(0)
    keys = ["plain", "Grüße", "日本語", "emoji-🎈", "a/b/deep", "with space", "0", "ключ"]
    samples: list[dict[str, Any]] = []
    for i in range(23):
        sample: dict[str, Any] = {"__key__": f"{keys[i % len(keys)]}{i:03d}", "txt": f"text {i}"}
        if i % 3 == 0:
            sample["json"] = {"i": i}
        if i % 5 == 1:
            sample["seg.png"] = rng.bytes(i * 1000)
        if i % 7 == 2:
            sample["empty"] = b""
        samples.append(sample)
    return prepared(tmp_path_factory.mktemp("irregular") / "dataset", samples, shards=3)


def test_it_is_a_source(dataset: Path) -> None:
    source = WebDatasetSource(dataset)
    assert isinstance(source, Source)
    assert source.path == str(dataset)
    assert set(source.part_names) == {"txt", "json", "seg.png", "empty"}
    assert str(dataset) in repr(source)


def test_reads_in_the_order_asked_for(dataset: Path) -> None:
    source, samples = WebDatasetSource(str(dataset)), oracle(dataset)
    assert len(source) == len(samples) == 23
    for indices in (list(range(23)), [22, 0, 11, 5, 5, 5, 0], [7], list(range(22, -1, -1))):
        assert told(source, indices) == expected(samples, indices)


def test_nothing_asked_for(dataset: Path) -> None:
    source = WebDatasetSource(dataset)
    batch = source.read(np.empty(0, np.int64))
    assert len(batch) == 0
    assert list(batch) == []
    assert batch.nbytes() == 0
    assert source.sizes(np.empty(0, np.int64)).tolist() == []


@pytest.mark.parametrize("index", [-1, 23, 1 << 40])
def test_indices_out_of_range(dataset: Path, index: int) -> None:
    source = WebDatasetSource(dataset)
    with pytest.raises(IndexError, match=rf"sample {index} asked for, but there are 23"):
        source.read(np.array([0, index]))
    with pytest.raises(IndexError):
        source.locate(index)


def test_batches_are_sequences(dataset: Path) -> None:
    batch = WebDatasetSource(dataset).read(np.array([4, 2, 9]))
    assert [raw.index for raw in batch] == [4, 2, 9]
    assert [raw.key for raw in batch[1:]] == [batch[1].key, batch[2].key]
    assert batch[-1].index == 9
    with pytest.raises(IndexError):
        batch[3]
    assert batch.nbytes() == sum(len(data) for raw in batch for data in raw.parts.values())
    assert all(type(data) is bytes for raw in batch for data in raw.parts.values())


@pytest.mark.parametrize("wanted", [["txt"], {"json", "nowhere"}, lambda name: "." in name, ["json", "txt"]])
def test_some_parts_only(dataset: Path, wanted: Any) -> None:
    source, samples = WebDatasetSource(dataset, parts=wanted), oracle(dataset)
    accepts = wanted if callable(wanted) else wanted.__contains__
    chosen = [(shard, key, [part for part in parts if accepts(part[0])]) for shard, key, parts in samples]
    indices = [3, 1, 4, 1, 5, 9, 2, 6]
    assert told(source, indices) == expected(chosen, indices)
    sizes = [sum(len(data) for _, data in chosen[i][2]) for i in indices]
    assert source.sizes(np.array(indices)).tolist() == sizes
    assert all(accepts(name) for name in source.part_names)


def test_subset_counts_before_excludes(dataset: Path) -> None:
    samples = oracle(dataset)
    left_out = [(samples[i][0], samples[i][1]) for i in (2, 7, 8, 22)]
    source = WebDatasetSource(dataset, start=3, stop=15, excluded=left_out)
    kept = [i for i in range(3, 15) if i not in (7, 8)]
    assert len(source) == 10
    assert told(source, range(10)) == expected(samples, kept)
    assert [source.locate(i).key for i in range(10)] == [samples[i][1] for i in kept]


def test_excludes_that_name_nothing(dataset: Path) -> None:
    (shard, key, _), other = oracle(dataset)[0], oracle(dataset)[-1][0]
    source = WebDatasetSource(dataset, excluded=[(shard, "no such key"), ("none.tar", key), (other, key)])
    assert len(source) == 23


def test_shards_in_another_order(dataset: Path) -> None:
    samples = oracle(dataset)
    names = sorted({shard for shard, _, _ in samples})
    order = [names[2], names[0]]
    chosen = [sample for name in order for sample in samples if sample[0] == name]
    source = WebDatasetSource(dataset, shards=order, excluded=[chosen[1][:2]])
    del chosen[1]
    assert told(source, range(len(source))) == expected(chosen, range(len(chosen)))


def test_a_shard_twice(dataset: Path) -> None:
    """Both times it is itself, and an exclude takes the sample out of both."""
    samples = [sample for sample in oracle(dataset) if sample[0] == oracle(dataset)[0][0]]
    source = WebDatasetSource(dataset, shards=[samples[0][0]] * 2, excluded=[samples[1][:2]])
    del samples[1]
    assert told(source, range(len(source))) == expected(samples + samples, range(2 * len(samples)))


@pytest.mark.parametrize("parts", [None, ["txt", "empty"]])
def test_a_group_reads_what_its_sources_read(dataset: Path, parts: Any) -> None:
    samples = oracle(dataset)
    names = sorted({shard for shard, _, _ in samples})
    left_out = [samples[i][:2] for i in (2, 7, 8, 22)]
    chosen: list[Any] = [
        {},
        {"start": 3, "stop": 15, "excluded": left_out},
        {"shards": [names[2], names[0]]},
        {"shards": [names[1]] * 2, "excluded": left_out},
        {"start": 22},
    ]
    sources = [WebDatasetSource(dataset, parts=parts, **options) for options in chosen]
    assert len(set(map(read_alike, sources))) == 1
    group, lengths, rng = WebDatasetGroup(sources), np.array(list(map(len, sources))), np.random.default_rng(1)
    for count in (1, 3, 100):
        which = rng.integers(0, len(sources), count)
        indices = rng.integers(0, 1 << 30, count) % lengths[which]
        for raw, number, index in zip(group.read(which, indices), which.tolist(), indices.tolist(), strict=True):
            assert [(raw.shard, raw.key, dict(raw.parts))] == told(sources[number], [index])
            assert raw.index == index
    for index in (-1, 10):
        with pytest.raises(IndexError, match=f"sample {index} asked for, but there are 10"):
            group.read(np.array([0, 4, 1]), np.array([0, 0, index]))


def test_impossible_selections(dataset: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no shard 'none\.tar'; it has 3, such as 'shard_000\.tar'"):
        WebDatasetSource(dataset, shards=["none.tar"])
    with pytest.raises(ConfigError, match=r"subset \[3, 24\)"):
        WebDatasetSource(dataset, start=3, stop=24)
    with pytest.raises(EmptyDatasetError):
        WebDatasetSource(dataset, start=4, stop=4)
    shard, key, _ = oracle(dataset)[4]
    with pytest.raises(EmptyDatasetError):
        WebDatasetSource(dataset, start=4, stop=5, excluded=[(shard, key)])
    with pytest.raises(EmptyDatasetError):
        WebDatasetSource(dataset, shards=[])


def test_locate_tells_where_the_bytes_are(dataset: Path) -> None:
    source, samples = WebDatasetSource(dataset), oracle(dataset)
    reached: dict[str, int] = {}
    for index, (shard, key, parts) in enumerate(samples):
        place = source.locate(index)
        assert (place.index, place.shard, place.key) == (index, shard, key)
        data = (dataset / shard).read_bytes()
        assert {name: data[at : at + size] for name, (at, size) in place.parts.items()} == dict(parts)
        assert place.start == reached.get(shard, 0)
        assert all(place.start < at <= at + size <= place.stop for at, size in place.parts.values())
        reached[shard] = place.stop
        assert source.sizes(np.array([index])).tolist() == [place.stop - place.start]


def test_copies_in_other_processes(dataset: Path) -> None:
    source = WebDatasetSource(dataset, start=2, stop=9, parts=["txt"])
    copy = pickle.loads(pickle.dumps(source))
    assert len(pickle.dumps(source)) < 2000
    assert told(copy, range(7)) == told(source, range(7))
    assert copy.content_id == source.content_id


def test_content_ids(dataset: Path, tmp_path: Path) -> None:
    """Equal content, equal id, wherever it lies; other samples, another order or other bytes, another id."""
    whole = WebDatasetSource(dataset)
    moved = tmp_path / "moved"
    os.symlink(dataset, moved)
    assert WebDatasetSource(moved).content_id == whole.content_id
    shard, key, _ = oracle(dataset)[3]
    names = sorted({name for name, _, _ in oracle(dataset)})
    others = [
        WebDatasetSource(dataset, start=1),
        WebDatasetSource(dataset, stop=22),
        WebDatasetSource(dataset, excluded=[(shard, key)]),
        WebDatasetSource(dataset, shards=names[::-1]),
        WebDatasetSource(dataset, shards=names[:2]),
        WebDatasetSource(prepared(tmp_path / "other", [{"__key__": "0", "txt": "x"}])),
    ]
    assert len({source.content_id for source in (whole, *others)}) == 7


def test_closing_and_reading_again(dataset: Path) -> None:
    source = WebDatasetSource(dataset)
    first = told(source, [1, 20])
    source.close()
    assert told(source, [1, 20]) == first


def test_the_last_of_repeated_parts_counts(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name, size in (("0.txt", 1), ("0.txt", 2), ("1.txt", 3), ("1.txt", 4), ("2.txt", 5)):
            member = tarfile.TarInfo(name)
            member.size = size
            tar.addfile(member, io.BytesIO(b"x" * size))
    prepare_dataset(tmp_path, split_ratio={"train": 1}, crude=True, num_workers=0, sqlite=False)
    source = WebDatasetSource(tmp_path)
    for indices in ([0, 1], [0, 1, 2], [2, 0]):
        assert [len(raw.parts["txt"]) for raw in source.read(np.array(indices))] == [(2, 4, 5)[i] for i in indices]


def test_thousands_of_shards(tmp_path: Path) -> None:
    """No shard is touched before it is read, and no more than the process has room for are open at once."""
    samples = [{"__key__": f"{i:05d}", "txt": str(i)} for i in range(2000)]
    root = prepared(tmp_path / "many", samples, shards=2000, name="shard_{:04d}.tar")
    for shard in range(100, 200):
        os.unlink(root / f"shard_{shard:04d}.tar")  # nobody asks for them
    before = len(os.listdir("/proc/self/fd"))
    source = WebDatasetSource(root)
    assert len(os.listdir("/proc/self/fd")) - before <= 8
    rng = np.random.default_rng(0)
    indices = np.concatenate([np.arange(100), np.arange(200, 2000)])
    rng.shuffle(indices)
    for chunk in np.array_split(indices, 7):
        assert [raw.parts["txt"] for raw in source.read(chunk)] == [str(i).encode() for i in chunk]
        assert len(os.listdir("/proc/self/fd")) - before <= 1024 + 8


def test_threads_compete_for_the_open_files(tmp_path: Path) -> None:
    samples = [{"__key__": f"{i:05d}", "txt": str(i)} for i in range(300)]
    source = WebDatasetSource(prepared(tmp_path / "many", samples, shards=100))
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        try:
            for _ in range(25):
                indices = rng.integers(0, 300, 60)
                assert [raw.parts["txt"] for raw in source.read(indices)] == [str(i).encode() for i in indices]
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


part_names = st.sampled_from(["txt", "json", "a.b", "jpg", "Ünï"])
trees = st.lists(
    st.lists(st.dictionaries(part_names, st.binary(max_size=1500), min_size=1), min_size=1, max_size=6),
    min_size=1,
    max_size=3,
)


@settings(max_examples=25)
@given(shards=trees, data=st.data())
def test_against_tarfile(tmp_path_factory: pytest.TempPathFactory, shards: list[Any], data: st.DataObject) -> None:
    root = tmp_path_factory.mktemp("random")
    for number, samples in enumerate(shards):
        named = [{"__key__": f"k{number}-{i}", **parts} for i, parts in enumerate(samples)]
        tar_format = data.draw(st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]))
        write_tars(root, named, name=f"{number}.tar", tar_format=tar_format)
    prepare_dataset(root, split_ratio={"train": 1}, crude=True, num_workers=0, sqlite=False)
    samples, source = oracle(root), WebDatasetSource(root)
    indices = data.draw(st.lists(st.integers(0, len(samples) - 1), max_size=20))
    assert len(source) == len(samples)
    assert told(source, indices) == expected(samples, indices)
