"""What the builders make of a metadataset, and what becomes of builders that are overridden."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from metadatasets import v2

from energon_grain import (
    BatchDataset,
    BlendDataset,
    BlendEpochizedDataset,
    ConcatDataset,
    ConfigError,
    DatasetBlendMode,
    DefaultTaskEncoder,
    EpochizeDataset,
    LoadedDataset,
    RepeatDataset,
    TaskEncoder,
    WorkerConfig,
    get_loader,
    get_train_dataset,
    get_val_dataset,
)
from energon_grain.metadataset.documents import load_metadataset
from energon_grain.storage.epath import EPath
from energon_grain.testing import make_text_dataset

MakeDataset = Callable[..., Path]
USUAL: dict[str, Any] = {"batch_size": 2, "shuffle_buffer_size": 10, "max_samples_per_sequence": 10}


@pytest.fixture
def parts(text_dataset: MakeDataset) -> list[str]:
    return [str(text_dataset(n)) for n in (12, 24, 30)]


def document(node: Any) -> dict[str, Any]:
    return v2(train=node)


def train(node: Any, encoder: TaskEncoder | None = None, **arguments: Any) -> Any:
    return get_train_dataset(document(node), task_encoder=encoder, **{**USUAL, **arguments})


def keys(dataset: Any, batches: int | None = None) -> list[list[str]]:
    loader: Any = get_loader(dataset)
    found = [batch.__key__ for batch, _ in zip(loader, range(batches or 1000), strict=False)]
    loader.close()
    return found


def weighted(parts: list[str]) -> dict[str, Any]:
    return {
        "blend": [
            {"path": parts[0], "weight": 1},
            {"weight": 3, "blend": [{"path": parts[1], "weight": 2}, {"path": parts[2], "weight": 1}]},
        ]
    }


class Recorder(DefaultTaskEncoder):
    """Keeps what its builder got, and builds as usual."""

    def build_train_datasets(self, **keywords: Any) -> Any:
        self.got = keywords
        return super().build_train_datasets(**keywords)

    def build_val_datasets(self, **keywords: Any) -> Any:
        self.got = keywords
        return super().build_val_datasets(**keywords)


def test_a_blend(parts: list[str]) -> None:
    recorder = Recorder()
    run = train(weighted(parts), recorder)
    datasets = recorder.got["datasets"]
    assert recorder.got["blend_mode"] is DatasetBlendMode.DATASET_WEIGHT
    assert recorder.got["schedule"] is None
    assert [loaded.path for loaded in datasets] == parts
    assert [loaded.weight for loaded in datasets] == [Fraction(1, 4), Fraction(1, 2), Fraction(1, 4)]
    assert [(loaded.repetitions, loaded.split_part) for loaded in datasets] == [(None, "train")] * 3
    assert run.dataset.dataset == BlendDataset(*datasets)


def test_repetitions(parts: list[str]) -> None:
    recorder = Recorder()
    node = {"blend_epochized": [{"path": parts[0], "repetitions": 2}, {"path": parts[1], "repetitions": 0.5}]}
    run = train(node, recorder)
    datasets = recorder.got["datasets"]
    assert recorder.got["blend_mode"] is DatasetBlendMode.SAMPLE_REPETITIONS
    assert [(loaded.weight, loaded.repetitions) for loaded in datasets] == [(None, 2), (None, Fraction(1, 2))]
    assert run.dataset.dataset == RepeatDataset(BlendEpochizedDataset(*datasets))
    assert train(node, recorder, repeat=False).dataset.dataset == BlendEpochizedDataset(*recorder.got["datasets"])


def test_a_single_dataset_with_its_tags(parts: list[str]) -> None:
    recorder = Recorder()
    run = train({"path": parts[0], "subflavors": {"a": 1}, "name": "first"}, recorder)
    (loaded,) = recorder.got["datasets"]
    assert recorder.got["blend_mode"] is DatasetBlendMode.NONE
    assert (loaded.subflavors, loaded.name, loaded.weight, loaded.repetitions) == ({"a": 1}, "first", None, None)
    assert loaded == (loaded.dataset, 1)
    assert run.dataset.dataset == RepeatDataset(loaded.dataset)


def test_leaves_say_where_they_lie_and_all_tags_of_their_samples(tmp_path: Path) -> None:
    folders = [make_text_dataset(tmp_path / name, n=8) for name in ("one", "two")]
    config = folders[0] / ".nv-meta" / "dataset.yaml"
    config.write_text(f"{config.read_text()}\nsubflavors: {{a: 0, b: 2}}\n")
    single = {"path": str(folders[0]), "subflavors": {"a": 1}}
    joined = {"join": [{"path": str(folder)} for folder in folders], "joiner": None, "subflavors": {"a": 1}}
    for node, paths in ((single, folders[:1]), (joined, folders)):
        leaf = load_metadataset(document(node), split_part="train")
        assert leaf.paths == [EPath(path) for path in paths]
        assert (leaf.subflavors, leaf.tags) == ({"a": 1, "b": 2}, {"a": 1})


def test_a_concatenation_is_one_dataset(parts: list[str]) -> None:
    recorder = Recorder()
    run = train({"blend": [{"concat": [{"path": parts[0]}, {"path": parts[1]}]}, {"path": parts[2]}]}, recorder)
    first, second = recorder.got["datasets"]
    assert isinstance(first.dataset, ConcatDataset)
    assert (first.path, first.split_part, first.subflavors) == (None, None, {})
    assert second.path == parts[2]
    assert run.dataset.dataset == BlendDataset(first, second)


def test_a_schedule(parts: list[str]) -> None:
    recorder = Recorder()
    steps = [{"from_position": 0, "weights": [1, 1]}, {"from_position": 60, "weights": [3, 1]}]
    node = {"blend": [{"path": parts[0]}, {"path": parts[1]}], "schedule": steps}
    run = train(node, recorder)
    expected = [(0, (Fraction(1, 2), Fraction(1, 2))), (60, (Fraction(3, 4), Fraction(1, 4)))]
    assert list(recorder.got["schedule"]) == expected
    assert [loaded.weight for loaded in recorder.got["datasets"]] == [Fraction(1, 2)] * 2
    assert run.dataset.dataset == BlendDataset(*recorder.got["datasets"], schedule=expected)

    class WithoutSchedules(TaskEncoder):
        def build_train_datasets(self, *, datasets: Any, worker_config: WorkerConfig) -> Any:
            return BlendDataset(*datasets)

    with pytest.raises(ConfigError, match=r"WithoutSchedules.build_train_datasets does not accept schedule="):
        train(node, WithoutSchedules())


def test_validation_gets_every_leaf(parts: list[str]) -> None:
    recorder = Recorder()
    run: Any = get_val_dataset(
        document(weighted(parts)), split_part="train", batch_size=4, limit=2, task_encoder=recorder
    )
    assert [loaded.path for loaded in recorder.got["datasets"]] == parts
    assert recorder.got["limit"] == 2
    assert run.dataset.dataset.dataset == ConcatDataset(*recorder.got["datasets"])


def test_combining_by_hand(parts: list[str]) -> None:
    """An override may hand other datasets on than it got, with or without saying how they combine."""

    class Only(DefaultTaskEncoder):
        def __init__(self, repeat: bool = True, **arguments: Any) -> None:
            super().__init__()
            self.repeat = repeat
            self.arguments = arguments

        def build_train_datasets(self, *, datasets: Any, blend_mode: Any, repeat: Any, **keywords: Any) -> Any:
            del blend_mode, repeat
            self.parts = [dataset for dataset, _ in datasets[:2]]
            return super().build_train_datasets(
                datasets=datasets[:2], repeat=self.repeat, **{**keywords, **self.arguments}
            )

    endless, finite = Only(), Only(repeat=False)
    assert train(weighted(parts), endless).dataset.dataset == BlendDataset(*endless.parts)
    assert train(weighted(parts), finite).dataset.dataset == BlendEpochizedDataset(*finite.parts)
    by_weight = train(weighted(parts), Only(blend_mode=DatasetBlendMode.DATASET_WEIGHT)).dataset.dataset
    assert by_weight.schedule == ((0, (Fraction(1, 4), Fraction(1, 2))),)
    with pytest.raises(ConfigError, match=r"a blend by weights is endless"):
        train(weighted(parts), Only(repeat=False, blend_mode=DatasetBlendMode.DATASET_WEIGHT))


def test_nothing_to_combine() -> None:
    for builder in (TaskEncoder().build_train_datasets, TaskEncoder().build_val_datasets):
        with pytest.raises(ConfigError, match="got no dataset, expected at least one"):
            builder(datasets=[], worker_config=WorkerConfig(0, 1), batch_size=2)


def test_a_builder_must_return_a_dataset(parts: list[str]) -> None:
    class Forgetful(TaskEncoder):
        def build_train_datasets(self, *, datasets: Any, worker_config: Any, batch_size: Any) -> Any:
            return None

    with pytest.raises(ConfigError, match=r"Forgetful.build_train_datasets returned a NoneType"):
        train(weighted(parts), Forgetful())


@pytest.mark.parametrize(
    ("arguments", "lost"),
    [
        ({"packing_buffer_size": 5}, r"packing_buffer_size=5"),
        ({"virtual_epoch_length": 5}, r"virtual_epoch_length=5"),
        ({"batch_drop_last": True}, r"batch_drop_last=True"),
        ({"last_batch": "pad"}, r"last_batch='pad'"),
    ],
)
def test_what_was_asked_for_is_not_lost(parts: list[str], arguments: dict[str, Any], lost: str) -> None:
    class Terse(TaskEncoder):
        def build_train_datasets(self, *, datasets: Any, worker_config: WorkerConfig, batch_size: int) -> Any:
            return self.build_batch(BlendDataset(*datasets), batch_size=batch_size, worker_config=worker_config)

    assert isinstance(train(weighted(parts), Terse()).dataset, BatchDataset)
    with pytest.raises(ConfigError, match=f"build_train_datasets does not accept {lost}: declare"):
        train(weighted(parts), Terse(), **arguments)


def test_overridden_parts(parts: list[str]) -> None:
    """`build_batch` and `build_encode_sample` are called by the other builders, with what they declare."""
    calls: list[str] = []

    class Encoder(DefaultTaskEncoder):
        def build_encode_sample(self, dataset: Any) -> Any:
            calls.append("build_encode_sample")
            return dataset

        def build_batch(self, dataset: Any, *, batch_size: int, worker_config: WorkerConfig) -> Any:
            calls.append("build_batch")
            return super().build_batch(dataset, batch_size=batch_size * 2, worker_config=worker_config)

    assert train(weighted(parts), Encoder()).dataset.batch_size == 4
    assert calls == ["build_encode_sample", "build_batch"]
    with pytest.raises(ConfigError, match=r"Encoder.build_batch does not accept packing_buffer_size=3"):
        train(weighted(parts), Encoder(), packing_buffer_size=3)


CUSTOMISED = """
from typing import Any, List, Optional, Tuple, TypeVar
from energon_grain import (
    BaseCoreDatasetFactory, BlendDataset, DefaultTaskEncoder, EpochizeDataset, SavableDataset, TextSample, WorkerConfig,
)

