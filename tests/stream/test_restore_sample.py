"""Samples and batches again, from their restore keys."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_graphs import on_hosts, pairs, roll, shuffled, take
from stream_hosts import MakeDataset, config, train_on

from energon_grain import (
    BatchDataset,
    BlendDataset,
    ConcatDataset,
    DefaultTaskEncoder,
    EpochizeDataset,
    FilterDataset,
    GroupBatchDataset,
    IterMapDataset,
    LimitDataset,
    MapDataset,
    PackingDataset,
    RepeatDataset,
    Sample,
    SavableDataset,
    ShuffleBufferDataset,
    SkipSample,
    StateError,
    Stream,
    TaskEncoder,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    stateless,
)
from energon_grain.testing import make_crude_dataset


@dataclass
class Note(Sample):
    """A sample that says what hooks did with it."""

    said: str


def word() -> str:
    """A random word of the current draw."""
    return f"{roll():x}"


def note(sample: Any) -> Note:
    return Note.derive_from(sample, said=f"{sample.__key__}:{word()}")


def again(sample: Note) -> Note:
    return Note.derive_from(sample, said=f"<{sample.said} {word()}>")


def as_often(sample: Note) -> Iterator[Note]:
    for part in range(int(sample.__key__) % 3):
        yield Note.derive_from(sample, said=f"{sample.said}.{part}.{word()}")


def together(samples: list[Note]) -> Note:
    said = f"[{' '.join(sample.said for sample in samples)}] {word()}"
    return Note(__key__=samples[0].__key__, __restore_key__=(), said=said)


def one_by_one(samples: list[Note]) -> Iterator[Note]:
    for part in range(len(samples)):
        yield Note(__key__=samples[part].__key__, __restore_key__=(), said=f"{together(samples).said}.{part}")


def in_a_row(samples: Iterator[Note]) -> Iterator[Note]:
    said = ""
    for sample in samples:
        said += sample.said
        yield Note.derive_from(sample, said=f"{said} {word()}")


def by_length(sample: Note) -> tuple[int, None]:
    return int(sample.__key__) % 3, None


def changed(sample: Note) -> tuple[int, None]:
    sample.said += word()
    return by_length(sample)


def notes(path: Any, **options: Any) -> SavableDataset:
    return MapDataset(shuffled(path, **options), note)


def packs(dataset: SavableDataset, packer: Any = together) -> SavableDataset:
    return PackingDataset(dataset, 5, pairs, packer, sample_encoder=again)


GRAPHS = {
    "samples": lambda a, b: a,
    "mixed samples": lambda a, b: BlendDataset((a, 2), (b, 1)),
    "endless samples": lambda a, b: RepeatDataset(a),
    "shuffled": lambda a, b: ShuffleBufferDataset(ConcatDataset(a, b), 7),
    "generated": lambda a, b: MapDataset(MapDataset(a, as_often), again),
    "packs": lambda a, b: packs(a),  # W-05: with an encoder on the members
    "generated packs": lambda a, b: MapDataset(packs(MapDataset(a, as_often), one_by_one), again),
    "groups": lambda a, b: GroupBatchDataset(a, 3, by_length, together),
    "groups of changed samples": lambda a, b: GroupBatchDataset(a, 3, changed, together),
    "batches of batches": lambda a, b: BatchDataset(
        BatchDataset(BatchDataset(a, 2, one_by_one), 2, together), 2, together
    ),
    "streams": lambda a, b: IterMapDataset(packs(a), in_a_row, inputs_per_call=3),
    "blend": lambda a, b: BlendDataset((packs(a), 2), (MapDataset(b, as_often), 1), (FilterDataset(b, by_length), 1)),
    "blend of a blend": lambda a, b: packs(BlendDataset(packs(a), BlendDataset(MapDataset(b, as_often), a))),
    "concat": lambda a, b: ConcatDataset(packs(a), MapDataset(b, as_often)),
    "repeated": lambda a, b: RepeatDataset(packs(a), repeats=2),
    "limited": lambda a, b: packs(LimitDataset(MapDataset(BlendDataset(packs(a), b), again), 9)),
    "epochs": lambda a, b: packs(EpochizeDataset(MapDataset(packs(a), again), 5)),
    "shuffled packs": lambda a, b: ShuffleBufferDataset(packs(a), 8),
}


@pytest.mark.parametrize("batch_size", [None, 2])
@pytest.mark.parametrize("name", GRAPHS)
def test_every_kind_of_key(text_dataset: MakeDataset, name: str, batch_size: int | None) -> None:
    """Through JSON, in a stream that has not begun, of whatever pass."""

    def make() -> SavableDataset:
        graph = GRAPHS[name](notes(text_dataset(13)), notes(text_dataset(7)))
        if batch_size is None:
            return graph
        return MapDataset(BatchDataset(graph, batch_size, together), again)

    other = Stream.of(make())
    for step in take(Stream.of(make()), 30):
        if step is None:
            continue
        assert isinstance(step.__restore_key__, tuple)
        for key in (step.__restore_key__, json.loads(json.dumps(step.__restore_key__))):
            restored = other.restore_sample(key)
            assert (restored.said, restored.__restore_key__) == (step.said, step.__restore_key__)
    assert other.stats()["dropped_total"] == 0
    assert other.cursor()["step"] == 0


def test_on_any_host_and_worker(text_dataset: MakeDataset) -> None:
    """W-10: in the original the second worker's samples come with the first one's random numbers."""
    path = text_dataset(53)

    def make(worker_config: Any) -> SavableDataset:
        samples = RepeatDataset(notes(path, worker_config=worker_config))
        return MapDataset(BatchDataset(packs(samples), 3, together), again)

    single = Stream.of(make(config()))
    for steps in on_hosts(make, 2, 6):
        for step in steps:
            assert single.restore_sample(step.__restore_key__).said == step.said
    second = Stream.of(make(config(1, 4)))
    threads = Stream.of(make(config()), num_workers=2)
    for step in take(threads, 6):
        assert second.restore_sample(step.__restore_key__).said == step.said
    threads.close()


class Global(DefaultTaskEncoder):
    """With hooks that use the global generators."""

    @stateless(restore_seeds=True)
    def encode_sample(self, sample: Any) -> Any:
        return Note.derive_from(sample, said=f"{sample.__key__} {np.random.random()}")  # noqa: NPY002

    @stateless(restore_seeds=True)
    def encode_batch(self, batch: Any) -> Any:
        batch.said = [*batch.said, str(np.random.random())]  # noqa: NPY002
        return batch


def test_restored_seeds(text_dataset: MakeDataset) -> None:
    def make(**options: Any) -> Stream:
        usual = {"batch_size": 4, "shuffle_buffer_size": None, "max_samples_per_sequence": None}
        return Stream.of(get_train_dataset(text_dataset(53), task_encoder=Global(), **{**usual, **options}))

    other = make(worker_config=config(1, 2))
    for step in take(make(), 8):
        restored = other.restore_sample(step.__restore_key__)
        assert restored.said == step.said
        assert restored.__key__ == step.__key__


def test_padded_batches_with_their_masks(text_dataset: MakeDataset) -> None:
    dataset = get_val_dataset(text_dataset(13), split_part="train", batch_size=5, last_batch="pad")
    stream = Stream.of(dataset)
    for step in stream:
        restored = Stream.of(dataset).restore_sample(step.__restore_key__)
        assert restored.__key__ == step.__key__
        assert restored.text == step.text
        assert restored.__valid__.tolist() == step.__valid__.tolist()
        assert restored.__restore_key__ == step.__restore_key__


def test_batches_that_are_dictionaries(tmp_path: Path) -> None:
    path = make_crude_dataset(tmp_path / "crude", n=9, shards=1)
    stream = Stream.of(get_train_dataset(path, batch_size=2, shuffle_buffer_size=None, max_samples_per_sequence=None))
    for batch in take(stream, 6):
        assert stream.restore_sample(batch["__restore_key__"])["txt"] == batch["txt"]


def test_through_a_loader(text_dataset: MakeDataset) -> None:
    dataset = get_train_dataset(text_dataset(13), batch_size=4, shuffle_buffer_size=None, max_samples_per_sequence=None)
    loader: Any = get_savable_loader(dataset)
    steps = [next(loader) for _ in range(5)]
    for step in (steps[3], steps[0], steps[4]):
        assert loader.restore_sample(step.__restore_key__).text == step.text
    assert next(loader).__restore_key__[2] == 5
    loader.close()


WRONG: list[Any] = [
    None,
    3,
    "sample",
    (),
    {},
    ("nothing",),
    ("sample",),
    ("sample", 0),
    ("sample", 0, 1, 2),
    ("sample", 1, 0),
    ("sample", -1, 0),
    ("sample", 0, -1),
    ("sample", 0, 1 << 70),
    ("sample", 0, 1.5),
    ("sample", 0, True),
    ("sample", 0, "1"),
    ("sample", 0, None),
    ("batch", 0, 0, 0, None),
    ("item",),
    ("item", 0, 0),
    ("item", 0, 4, 0),
    ("item", 0, -1, 0),
    ("item", "0", 0, 0),
]


@pytest.mark.parametrize("key", WRONG, ids=repr)
def test_what_is_no_restore_key(text_dataset: MakeDataset, key: Any) -> None:
    for graph in ("samples", "generated", "packs", "blend"):
        dataset = BatchDataset(GRAPHS[graph](notes(text_dataset(13)), notes(text_dataset(7))), 2, together)
        if graph == "blend" and key == ("sample", 1, 0):
            continue
        with pytest.raises(StateError, match="is not a restore key of this dataset"):
            Stream.of(dataset).restore_sample(key)


@pytest.mark.parametrize(
    ("graph", "reference"),
    [
        ("generated", 5),
        ("generated", (0,)),
        ("generated", (0, -2)),
        ("generated", (0, (0, 1))),
        ("generated", ("a", 1)),
        ("packs", 0),
        ("packs", (0, 0, ())),
        ("packs", (0, 0, 3)),
        ("packs", (0, 0, (1.5,))),
        ("blend", (4, 0)),
        ("blend", (-1, 0)),
        ("blend", (0, 0)),
        ("groups", (0, 0, (None,))),
        ("streams", (0, 0)),
        ("streams", (0, 0, 5)),
    ],
)
def test_references_of_another_graph(text_dataset: MakeDataset, graph: str, reference: Any) -> None:
    stream = Stream.of(GRAPHS[graph](notes(text_dataset(13)), notes(text_dataset(7))))
    with pytest.raises(StateError, match=r"not a restore key of this dataset|is of another dataset"):
        stream.restore_sample(("item", 0, 0, reference))


@pytest.mark.parametrize(
    ("graph", "reference"),
    [("generated", (99, 0)), ("generated packs", (0, 99, ((0, 4),))), ("streams", (99, 0, None))],
)
def test_more_than_a_generator_gives(text_dataset: MakeDataset, graph: str, reference: Any) -> None:
    stream = Stream.of(GRAPHS[graph](notes(text_dataset(13)), notes(text_dataset(7))))
    with pytest.raises(StateError):
        stream.restore_sample(("item", 0, 0, reference))


class Moody(TaskEncoder):
    """Refuses everything once it is in the mood."""

    error: Exception | None = None

    def encode_sample(self, sample: Any) -> Any:
        if self.error is not None:
            raise self.error
        return sample


@pytest.mark.parametrize("packing", [False, True])
def test_what_fails_now_goes_to_the_handler_and_is_an_error(text_dataset: MakeDataset, packing: bool) -> None:
    told: list[Exception] = []
    encoder = Moody()
    dataset: SavableDataset = train_on(
        text_dataset(13),
        batch_size=None,
        task_encoder=encoder,
        worker_config=config(restore_error_handler=lambda error, *rest: told.append(error)),
    )
    if packing:
        dataset = PackingDataset(MapDataset(dataset, note), 4, pairs, together)
    stream = Stream.of(dataset)
    key = next(stream).__restore_key__
    encoder.error = ValueError("bad mood")
    with pytest.raises(StateError, match="bad mood"):
        stream.restore_sample(key)
    assert told == [encoder.error]
    encoder.error = SkipSample()
    with pytest.raises(StateError, match="encode_sample"):
        stream.restore_sample(key)
    assert stream.stats()["dropped_total"] == 0
    encoder.error = None
    assert stream.restore_sample(key).__restore_key__ == key
