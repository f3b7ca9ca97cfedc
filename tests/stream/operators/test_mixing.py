"""Blends and concatenations of what lanes make, and mixtures of batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from small_graphs import flat, mixed, number, on_hosts, ordered, pairs, rolled, take
from stream_hosts import MakeDataset, config, train_on

from energon_grain import (
    BatchDataset,
    BlendDataset,
    BlendEpochizedDataset,
    ConcatDataset,
    ConfigError,
    DefaultTaskEncoder,
    FatalSampleError,
    FilterDataset,
    MapDataset,
    MixBatchDataset,
    PackingDataset,
    RepeatDataset,
    Sample,
    SavableDataset,
    Stream,
    concat_pad,
    generic_batch,
    generic_concat,
    homogeneous_concat_mix,
)


def as_often(sample: int) -> Iterator[int]:
    for _ in range(sample % 3):
        yield 1000 + sample


def packs(dataset: SavableDataset, packer: Any = tuple) -> SavableDataset:
    return PackingDataset(dataset, 6, pairs, packer)


def test_shares_of_packs_are_exact(text_dataset: MakeDataset) -> None:
    blend = BlendDataset((packs(mixed(text_dataset(53))), 0.7), (MapDataset(mixed(text_dataset(31)), as_often), 0.3))
    items = take(Stream.of(blend), 400)
    assert sum(isinstance(item, tuple) for item in items) == 280
    for until in range(400):
        assert abs(sum(isinstance(item, tuple) for item in items[:until]) - 0.7 * until) <= 6


def test_children_that_end_begin_their_next_pass(text_dataset: MakeDataset) -> None:
    blend = BlendDataset(packs(ordered(text_dataset(7))), MapDataset(ordered(text_dataset(3)), as_often))
    items = take(Stream.of(blend), 24)
    # Packs go over the ends of passes: only a pass that ends for good leaves a short one.
    assert list(flat(item for item in items if isinstance(item, tuple))) == [at % 7 for at in range(24)]
    assert [item for item in items if not isinstance(item, tuple)] == 4 * [1001, 1002, 1002]


def test_a_child_that_has_nothing_ends_the_blend_with_an_error(text_dataset: MakeDataset) -> None:
    blend = BlendDataset(FilterDataset(packs(ordered(text_dataset(7))), lambda item: False), ordered(text_dataset(7)))
    with pytest.raises(FatalSampleError, match="without one item"):
        take(Stream.of(blend), 10)


def test_leaves_smaller_than_the_number_of_lanes(text_dataset: MakeDataset) -> None:
    blend = BlendDataset(
        (FilterDataset(mixed(text_dataset(3), lanes=8), lambda sample: True), 1),
        (MapDataset(packs(mixed(text_dataset(5), lanes=8)), lambda item: item), 1),
    )
    items = take(Stream.of(blend), 320)
    seen = Counter(flat(item for item in items if isinstance(item, tuple)))
    assert sorted(seen) == [0, 1, 2, 3, 4]
    assert sorted(Counter(item for item in items if not isinstance(item, tuple))) == [0, 1, 2]


def test_weights_change_with_a_schedule(text_dataset: MakeDataset) -> None:
    blend = BlendDataset(
        packs(ordered(text_dataset(7), lanes=4)),
        MapDataset(ordered(text_dataset(7), lanes=4), as_often),
        schedule=[(0, (1, 0)), (12, (0, 1)), (24, (1, 1))],
    )
    items = [isinstance(item, tuple) for item in take(Stream.of(blend), 64)]
    assert items[:24] == [True] * 12 + [False] * 12
    assert abs(sum(items[24:]) - 20) <= 2


def test_one_after_the_other(text_dataset: MakeDataset) -> None:
    concat = ConcatDataset(
        FilterDataset(ordered(text_dataset(7)), lambda sample: sample % 2 == 1),
        packs(ordered(text_dataset(5))),
        MapDataset(ordered(text_dataset(3)), as_often),
    )
    stream = Stream.of(concat)
    expected = [1, 3, 5, (0, 1), (2, 3), (4,), 1001, 1002, 1002]
    assert list(stream) == expected
    assert list(stream) == expected


def test_a_concatenation_over_filters(text_dataset: MakeDataset) -> None:
    odd = FilterDataset(ordered(text_dataset(7), lanes=3), lambda sample: sample % 2 == 1)
    concat = ConcatDataset(odd, odd)
    items = list(concat)
    assert sorted(items) == sorted(2 * [1, 3, 5])
    batches = list(BatchDataset(concat, 4, tuple))
    assert sorted(map(len, batches)) == [2, 4]


def test_what_cannot_be_combined(text_dataset: MakeDataset) -> None:
    finite = ordered(text_dataset(7))
    with pytest.raises(ConfigError, match="takes finite datasets, but one of them is endless"):
        Stream.of(ConcatDataset(packs(finite), RepeatDataset(finite)))
    with pytest.raises(ConfigError, match="its length is unknown in advance"):
        Stream.of(BlendEpochizedDataset((finite, 1), (packs(finite), 1)))


@pytest.mark.parametrize("hosts", [2, 3, 6])
def test_per_step_gives_all_hosts_one_child(text_dataset: MakeDataset, hosts: int) -> None:
    path, other = text_dataset(53), text_dataset(31)

    def make(worker_config: Any) -> SavableDataset:
        def part(where: Any, size: int) -> SavableDataset:
            return BatchDataset(mixed(where, lanes=12, worker_config=worker_config), size, tuple)

        return BlendDataset((part(path, 3), 0.75), (part(other, 2), 0.25), per_step=True)

    found = on_hosts(make, hosts, 96)
    sizes = [{len(host[step]) for host in found} for step in range(96)]
    assert all(len(size) == 1 for size in sizes)
    assert Counter(min(size) for size in sizes) == {3: 72, 2: 24}
    for until in range(96):
        assert abs(sum(min(size) == 3 for size in sizes[:until]) - 0.75 * until) <= 6


def test_per_step_with_a_number_continues_on_other_hosts(text_dataset: MakeDataset) -> None:
    path, other = text_dataset(53), text_dataset(31)

    def make(worker_config: Any) -> SavableDataset:
        first, second = (mixed(where, lanes=12, worker_config=worker_config) for where in (path, other))
        return BlendDataset((packs(first, rolled), 2), (second, 1), per_step=6)

    [single] = on_hosts(make, 1, 24)
    for hosts in (2, 3, 6):
        several = on_hosts(make, hosts, 24 // hosts)
        assert [several[at % hosts][at // hosts] for at in range(24)] == single
    kinds = [type(item) for item in single]
    assert all(len(set(kinds[at : at + 6])) == 1 for at in range(0, 24, 6))


def test_per_step_must_fit_lanes_and_hosts(text_dataset: MakeDataset) -> None:
    parts = [packs(ordered(text_dataset(7), lanes=6))] * 2
    with pytest.raises(ConfigError, match="per_step=4 chooses for 4 items at once, with 1 hosts and 6 lanes"):
        Stream.of(BlendDataset(*parts, per_step=4))
    with pytest.raises(ConfigError, match="per_step=3 chooses for 3 items at once, with 2 hosts and 6 lanes"):
        Stream.of(BlendDataset(*parts, per_step=3), worker_config=config(0, 2))
    with pytest.raises(ConfigError, match="inside a step of 3 items"):
        Stream.of(BlendDataset(*parts, per_step=3, schedule=[(0, (1, 1)), (4, (1, 2))]))
    with pytest.raises(ConfigError, match="per_step=-1"):
        BlendDataset(*parts, per_step=-1)


@dataclass
class Tokens(Sample):
    tokens: np.ndarray


@dataclass
class Picture(Sample):
    image: np.ndarray


class ToTokens(DefaultTaskEncoder):
    def encode_sample(self, sample: Any) -> Any:
        return Tokens.derive_from(sample, tokens=np.full(1 + number(sample) % 4, number(sample)))


class ToPicture(DefaultTaskEncoder):
    def encode_sample(self, sample: Any) -> Any:
        return Picture.derive_from(sample, image=np.full((2, 2), number(sample)))


def part(path: Any, encoder: Any, batch_size: int = 1, **options: Any) -> SavableDataset:
    return train_on(path, batch_size=batch_size, task_encoder=encoder, worker_config=config(), **options)


def test_batches_of_one_type_are_joined(text_dataset: MakeDataset) -> None:
    mix = MixBatchDataset(
        (part(text_dataset(24), ToTokens()), 1),
        (part(text_dataset(31), ToTokens(), 2), 1),
        batch_size=6,
        batch_mix_fn=homogeneous_concat_mix,
    )
    for batch in take(Stream.of(mix), 16):
        assert isinstance(batch, Tokens)
        keys = list(flat(batch.__key__))
        assert 6 <= len(keys) <= 12
        assert batch.tokens.shape == (len(keys), max(1 + int(key) % 4 for key in keys))
        assert batch.tokens[:, 0].tolist() == [int(key) for key in keys]


@pytest.mark.parametrize("join", [generic_concat, homogeneous_concat_mix])
def test_dictionaries_are_joined_field_by_field(text_dataset: MakeDataset, join: Any) -> None:
    def sizes(sample: int) -> dict[str, Any]:
        return {"tokens": np.full(1 + sample % 3, sample), "name": f"{sample}"}

    twos = BatchDataset(MapDataset(ordered(text_dataset(7)), sizes), 2, generic_batch)
    ones = BatchDataset(MapDataset(ordered(text_dataset(7)), sizes), 1, generic_batch)
    batch = next(iter(MixBatchDataset((twos, 1), (ones, 1), batch_size=4, batch_mix_fn=join)))
    assert sorted(flat(batch["name"])) == ["0", "0", "1", "1", "2", "3"]
    assert batch["tokens"].shape == (6, 3)
    assert sorted(batch["tokens"][:, 0].tolist()) == [0, 0, 1, 1, 2, 3]


def test_arrays_are_joined(text_dataset: MakeDataset) -> None:
    rows = MapDataset(ordered(text_dataset(7)), lambda sample: np.full(1 + sample % 3, sample))
    parts = [(BatchDataset(rows, size, generic_batch), 1) for size in (2, 1)]
    batch = next(iter(MixBatchDataset(*parts, batch_size=4, batch_mix_fn=concat_pad)))
    assert batch.shape == (6, 3)
    assert sorted(batch[:, 0].tolist()) == [0, 0, 1, 1, 2, 3]


def test_without_a_function_a_mix_is_the_list_of_batches(text_dataset: MakeDataset) -> None:
    mix = MixBatchDataset(
        (part(text_dataset(24), ToTokens()), 0.5), (part(text_dataset(31), ToPicture()), 0.5), batch_size=4
    )
    kinds: Counter[str] = Counter()
    for batch in take(Stream.of(mix), 48):
        assert isinstance(batch, list)
        assert len(batch) == 4
        kinds.update(type(entry).__name__ for entry in batch)
    assert kinds == {"Tokens": 96, "Picture": 96}


def heterogeneous(batches: list[Any]) -> dict[str, Any]:
    return {
        "tokens": [batch.tokens for batch in batches if isinstance(batch, Tokens)],
        "images": [batch.image for batch in batches if isinstance(batch, Picture)],
    }


def test_types_may_be_mixed_by_a_function_of_the_user(text_dataset: MakeDataset) -> None:
    mix = MixBatchDataset(
        (part(text_dataset(24), ToTokens()), 1),
        (part(text_dataset(31), ToPicture()), 1),
        batch_size=4,
        batch_mix_fn=heterogeneous,
    )
    for batch in take(Stream.of(mix), 10):
        assert len(batch["tokens"]) + len(batch["images"]) == 4


def test_other_types_cannot_be_joined_as_one(text_dataset: MakeDataset) -> None:
    mix = MixBatchDataset(
        (part(text_dataset(24), ToTokens()), 1),
        (part(text_dataset(31), ToPicture()), 1),
        batch_size=24,
        batch_mix_fn=homogeneous_concat_mix,
    )
    told: list[Exception] = []
    stream = Stream.of(mix, worker_config=config(global_error_handler=lambda error, *rest: told.append(error)))
    with pytest.raises(FatalSampleError, match="batch failed 100 times in a row"):
        take(stream, 1)
    assert "expected batches of one type, got Picture, Tokens" in str(told[0])


def test_mixes_per_step_have_batches_of_one_child(text_dataset: MakeDataset) -> None:
    mix = MixBatchDataset(
        (part(text_dataset(24), ToTokens(), lanes=12), 1),
        (part(text_dataset(31), ToPicture(), lanes=12), 1),
        batch_size=4,
        batch_mix_fn=homogeneous_concat_mix,
        per_step=4,
    )
    kinds = Counter(type(batch).__name__ for batch in take(Stream.of(mix), 24))
    assert kinds == {"Tokens": 12, "Picture": 12}
