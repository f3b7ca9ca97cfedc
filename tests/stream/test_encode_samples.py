"""`encode_samples`: many samples at once, and nobody can tell from what comes out."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from metadatasets import write_v2
from small_graphs import take
from stream_hosts import MakeDataset, config

from energon_grain import (
    AugmentTaskEncoder,
    BlendDataset,
    ConfigError,
    Cooker,
    FatalSampleError,
    FilterDataset,
    MapDataset,
    SavableDataset,
    SkipSample,
    Stream,
    TaskEncoder,
    TextSample,
    WorkerConfig,
    basic_sample_keys,
    current_draw,
    current_draws,
    get_savable_loader,
    get_train_dataset,
    stateless,
)
from energon_grain.testing import check_hooks, make_crude_dataset


def train(path: Path, encoder: TaskEncoder | None = None, **options: Any) -> SavableDataset:
    arguments: dict[str, Any] = {
        "batch_size": 4,
        "shuffle_buffer_size": 20,
        "max_samples_per_sequence": 4,
        "worker_config": config(),
        "lanes": 4,
    }
    return get_train_dataset(path, task_encoder=encoder or TaskEncoder(), **{**arguments, **options})


def marked(sample: Any, rng: np.random.Generator, position: int) -> Any:
    """In place, so that a sample that goes through it twice shows it."""
    sample.text = f"<{sample.text[:6]} {position} {rng.random():.6f}>"
    return sample


class Many(TaskEncoder):
    """Marks each sample; some are left out, some fail after all others were changed."""

    def __init__(self, skipped: frozenset[int] = frozenset(), failing: frozenset[int] = frozenset()) -> None:
        self.skipped, self.failing = skipped, failing
        self.lengths: list[int] = []

    def encode_samples(self, samples: list[Any]) -> list[Any]:
        self.lengths.append(len(samples))
        positions = [draw.position for draw in current_draws()]
        encoded = list(map(marked, samples, self.rngs, positions))
        numbers = [int(sample.__key__) for sample in samples]
        if self.failing.intersection(numbers):
            raise ValueError("one of them is bad")
        return [SkipSample() if number in self.skipped else one for one, number in zip(encoded, numbers, strict=True)]


class One(Many):
    """The same, one by one, under the same name."""

    def encode_samples(self, samples: list[Any]) -> list[Any]:
        raise NotImplementedError

    def build_encode_sample(self, dataset: SavableDataset, *, worker_config: WorkerConfig) -> SavableDataset:
        return MapDataset(dataset, self.encode_one, hook="encode_samples", task_encoder=self)

    def encode_one(self, sample: Any) -> Any:
        number = int(sample.__key__)
        if number in self.failing:
            raise ValueError("bad")
        if number in self.skipped:
            raise SkipSample
        return marked(sample, self.rng, self.current_sample_index)


def told(stream: Stream, count: int) -> list[Any]:
    return [(batch.__key__, batch.text, batch.__restore_key__) for batch in take(stream, count)]


@pytest.mark.parametrize("failing", [frozenset[int](), frozenset({3, 50})])
def test_it_gives_what_encoding_one_by_one_gives(text_dataset: MakeDataset, failing: frozenset[int]) -> None:
    path, skipped = text_dataset(97), frozenset({7, 8, 90})
    many, one = Many(skipped, failing), One(skipped, failing)
    with Stream.of(train(path, many)) as found, Stream.of(train(path, one)) as expected:
        assert told(found, 60) == told(expected, 60)
        assert found.stats().dropped == expected.stats().dropped
        assert found.cursor() == expected.cursor()
        assert max(many.lengths) > 8
        dropped = found.stats()["dropped"].popitem()[1]
        assert dropped.keys() == {"encode_samples: SkipSample"} | ({"encode_samples: ValueError"} if failing else set())


@pytest.mark.parametrize(("kind", "thread_safe"), [("thread", False), ("thread", True), ("process", False)])
def test_workers_and_hosts_change_nothing(
    text_dataset: MakeDataset, kind: str, thread_safe: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Many, "thread_safe", thread_safe)
    path = text_dataset(97)

    def texts(hosts: int, **options: Any) -> list[list[str]]:
        encoder = Many(frozenset({7}), frozenset({50}))
        graphs = [
            train(path, encoder, batch_size=8 // hosts, worker_config=config(host, hosts, **options))
            for host in range(hosts)
        ]
        streams = [Stream.of(graph) for graph in graphs]
        found = [sorted(sum((next(stream).text for stream in streams), [])) for _ in range(30)]
        for stream in streams:
            stream.close()
        return found

    assert texts(2) == texts(1) == texts(1, num_workers=2 if kind == "thread" else 1, worker_type=kind)


def test_states_and_restore_keys(text_dataset: MakeDataset) -> None:
    dataset = train(text_dataset(97), Many(frozenset({7}), frozenset({50})), worker_config=config())
    loader = get_savable_loader(dataset)
    batches = take(loader, 12)
    state = json.loads(json.dumps(loader.get_state()))
    expected = take(loader, 12)
    again = get_savable_loader(dataset)
    again.set_state(state)
    assert [batch.text for batch in take(again, 12)] == [batch.text for batch in expected]
    for batch in (batches[0], batches[-1], expected[5]):
        assert again.restore_sample(batch.__restore_key__).text == batch.text
        assert again.restore_sample(batch.__restore_key__[-1]).text == batch.text[-1]


def test_rows_of_a_join(text_dataset: MakeDataset, tmp_path: Path) -> None:
    members = [{"path": str(text_dataset(97))}, {"path": str(text_dataset(31)), "nonmatch": "skip"}]
    joined = write_v2(tmp_path, train={"join": members})
    bad = frozenset({7}), frozenset({11})
    with Stream.of(train(joined, Many(*bad))) as found, Stream.of(train(joined, One(*bad))) as expected:
        assert told(found, 30) == told(expected, 30)
        assert found.stats().dropped == expected.stats().dropped


def test_leaves_of_a_blend_are_encoded_together(text_dataset: MakeDataset) -> None:
    def blend(encoder: Many | One) -> SavableDataset:
        leaves = [train(text_dataset(97), batch_size=None), train(text_dataset(31), batch_size=None)]
        filtered = FilterDataset(BlendDataset((leaves[0], 2), (leaves[1], 1)), keep)
        return encoder.build_encode_sample(filtered, worker_config=config())

    many = Many()
    with Stream.of(blend(many)) as found, Stream.of(blend(One())) as expected:
        assert [sample.text for sample in take(found, 200)] == [sample.text for sample in take(expected, 200)]
    assert max(many.lengths) > 8


def keep(sample: Any) -> bool:
    return sample.__key__[-1] != "5"


class Packs(Many):
    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        return [samples[at : at + 2] for at in range(0, len(samples), 2)]

    def pack_selected_samples(self, samples: list[Any]) -> Any:
        return TextSample.derive_from(samples[0], text="|".join(sample.text for sample in samples))


class OnePacks(One, Packs):
    pass


def test_it_stands_below_packing(text_dataset: MakeDataset) -> None:
    path, bad = text_dataset(97), (frozenset({7}), frozenset({50}))
    many = Packs(*bad)
    dataset = train(path, many, packing_buffer_size=6)
    with Stream.of(dataset) as found, Stream.of(train(path, OnePacks(*bad), packing_buffer_size=6)) as expected:
        batches = take(found, 20)
        assert [batch.text for batch in batches] == [batch.text for batch in take(expected, 20)]
        assert max(many.lengths) > 1
        assert found.restore_sample(batches[3].__restore_key__).text == batches[3].text


def doubled(sample: Any) -> Iterator[Any]:
    for part in "ab":
        yield TextSample.derive_from(sample, text=f"{part}{sample.text[:4]}")


def loud(samples: list[Any]) -> list[Any]:
    for sample in samples:
        sample.text = sample.text.upper()
    return [SkipSample() if sample.__key__ == "000003" else sample for sample in samples]


def sizes(batches: list[Any]) -> list[int]:
    return [len(batch.text) for batch in batches]


def test_above_what_generates_lists_hold_one(text_dataset: MakeDataset) -> None:
    samples = train(text_dataset(24), batch_size=None, repeat=False)
    lengths: list[int] = []

    def noted(samples: list[Any]) -> list[Any]:
        lengths.append(len(samples))
        assert len(current_draws()) == len(samples)
        return loud(samples)

    with Stream.of(MapDataset(MapDataset(samples, doubled), noted, lists=True)) as stream:
        texts = [sample.text for sample in stream]
        assert len(texts) == 2 * 23
        assert {text[0] for text in texts} == {"A", "B"}
        assert set(lengths) == {1}
        assert stream.stats()["dropped_total"] == 2
    with Stream.of(MapDataset(train(text_dataset(24), repeat=False), sizes, lists=True)) as stream:
        assert list(stream) == [4] * 6


def test_cooked_samples_and_hooks_before(tmp_path: Path) -> None:
    """A list that fails is made from the bytes on: nothing that was changed before is changed again."""
    path = make_crude_dataset(tmp_path / "crude", n=24, shards=1)

    def cook(sample: Any) -> TextSample:
        sample["json"]["cooked"] = sample["json"].get("cooked", 0) + 1
        return TextSample(**basic_sample_keys(sample), text=sample["json"])

    class Encoder(TaskEncoder):
        cookers = (Cooker(stateless(cook)),)

        def encode_samples(self, samples: list[Any]) -> list[Any]:
            for sample in samples:
                sample.text["encoded"] = sample.text.get("encoded", 0) + 1
            if any(sample.__key__ == "000011" for sample in samples):
                raise KeyError("it has no such thing")
            return samples

    with Stream.of(train(path, Encoder(), repeat=False, batch_size=None)) as stream:
        found = [(sample.text["cooked"], sample.text["encoded"]) for sample in stream]
    assert found == [(1, 1)] * 23


def test_an_entry_may_be_any_exception(text_dataset: MakeDataset, caplog: pytest.LogCaptureFixture) -> None:
    class Encoder(TaskEncoder):
        def encode_samples(self, samples: list[Any]) -> list[Any]:
            return [ValueError("odd") if int(sample.__key__) % 2 else sample for sample in samples]

    failures: list[tuple[str, str]] = []
    handler: Callable[..., None] = lambda error, sample, sources: failures.append((sample.__key__, str(error)))  # noqa: E731
    options = {"worker_config": config(global_error_handler=handler), "repeat": False, "batch_size": None}
    with Stream.of(train(text_dataset(24), Encoder(), **options)) as stream:
        assert {int(sample.__key__) % 2 for sample in stream} == {0}
        assert stream.stats()["dropped"].popitem()[1] == {"encode_samples: ValueError": 12}
    assert sorted(failures) == [(f"{n:06d}", "odd") for n in range(1, 24, 2)]

    class Broken(TaskEncoder):
        def encode_samples(self, samples: list[Any]) -> list[Any]:
            return [MemoryError()] * len(samples)

    with pytest.raises(FatalSampleError, match="encode_samples failed on shard_"):
        next(Stream.of(train(text_dataset(24), Broken())))


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda samples: samples[1:], r"one entry for each of the 4 samples .*it returned a list of 3\. To drop"),
        (lambda samples: None, r"it returned a value of type NoneType"),
        (lambda samples: iter(samples), r"it returned a value of type list_iterator"),
        (lambda samples: samples.clear() or [], r"4 samples .*a list of 0"),
    ],
)
def test_entries_must_be_one_for_each_sample(text_dataset: MakeDataset, returned: Any, message: str) -> None:
    class Encoder(TaskEncoder):
        def encode_samples(self, samples: list[Any]) -> Any:
            return returned(samples)

    with pytest.raises(FatalSampleError, match=message):
        next(Stream.of(train(text_dataset(24), Encoder())))


def test_random_numbers_are_of_each_sample(text_dataset: MakeDataset) -> None:
    found: dict[str, list[float]] = {}

    class Encoder(TaskEncoder):
        def encode_samples(self, samples: list[Any]) -> list[Any]:
            for sample, rng in zip(samples, self.rngs, strict=True):
                found.setdefault(sample.__key__, []).append(rng.random())
            assert [draw.rng for draw in current_draws()] == self.rngs, "the same generators, asked again"
            for refused in (current_draw, lambda: self.rng, lambda: self.current_sample_index):
                with pytest.raises(RuntimeError, match=r"many samples at once, .*current_draws\(\).*self\.rngs"):
                    refused()
            assert len({draw.index for draw in current_draws()}) == len(samples)
            assert all(draw.batch_index >= 0 for draw in current_draws())
            return samples

        def batch(self, samples: list[Any]) -> Any:
            assert self.rngs == [self.rng]
            return super().batch(samples)

    take(Stream.of(train(text_dataset(24), Encoder())), 6)
    assert len({numbers[0] for numbers in found.values()}) == 24
    with pytest.raises(RuntimeError, match="no hook runs"):
        current_draws()


def test_what_does_not_fit(text_dataset: MakeDataset) -> None:
    def hook(self: Any, samples: Any) -> Any:
        return samples

    def several(self: Any, samples: Any) -> Iterator[Any]:
        yield from samples

    path = text_dataset(24)
    refused = {
        r"encode_sample and encode_samples, .*keep only one": {"encode_sample": hook, "encode_samples": hook},
        r"preencode_sample and encode_samples": {"preencode_sample": hook, "encode_samples": hook},
        r"several\) is a generator function": {"encode_samples": several},
        r"encode_samples: restore_seeds=True .*self\.rngs": {"encode_samples": stateless(restore_seeds=True)(hook)},
    }
    for message, hooks in refused.items():
        with pytest.raises(ConfigError, match=message):
            train(path, type("Made", (TaskEncoder,), hooks)())


def test_lists_that_fail_although_no_sample_does_are_told(
    text_dataset: MakeDataset, caplog: pytest.LogCaptureFixture
) -> None:
    class Encoder(TaskEncoder):
        def encode_samples(self, samples: list[Any]) -> list[Any]:
            if len(samples) > 1:
                raise ValueError("shapes differ")
            return samples

    with caplog.at_level(logging.WARNING, "energon_grain"), Stream.of(train(text_dataset(24), Encoder())) as stream:
        take(stream, 12)
        assert stream.stats()["dropped_total"] == 0
    (record,) = caplog.records
    assert "encode_samples raised ValueError (shapes differ) on a list of samples, but on none" in record.getMessage()


def test_augmented_encoders_hand_it_on(text_dataset: MakeDataset) -> None:
    class Louder(AugmentTaskEncoder):
        def encode_samples(self, samples: list[Any]) -> list[Any]:
            return loud(super().encode_samples(samples))

    path, inner = text_dataset(24), Many()
    with Stream.of(train(path, AugmentTaskEncoder(inner))) as found, Stream.of(train(path, Many())) as expected:
        assert told(found, 5) == told(expected, 5)
    with Stream.of(train(path, Louder(inner))) as stream:
        assert all(text == text.upper() for text in next(stream).text)
    assert max(inner.lengths) > 1


class Padding(TaskEncoder):
    def encode_samples(self, samples: list[Any]) -> list[Any]:
        longest = max(len(sample.text) for sample in samples)
        for sample in samples:
            sample.text = np.frombuffer(sample.text.ljust(longest)[:longest].encode("ascii", "replace"), np.uint8)
        return samples


class Counting(TaskEncoder):
    calls = 0

    def encode_sample(self, sample: Any) -> Any:
        self.calls += 1
        return {"call": {"number": [self.calls]}}


class Alike(TaskEncoder):
    def encode_samples(self, samples: list[Any]) -> list[Any]:
        if len(samples) == 1:
            return [ValueError("alone")]
        return [SkipSample("among others")] * len(samples)


@pytest.mark.parametrize(
    ("encoder", "message"),
    [
        (
            Padding(),
            r"sample \d+ of path.* a call with 24 .*call with one: \.text is uint8 \(\d+,\), expected uint8 \(\d+,\)",
        ),
        (Counting(), r"\['call'\]\['number'\]\[0\] is 1, expected 25"),
        (Alike(), r"it is dropped with SkipSample.*, expected ValueError"),
        (Many(failing=frozenset(range(24))), r"nothing was checked: encode_samples dropped all: ValueError"),
    ],
)
def test_hooks_that_depend_on_the_list_are_found(text_dataset: MakeDataset, encoder: Any, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_hooks(train(text_dataset(24), encoder, repeat=False))


def test_hooks_that_depend_on_their_sample_pass_the_check(text_dataset: MakeDataset) -> None:
    bad = frozenset({7}), frozenset({11})
    check_hooks(train(text_dataset(24), Many(*bad), repeat=False))
    check_hooks(train(text_dataset(97), Packs(*bad), packing_buffer_size=6))
    check_hooks(train(text_dataset(97), One(*bad), batch_size=None), samples=10)
