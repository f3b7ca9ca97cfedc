"""All hooks of a task encoder at work: their order, what they may raise, their random numbers and indices."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from logging_encoders import Groups, Packs, train
from small_graphs import number, take
from stream_hosts import MakeDataset, config, train_on

from energon_grain import (
    AugmentTaskEncoder,
    DefaultTaskEncoder,
    IterMapDataset,
    MapDataset,
    SkipSample,
    Stream,
    TaskEncoder,
    TextSample,
    current_draw,
    get_train_dataset,
    stateless,
)
from energon_grain.testing import make_crude_dataset


@pytest.fixture(scope="module")
def crude(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_crude_dataset(tmp_path_factory.mktemp("hooks") / "crude", n=24, shards=1)


def test_with_packing_hooks_run_in_this_order(crude: Path) -> None:
    encoder = Packs()
    stream = Stream.of(train(crude, encoder, packing_buffer_size=4))
    assert next(stream) == [0, 2]
    of_batches = [entry for entry in encoder.log if entry[0] not in ("cook_crude_sample", "preencode_sample")]
    assert of_batches == [
        ("select_samples_to_pack", [0, 1, 2, 3]),
        ("postencode_sample", [0]),
        ("postencode_sample", [1]),
        ("pack_selected_samples", [0, 1]),
        ("postencode_sample", [2]),
        ("postencode_sample", [3]),
        ("pack_selected_samples", [2, 3]),
        ("batch", [0, 2]),
        ("encode_batch", [0, 2]),
    ]
    of_samples = [hook for hook, numbers in encoder.log if numbers == [3]]
    assert of_samples == ["cook_crude_sample", "preencode_sample", "postencode_sample"]


def test_with_groups_hooks_run_in_this_order(crude: Path) -> None:
    encoder = Groups()
    assert next(Stream.of(train(crude, encoder))) == [0, 2]
    of_sample = [hook for hook, numbers in encoder.log if numbers == [2]]
    assert of_sample == ["cook_crude_sample", "encode_sample", "postencode_sample", "batch_group_criterion"]
    assert [entry for entry in encoder.log if entry[0] in ("batch", "encode_batch")] == [
        ("batch", [0, 2]),
        ("encode_batch", [0, 2]),
    ]


def test_without_batches_the_hooks_on_batches_do_not_run(crude: Path) -> None:
    encoder = Packs()
    packs = take(Stream.of(train(crude, encoder, batch_size=None, packing_buffer_size=4)), 3)
    assert [number(pack) for pack in packs] == [0, 2, 4]
    assert not {"batch", "encode_batch"} & {hook for hook, _ in encoder.log}


PACKING = {
    "cook_crude_sample": ([[0, 2], [4, 8], [10, 12], [14, 16], [18, 20], [22]], 2),
    "preencode_sample": ([[0, 2], [4, 8], [10, 12], [14, 16], [18, 20], [22]], 2),
    "postencode_sample": ([[0, 2], [4, 8], [10, 12], [14, 16], [18, 20], [22]], 2),
    "select_samples_to_pack": ([[0, 2], [8, 10], [12, 14], [16, 18], [20, 22]], 4),
    "pack_selected_samples": ([[0, 2], [4, 8], [10, 12], [14, 16], [18, 20], [22]], 1),
    "batch": ([[0, 2], [8, 10], [12, 14], [16, 18], [20, 22]], 1),
    "encode_batch": ([[0, 2], [8, 10], [12, 14], [16, 18], [20, 22]], 1),
}


@pytest.mark.parametrize("error", [SkipSample, ValueError])
@pytest.mark.parametrize("hook", PACKING)
def test_any_hook_may_drop_what_it_is_given(crude: Path, hook: str, error: type[Exception]) -> None:
    """Below the buffer a dropped sample makes room for the next one; above, its group, pack or batch goes."""

    def trouble(called: str, numbers: list[int]) -> None:
        if called == hook and {6, 7} & set(numbers):
            raise error("not 6 and 7")

    stream = Stream.of(train(crude, Packs(trouble), packing_buffer_size=4))
    expected, dropped = PACKING[hook]
    assert list(stream) == expected
    reasons = Counter[str]()
    for counts in stream.stats()["dropped"].values():
        reasons.update(counts)
    if hook == "select_samples_to_pack":  # one failure takes the whole buffer along
        assert sum(reasons.values()) == dropped
        assert reasons[f"{hook}: {error.__name__}"] >= 1
    else:
        assert reasons == {f"{hook}: {error.__name__}": dropped}


@pytest.mark.parametrize("error", [SkipSample, ValueError])
@pytest.mark.parametrize("hook", ["cook_crude_sample", "encode_sample", "postencode_sample", "batch_group_criterion"])
def test_before_groups_a_drop_is_of_one_sample(crude: Path, hook: str, error: type[Exception]) -> None:
    def trouble(called: str, numbers: list[int]) -> None:
        if called == hook and numbers == [2]:
            raise error("not 2")

    stream = Stream.of(train(crude, Groups(trouble)))
    evens = [batch for batch in stream if batch[0] % 2 == 0]
    assert evens == [[0, 4], [6, 8], [10, 12], [14, 16], [18, 20], [22]]
    assert stream.stats()["dropped_total"] == 1


class Generates(TaskEncoder):
    def encode_sample(self, sample: Any) -> Iterator[Any]:
        for part in range(1 + number(sample) % 2):
            yield number(sample), part

    def batch(self, samples: list[Any]) -> Iterator[Any]:
        yield samples[:2]
        yield samples[2:]

    def encode_batch(self, batch: Any) -> Iterator[Any]:
        yield from ("first", "second") if len(batch) == 2 else ()  # type: ignore[misc]


def test_generators_from_samples_to_batches(text_dataset: MakeDataset) -> None:
    class Samples(TaskEncoder):
        encode_sample = Generates.encode_sample

        def batch(self, samples: list[Any]) -> Any:
            return samples

    path = text_dataset(7)
    assert list(train(path, Samples(), batch_size=4)) == [
        [(0, 0), (1, 0), (1, 1), (2, 0)],
        [(3, 0), (3, 1), (4, 0), (5, 0)],
        [(5, 1), (6, 0)],
    ]

    class Batches(Samples):
        batch = Generates.batch  # type: ignore[assignment]

    assert list(train(path, Batches(), batch_size=3)) == [
        [(0, 0), (1, 0)],
        [(1, 1)],
        [(2, 0), (3, 0)],
        [(3, 1)],
        [(4, 0), (5, 0)],
        [(5, 1)],
        [(6, 0)],
        [],
    ]
    assert list(train(path, Generates(), batch_size=3)) == ["first", "second"] * 3


def test_a_generator_behind_packing(text_dataset: MakeDataset) -> None:
    class Encoder(TaskEncoder):
        def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
            return [samples]

        def pack_selected_samples(self, samples: list[Any]) -> Iterator[Any]:
            for sample in samples:
                yield number(sample), len(samples)

        def batch(self, samples: list[Any]) -> Any:
            return samples

    batches = list(train(text_dataset(7), Encoder(), batch_size=3, packing_buffer_size=4))
    assert batches == [[(0, 4), (1, 4), (2, 4)], [(3, 4), (4, 3), (5, 3)], [(6, 3)]]


@pytest.mark.parametrize("as_dict", [False, True])
def test_a_generator_may_yield_one_sample_again_and_again(text_dataset: MakeDataset, as_dict: bool) -> None:
    class Encoder(TaskEncoder):
        def encode_sample(self, sample: Any) -> Iterator[Any]:
            made: Any = {"text": sample.text} if as_dict else sample
            for turn in range(3):
                if as_dict:
                    made["text"] = turn
                else:
                    made.text = turn
                yield made

        def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
            return [samples]

        def pack_selected_samples(self, samples: list[Any]) -> Any:
            return [sample["text"] if as_dict else sample.text for sample in samples]

    dataset = train_on(text_dataset(20), batch_size=None, packing_buffer_size=4, task_encoder=Encoder(), lanes=1)
    turns = [turn % 3 for turn in range(40)]
    with Stream.of(dataset) as stream, Stream.of(dataset) as other:
        for pack in range(8):
            other.restore(stream.cursor())
            assert next(stream) == next(other) == turns[4 * pack : 4 * pack + 4]


class Indices(TaskEncoder):
    def encode_sample(self, sample: Any) -> Any:
        return number(sample), self.current_sample_index, self.current_batch_index

    def batch(self, samples: list[Any]) -> Any:
        return samples, self.current_sample_index, self.current_batch_index

    def encode_batch(self, batch: Any) -> Any:
        return (*batch, self.current_batch_index)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_indices_of_samples_and_batches(text_dataset: MakeDataset, num_workers: int) -> None:
    dataset = train(text_dataset(24), Indices(), batch_size=3, repeat=True)
    with Stream.of(dataset, num_workers=num_workers) as stream:
        steps = take(stream, 12)
        expected = [
            ([(place % 24, place, step) for place in range(3 * step, 3 * step + 3)], 3 * step, step, step)
            for step in range(12)
        ]
        assert steps == expected
        stream.restore(Stream.of(dataset).cursor())
        assert take(stream, 12) == expected


def test_the_batch_of_a_sample_is_not_known_before_a_packer(text_dataset: MakeDataset) -> None:
    class Encoder(Packs):
        def preencode_sample(self, sample: Any) -> Any:
            return TextSample.derive_from(sample, text=str(self.current_batch_index))

    told: list[Exception] = []
    dataset = train(
        text_dataset(24),
        Encoder(),
        packing_buffer_size=4,
        worker_config=config(global_error_handler=lambda error, *rest: told.append(error)),
    )
    with pytest.raises(Exception, match=r"without a single item|failed"):
        take(Stream.of(dataset), 1)
    assert "the number of the batch is not known in this hook" in str(told[0])


class Numbered(TaskEncoder):
    """Three values of each sample, with the batch that each was made for, and the one that the first was made for."""

    def encode_sample(self, sample: Any) -> Any:
        first = self.current_batch_index
        for turn in range(3):
            yield number(sample), turn, first, self.current_batch_index

    def batch(self, samples: list[Any]) -> Any:
        return {"rows": samples, "step": self.current_batch_index, "__restore_key__": ()}


class NumberedAndFinished(Numbered):
    def postencode_sample(self, sample: Any) -> Any:
        if sample[0] % 5 == 0 and sample[1] == 1:
            raise SkipSample
        return *sample, self.current_batch_index


@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize("encoder", [Numbered, NumberedAndFinished])
def test_values_of_a_generator_know_their_batch(text_dataset: MakeDataset, hosts: int, encoder: type[Numbered]) -> None:
    path = text_dataset(60)
    options: dict[str, Any] = {"batch_size": 7, "repeat": True, "virtual_epoch_length": 9, "lanes": 4}
    for host in range(hosts):
        dataset = train(path, encoder(), worker_config=config(host, hosts), **options)
        with Stream.of(dataset) as stream, Stream.of(dataset) as resumed:
            expected = None
            for epoch in range(3):
                for step, batch in enumerate(stream, 9 * epoch):
                    assert batch["step"] == step
                    assert {row[-1] for row in batch["rows"]} == {step}
                    assert {row[3] for row in batch["rows"]} == {step}
                    assert all(first <= step for _, _, first, *_ in batch["rows"])
                    again = stream.restore_sample(json.loads(json.dumps(batch["__restore_key__"])))
                    assert again == batch
                    # What a generator was told before the state was saved, it is told again.
                    assert expected in (None, batch)
                    resumed.restore(stream.cursor())
                    expected = next(iter(resumed))


def test_held_values_keep_the_batch_that_they_were_made_for(text_dataset: MakeDataset) -> None:
    class Encoder(TaskEncoder):
        def preencode_sample(self, sample: Any) -> Any:
            for turn in range(3):
                text = f"{number(sample)} {turn} {self.current_batch_index}"
                yield TextSample.derive_from(sample, text=text)

        def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
            return [samples[:1], samples[1:]]

        def pack_selected_samples(self, samples: list[Any]) -> Any:
            return [sample.text for sample in samples]

        def batch(self, samples: list[Any]) -> Any:
            return samples

    dataset = train(text_dataset(40), Encoder(), packing_buffer_size=4, batch_size=2, repeat=True, lanes=2)
    with Stream.of(dataset) as stream, Stream.of(dataset) as resumed:
        for step in range(30):
            cursor = stream.cursor()
            packs = next(stream)
            assert all(int(text.split()[2]) <= step for pack in packs for text in pack)
            resumed.restore(cursor)
            assert next(resumed) == packs


def test_a_generator_below_a_function_of_the_stream_cannot_tell(text_dataset: MakeDataset) -> None:
    def values(sample: Any) -> Any:
        yield current_draw().batch_index

    def same(stream: Any) -> Any:
        yield from stream

    samples = get_train_dataset(
        text_dataset(24), batch_size=None, shuffle_buffer_size=None, max_samples_per_sequence=None
    )
    with pytest.raises(Exception, match="the number of the batch is not known in this hook"):
        next(iter(IterMapDataset(MapDataset(samples, values, failure_tolerance=1), same)))


class Watched(TaskEncoder):
    """Counts how many of its hooks run at once."""

    def __init__(self) -> None:
        self.running = self.most = 0
        self.lock = threading.Lock()

    def watch(self, value: Any) -> Any:
        with self.lock:
            self.running += 1
            self.most = max(self.most, self.running)
        time.sleep(0.002)
        with self.lock:
            self.running -= 1
        return value

    def encode_sample(self, sample: Any) -> Any:
        return self.watch(number(sample))

    def batch(self, samples: list[Any]) -> Any:
        return self.watch(samples)

    def encode_batch(self, batch: Any) -> Any:
        return self.watch(batch)


class ThreadSafe(Watched):
    thread_safe = True


class SafeButSeeded(ThreadSafe):
    @stateless(restore_seeds=True)
    def encode_sample(self, sample: Any) -> Any:
        return self.watch(number(sample))

    def batch(self, samples: list[Any]) -> Any:
        return samples

    def encode_batch(self, batch: Any) -> Any:
        return batch


@pytest.mark.parametrize(("encoder", "at_once"), [(Watched, False), (ThreadSafe, True), (SafeButSeeded, False)])
@pytest.mark.parametrize("filtered", [False, True])
def test_hooks_run_one_at_a_time_unless_they_are_thread_safe(
    text_dataset: MakeDataset, encoder: type[Watched], at_once: bool, filtered: bool
) -> None:
    made = encoder()
    dataset = train(text_dataset(97), made, batch_size=4, repeat=True)
    with Stream.of(dataset, num_workers=2) as stream:
        steps = take(stream, 20)
    assert steps == take(Stream.of(train(text_dataset(97), encoder(), batch_size=4, repeat=True)), 20)
    assert (made.most > 1) is at_once


class Louder(AugmentTaskEncoder):
    def postencode_sample(self, sample: Any) -> Any:
        self.inner.log.append(("louder", [number(sample)]))  # type: ignore[attr-defined]
        return super().postencode_sample(sample)


def test_an_encoder_changed_from_outside(crude: Path) -> None:
    plain, inner = Packs(), Packs()
    expected = list(train(crude, plain, packing_buffer_size=4))
    assert list(train(crude, Louder(inner), packing_buffer_size=4)) == expected
    assert [entry for entry in inner.log if entry[0] != "louder"] == plain.log
    louder = [numbers for hook, numbers in inner.log if hook == "louder"]
    assert louder == [numbers for hook, numbers in plain.log if hook == "postencode_sample"]


def test_a_default_encoder_packs_nothing_by_itself(text_dataset: MakeDataset) -> None:
    batches = list(train(text_dataset(7), DefaultTaskEncoder(), batch_size=4))
    assert [len(batch.text) for batch in batches] == [4, 3]