T_sample = TypeVar("T_sample")
T_batch = TypeVar("T_batch")

class Encoder(DefaultTaskEncoder[TextSample, TextSample, TextSample, TextSample]):
    def build_train_datasets(
        self,
        *,
        datasets: List[Tuple[BaseCoreDatasetFactory[T_sample], float]],
        worker_config: WorkerConfig,
        batch_size: Optional[int],
        batch_drop_last: bool = False,
        packing_buffer_size: Optional[int] = None,
        virtual_epoch_length: int = 0,
        shuffle_buffer_size: Optional[int] = None,
    ) -> SavableDataset[T_batch]:
        dataset = BlendDataset(*datasets, worker_config=worker_config)
        dataset = self.build_batch(
            dataset, batch_size=batch_size, batch_drop_last=batch_drop_last, worker_config=worker_config
        )
        if virtual_epoch_length > 0:
            dataset = EpochizeDataset(dataset, length=virtual_epoch_length, worker_config=worker_config)
        return dataset
"""


def test_customized_blending(parts: list[str]) -> None:
    """A builder written for the original, annotations and all, gives what the default gives."""
    names: dict[str, Any] = {}
    exec(CUSTOMISED, names)
    custom = train(weighted(parts), names["Encoder"](), virtual_epoch_length=7)
    assert isinstance(custom.dataset, EpochizeDataset)
    default = train(weighted(parts), virtual_epoch_length=7)
    assert keys(custom) == keys(default)
    assert len(keys(custom)) == 7


def test_pairs() -> None:
    run: Any = get_val_dataset("s3://nowhere/data", batch_size=None)
    leaf = run.dataset
    for pair in (LoadedDataset(leaf, 2, path="p"), LoadedDataset(leaf, repetitions=3), LoadedDataset(leaf)):
        dataset, number = pair
        assert dataset is pair.dataset is leaf
        assert number == (pair.weight or pair.repetitions or 1)
        copy = pickle.loads(pickle.dumps(pair))
        assert (copy[1], copy.weight, copy.repetitions, copy.path) == (
            number,
            pair.weight,
            pair.repetitions,
            pair.path,
        )
