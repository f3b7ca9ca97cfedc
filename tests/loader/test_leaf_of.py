"""The dataset of each sample of a batch: numbers in batches, and their names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from metadatasets import write_v2

from energon_grain import (
    Batch,
    DefaultTaskEncoder,
    PackingPlan,
    Sample,
    TaskEncoder,
    TextSample,
    WorkerConfig,
    edataclass,
    get_savable_loader,
    get_train_dataset,
    leaf_of,
)
from energon_grain.errors import StateError
from energon_grain.loader import to_device
from energon_grain.testing import make_text_dataset

NAMES = ("web", "code", "math")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("leaves")
    for name in NAMES:
        make_text_dataset(root / name, n=40, shards=2)
    return root


def blend(data: Path, name: str = "mix.yaml", **weights: float) -> Path:
    entries = [
        {"path": path, "weight": weight, "subflavors": {"of": path}, **({"name": path} if path == "math" else {})}
        for path, weight in weights.items()
    ]
    return write_v2(data, name, train={"blend": entries})


def loader(data: Path, encoder: Any = None, **options: Any) -> Any:
    weights = options.pop("weights", {"web": 3, "code": 1})
    dataset = get_train_dataset(
        blend(data, **weights),
        batch_size=options.pop("batch_size", 16),
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        task_encoder=encoder or DefaultTaskEncoder(),
        lanes=8,
        **options,
    )
    return get_savable_loader(dataset)


def names(loader: Any, leaf: Any) -> list[str]:
    assert leaf.dtype == np.int32
    return [loader.leaf_names[number] for number in leaf.tolist()]


def tags(batch: Any) -> list[str]:
    return [tags["of"] for tags in batch.__subflavors__]


def test_numbers_and_names(data: Path) -> None:
    with loader(data) as batches:
        batch = next(batches)
        assert batches.leaf_names == ["web", "code"]
        assert names(batches, batch.leaf) == tags(batch)
        assert {*tags(batch)} == {"web", "code"}
        for same in (leaf_of(batch), batches.leaf_of(batch), leaf_of(json.loads(json.dumps(batch.__restore_key__)))):
            assert np.array_equal(same, batch.leaf)
        assert leaf_of(batch.__restore_key__[5]).tolist() == batch.leaf[0]
        assert "leaf" not in vars(batch)
        assert "leaf" not in dict(batch)


def test_amendments_append_numbers(data: Path) -> None:
    with loader(data) as first:
        next(first)
        added = {"path": str(data / "math"), "subflavors": {"of": "math"}, "name": "math"}
        first.amend(weights={"web": 0, "code": 1, "math": 3}, add={"math": added})
        assert first.leaf_names == ["web", "code", "math"]
        batch = next(first)
        assert names(first, batch.leaf) == tags(batch)
        state = first.save_state_rank()
    with loader(data, weights={"math": 1, "code": 1}) as second:
        assert second.leaf_names == ["math", "code"]
        second.restore_state_rank(state, on_change="amend")
        batch = next(second)
        assert second.leaf_names == ["web", "code", "math"]  # `web` is removed, and keeps its number
        assert names(second, batch.leaf) == tags(batch)


def test_names_are_unique(data: Path, tmp_path: Path) -> None:
    (tmp_path / "web").symlink_to(data / "web")
    entries: list[dict[str, Any]] = [
        {"path": str(data / "web"), "weight": 1},
        {"path": str(tmp_path / "web"), "weight": 1},
        {"path": str(data / "web"), "weight": 1},
        {"path": str(data / "code"), "weight": 1, "subset": {"range": [0, 20]}},
        {"path": str(data / "math"), "weight": 1, "name": "numbers/easy"},
    ]
    dataset = get_train_dataset(
        write_v2(data, "same.yaml", train={"blend": entries}),
        batch_size=4,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
    )
    with get_savable_loader(dataset) as batches:
        found = batches.leaf_names
    assert [found[0], *found[3:]] == ["web", "code", "numbers/easy"]
    assert found[1] == str(tmp_path / "web")
    assert found[2] == str(data / "web")


class Dictionaries(TaskEncoder[Any, Any, Any, Any]):
    """Batches that are dictionaries."""

    def batch(self, samples: list[Any]) -> Any:
        return {
            "size": np.array([len(sample.text) for sample in samples]),
            "leaf": leaf_of(samples),
            "of": [sample.__subflavors__["of"] for sample in samples],
        }


@pytest.mark.parametrize("workers", [WorkerConfig(0, 1, 0), WorkerConfig(0, 1, 2, worker_type="process")])
def test_batches_that_are_dictionaries(data: Path, workers: WorkerConfig) -> None:
    with loader(data, Dictionaries(), worker_config=workers) as batches:
        for _ in range(3):
            batch = next(batches)
            assert names(batches, batch["leaf"]) == batch["of"]
        with pytest.raises(StateError, match=r"leaf_of\(samples\) in the hook `batch`"):
            batches.leaf_of({"size": 1})


@edataclass
class Sized(Sample):
    size: np.ndarray[Any, Any]


@edataclass
class SizedBatch(Batch):
    """A batch type with a field for the numbers."""

    size: np.ndarray[Any, Any]
    leaf: np.ndarray[Any, Any]


class Typed(TaskEncoder[Any, Any, Any, Any]):
    def encode_sample(self, sample: TextSample) -> Sized:
        return Sized.derive_from(sample, size=np.array([len(sample.text)]))

    def batch(self, samples: list[Sized]) -> SizedBatch:
        return SizedBatch.from_samples(samples)


def test_a_field_of_a_batch_type_inside_jit_and_on_devices(data: Path) -> None:
    @jax.jit
    def by_leaf(batch: Any) -> Any:
        return jax.ops.segment_sum(jnp.ones(16), batch.leaf, num_segments=2)

    with loader(data, Typed()) as batches:
        batch = next(batches)
        assert names(batches, batch.leaf) == tags(batch)
        assert by_leaf(batch).tolist() == np.bincount(batch.leaf).tolist()
        sharding = NamedSharding(Mesh(np.array(jax.devices()[:1]), "data"), PartitionSpec("data"))
        placed = next(to_device(batches, sharding))
        assert placed.leaf.sharding == sharding
        assert by_leaf(placed).tolist() == np.bincount(batches.leaf_of(placed)).tolist()


def test_inside_jit_without_a_field(data: Path) -> None:
    class Untyped(DefaultTaskEncoder):
        def encode_sample(self, sample: TextSample) -> Sized:
            return Sized.derive_from(sample, size=np.array([len(sample.text)]))

    with loader(data, Untyped()) as batches:
        batch = next(batches)
        with pytest.raises(TypeError, match=r"pass batch.leaf as an argument"):
            jax.jit(lambda batch: batch.leaf)(batch)
        assert np.array_equal(jax.jit(lambda leaf: leaf)(batch.leaf), batch.leaf)


def packed(samples: list[TextSample]) -> TextSample:
    """A pack that says which dataset each segment is from."""
    pack = TextSample.derive_from(samples[0], text=str(leaf_of(samples).tolist()))
    pack.__subflavors__ = {"of": json.dumps([sample.__subflavors__["of"] for sample in samples])}  # type: ignore[index]
    return pack


class Packs(DefaultTaskEncoder):
    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        return [samples[at : at + 2] for at in range(0, len(samples), 2)]

    def pack_selected_samples(self, samples: list[Any]) -> Any:
        return packed(samples)


@pytest.mark.parametrize("options", [{"packing_buffer_size": 6}, {"packing": PackingPlan("bytes.txt", capacity=250)}])
def test_packs(data: Path, options: dict[str, Any]) -> None:
    with loader(data, Packs(), **options) as batches:
        batch = next(batches)
        segments = [json.loads(text) for text in batch.text]
        of = [json.loads(text) for text in tags(batch)]
        assert [[batches.leaf_names[number] for number in each] for each in segments] == of
        expected = [each[0] if len({*each}) == 1 else -1 for each in segments]
        assert batches.leaf_of(batch).tolist() == expected
        assert {-1, 0} <= {*expected}
        if "packing" in options:
            assert batch.leaf.tolist() == expected
        else:
            assert not hasattr(batch, "leaf")
            with pytest.raises(StateError, match=r"loader.leaf_of\(batch\)"):
                leaf_of(batch)
            logged = json.loads(json.dumps(batch.__restore_key__))
            assert batches.leaf_of(logged).tolist() == expected


def test_a_type_with_its_own_field_of_that_name() -> None:
    @edataclass
    class Tree(Sample):
        leaf: str

    with pytest.raises(TypeError, match="leaf"):
        Tree(__key__="a", __restore_key__=())  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    assert Tree(__key__="a", __restore_key__=(), leaf="oak").leaf == "oak"
