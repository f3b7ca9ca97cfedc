"""Hooks: seeds of the global generators, and how often each may fail in a row; and arguments without effect."""

from __future__ import annotations

import copy
import logging
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from logging_encoders import Groups, Logs, Packs, cook, train
from small_graphs import number, on_hosts, take
from stream_hosts import MakeDataset, config, train_on

from energon_grain import (
    Cooker,
    CrudeSample,
    FatalSampleError,
    Sample,
    SavableDataset,
    Stream,
    TaskEncoder,
    TextSample,
    get_loader,
    get_train_dataset,
    stateless,
)
from energon_grain.stream.hooks import snapshot
from energon_grain.testing import make_crude_dataset


class Seeded(TaskEncoder):
    """Each hook of samples, packs and batches takes numbers from the global generators."""

    @staticmethod
    def roll() -> tuple[float, float]:
        return random.random(), float(np.random.random())  # noqa: NPY002

    @stateless(restore_seeds=True)
    def preencode_sample(self, sample: Any) -> Any:
        return number(sample), self.roll()

    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        return [samples[at : at + 3] for at in range(0, len(samples), 3)]

    @stateless(restore_seeds=True)
    def postencode_sample(self, sample: Any) -> Any:
        return sample, self.roll()

    @stateless(restore_seeds=True)
    def pack_selected_samples(self, samples: list[Any]) -> Iterator[Any]:
        for sample in samples[:2]:
            yield sample, tuple(samples), self.roll()

    @stateless(restore_seeds=True)
    def batch(self, samples: list[Any]) -> Any:
        return tuple(samples), self.roll()

    @stateless(restore_seeds=True)
    def encode_batch(self, batch: Any) -> Any:
        return batch, self.roll()


def floats(value: Any) -> Iterator[float]:
    if isinstance(value, tuple):
        for entry in value:
            yield from floats(entry)
    elif isinstance(value, float):
        yield value


def seeded(path: Path, worker_config: Any, **options: Any) -> SavableDataset:
    arguments: dict[str, Any] = {
        "batch_size": 4 // worker_config.world_size,
        "packing_buffer_size": 4,
        "repeat": True,
        "lanes": 4,
        "shuffle_over_epochs_multiplier": 1,
        **options,
    }
    return train(path, Seeded(), worker_config=worker_config, **arguments)


def test_seeds_make_numbers_that_are_all_different_and_the_same_again(text_dataset: MakeDataset) -> None:
    path = text_dataset(53)
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002
    before = random.getstate()[1], np.random.get_state()[1].tolist()  # type: ignore[index]  # noqa: NPY002
    steps = take(Stream.of(seeded(path, config())), 6)
    assert (random.getstate()[1], np.random.get_state()[1].tolist()) == before  # type: ignore[index]  # noqa: NPY002
    random.seed(6)
    assert take(Stream.of(seeded(path, config())), 6) == steps
    rolls = set(floats(tuple(steps)))
    # Samples, members and packs of 24 items (a member is in two of them), batches.
    assert len(rolls) > 24 * 2
    assert take(Stream.of(seeded(path, config(), seed=1)), 6) != steps


@pytest.mark.parametrize("num_workers", [1, 2])
def test_seeds_do_not_depend_on_workers(text_dataset: MakeDataset, num_workers: int) -> None:
    """W-15: in the original augmentations change with the number of workers and hosts."""
    path = text_dataset(53)
    with Stream.of(seeded(path, config()), num_workers=num_workers) as stream:
        assert take(stream, 6) == take(Stream.of(seeded(path, config())), 6)


@pytest.mark.parametrize("hosts", [2, 4])
def test_seeds_of_samples_do_not_depend_on_hosts(text_dataset: MakeDataset, hosts: int) -> None:
    path = text_dataset(53)
    [single] = on_hosts(lambda worker_config: seeded(path, worker_config), 1, 6)
    several = on_hosts(lambda worker_config: seeded(path, worker_config), hosts, 6)
    for step in range(6):
        assert sorted(single[step][0][0]) == sorted(pack for host in several for pack in host[step][0][0])


def test_seeds_do_not_depend_on_when_a_sample_is_made(text_dataset: MakeDataset) -> None:
    """W-10: the numbers of a sample are its own, whatever was made before it and by whom."""
    path = text_dataset(53)
    stream = Stream.of(seeded(path, config()))
    first = take(stream, 3)
    cursor = stream.cursor()
    expected = take(stream, 4)
    other = Stream.of(seeded(path, config()))
    other.restore(cursor)
    assert take(other, 4) == expected
    skipping = Stream.of(seeded(path, config()))
    skipping.skip(3)
    assert take(skipping, 4) == expected
    assert first != expected


@pytest.fixture(scope="module")
def crude(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_crude_dataset(tmp_path_factory.mktemp("hooks") / "crude", n=24, shards=1)


OF_PACKS = ["preencode_sample", "select_samples_to_pack", "postencode_sample", "pack_selected_samples"]
OF_BATCHES = ["batch", "encode_batch"]
HOOKS = ["cook_crude_sample", "encode_sample", *OF_PACKS, "batch_group_criterion", *OF_BATCHES]


def failing(
    hook: str, *, restore_seeds: bool, failure_tolerance: int | None, fails: Callable[[int], bool]
) -> TaskEncoder:
    """An encoder whose hook fails in those of its calls."""
    base = Packs if hook in OF_PACKS else Logs if hook in OF_BATCHES else Groups
    calls: list[int] = []
    plain = getattr(base, hook)

    @stateless(restore_seeds=restore_seeds, failure_tolerance=failure_tolerance)
    def refusing(self: Any, *arguments: Any) -> Any:
        calls.append(len(calls))
        if fails(calls[-1]):
            raise ValueError("bad")
        return plain(self, *arguments)

    namespace: dict[str, Any] = {hook: refusing}
    if hook == "cook_crude_sample":
        # What is declared of cooking is declared of the cooker.
        @stateless(restore_seeds=restore_seeds, failure_tolerance=failure_tolerance)
        def cooker(sample: CrudeSample) -> Any:
            calls.append(len(calls))
            if fails(calls[-1]):
                raise ValueError("bad")
            return cook(sample)

        namespace = {"cookers": (Cooker(cooker),)}
    return type("Failing", (base,), namespace)()


@pytest.mark.parametrize("restore_seeds", [False, True])
@pytest.mark.parametrize("hook", HOOKS)
def test_each_hook_has_its_own_budget(crude: Path, hook: str, restore_seeds: bool) -> None:
    """W-11: in the original the tolerance is forgotten together with `restore_seeds`."""

    def run(failure_tolerance: int | None, fails: Callable[[int], bool], steps: int) -> Stream:
        encoder = failing(hook, restore_seeds=restore_seeds, failure_tolerance=failure_tolerance, fails=fails)
        packing = 4 if isinstance(encoder, Packs) else None
        stream = Stream.of(train(crude, encoder, packing_buffer_size=packing, repeat=True))
        take(stream, steps)
        return stream

    with pytest.raises(FatalSampleError, match=f"{hook} failed 3 times in a row"):
        run(3, lambda call: True, 1)
    with pytest.raises(FatalSampleError, match=f"{hook} failed 100 times in a row"):
        run(None, lambda call: True, 1)
    # Successes between failures make them no longer in a row.
    stream = run(3, lambda call: call % 3 > 0, 30)
    assert stream.stats()["dropped_total"] >= 20
    stream = run(0, lambda call: call % 150 > 0, 3)
    assert stream.stats()["dropped_total"] >= 149


class OnSamples(TaskEncoder):
    @stateless(restore_seeds=True)
    def encode_sample(self, sample: Any) -> Any:
        sample.text = str([random.random() for _ in range(50)])
        return sample


class OnPacks(TaskEncoder):
    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        return [samples[at : at + 2] for at in range(0, len(samples), 2)]

    @stateless(restore_seeds=True)
    def pack_selected_samples(self, samples: list[Any]) -> Any:
        return TextSample.derive_from(samples[0], text=str([random.random() for _ in range(50)]))


def batches(path: Path, encoder: TaskEncoder, workers: int, worker_type: Any, packing: int | None) -> list[Any]:
    """Texts of 40 batches, and what the program drew between them."""
    dataset = train_on(
        path,
        worker_config=config(0, 1, workers, worker_type=worker_type),
        batch_size=4,
        packing_buffer_size=packing,
        task_encoder=encoder,
    )
    random.seed(7)
    seen: list[Any] = []
    with Stream.of(dataset) as stream:
        for _ in range(40):
            seen.append(next(stream).text)
            seen.append([random.random() for _ in range(500)][-1])
    return seen


@pytest.mark.parametrize(("encoder", "packing"), [(OnSamples(), None), (OnPacks(), 8)])
def test_workers_and_the_program_change_nothing(
    text_dataset: MakeDataset, encoder: TaskEncoder, packing: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    path = text_dataset(50)
    alone = batches(path, encoder, 0, "thread", packing)
    with caplog.at_level(logging.WARNING, "energon_grain"):
        assert batches(path, encoder, 2, "thread", packing) == alone
    assert ("seed global random generators" in caplog.text) == (packing is None)
    assert batches(path, encoder, 1, "process", packing) == alone


BASE: Any = {"__key__": "a", "__restore_key__": ()}


@dataclass
class Open(Sample):
    x: Any = None


@dataclass(slots=True)
class Counted:
    x: Any
    y: Any = 1
    derived: Any = field(init=False, default=3)

    def __post_init__(self) -> None:
        raise AssertionError("copies are not made anew")


@dataclass(frozen=True, slots=True)
class Frozen:
    x: Any
    y: Any = 2


@dataclass(slots=True)
class OwnWay:
    x: Any
    y: Any = 2

    def __copy__(self) -> OwnWay:
        return OwnWay("copied")


class Slot(TextSample):
    __slots__ = ("beside",)
    beside: int


def counted() -> Counted:
    made = Counted.__new__(Counted)
    made.x, made.y, made.derived = [1], 2, 4
    return made


def beside() -> Slot:
    made = Slot(**BASE, text="x")
    made.beside = 5
    return made


@pytest.mark.parametrize(
    "value", [TextSample(**BASE, text="x"), Open(**BASE, x=[1]), counted(), Frozen([1]), beside(), {"x": [1]}], ids=str
)
def test_fields_are_the_same_and_apart(value: Any) -> None:
    made = snapshot(value)
    assert made is not value
    assert type(made) is type(value)
    if isinstance(value, dict):
        assert made == value
        assert made["x"] is value["x"]
        return
    for each in fields(value):
        assert getattr(made, each.name) is getattr(value, each.name)
    assert getattr(made, "beside", None) == getattr(value, "beside", None)
    if not isinstance(value, Frozen):
        name = fields(value)[-1].name
        setattr(value, name, "new")
        assert getattr(made, name) != "new"


def test_what_a_class_says_of_its_copies_holds() -> None:
    assert snapshot(OwnWay("x")).x == "copied"


def test_what_is_not_set_stays_so() -> None:
    value = Counted.__new__(Counted)
    value.x = 1
    made = snapshot(value)
    assert made.x == 1
    assert not hasattr(made, "y")


def test_attributes_beside_the_fields_are_kept() -> None:
    value = Open(**BASE)
    value.note = "here"  # type: ignore[attr-defined]
    assert snapshot(value).note == copy.copy(value).note == "here"  # type: ignore[attr-defined]


@pytest.mark.parametrize("value", [3, "text", None, [1], Frozen])
def test_other_values_are_handed_on(value: Any) -> None:
    assert snapshot(value) is value


def test_known_ones_pass_and_others_do_not(text_dataset: MakeDataset) -> None:
    dataset = get_train_dataset(text_dataset(20), batch_size=2, shuffle_buffer_size=None, max_samples_per_sequence=None)
    with get_loader(dataset, checkpoint_every_sec=60, n_checkpoints=3, watchdog_timeout_seconds=None) as loader:
        assert len(next(loader).__key__) == 2
    with pytest.raises(TypeError, match="unexpected keyword argument 'checkpoint_every'"):
        get_loader(dataset, checkpoint_every=60)
