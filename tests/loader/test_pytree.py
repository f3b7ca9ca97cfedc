from __future__ import annotations

import gc
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import RunScript

from energon_grain import (
    Batch,
    CaptioningSample,
    CrudeSample,
    ImageClassificationSample,
    InterleavedSample,
    edataclass,
    generic_batch,
)
from energon_grain.loader import pytree


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass
class Inner:
    weights: Any
    name: str = ""


@edataclass
class Rich(Batch):
    image: Any
    extras: dict[str, Any] = field(default_factory=dict)
    inner: Inner | None = None
    pair: Pair | None = None
    mask: Any = None
    step: int = 0


@dataclass(frozen=True)
class Plain:
    x: Any
    label: str


@dataclass(slots=True)
class Slotted:
    x: Any
    label: str


def captions(start: int, count: int = 3) -> CaptioningSample:
    return generic_batch(
        [
            CaptioningSample(
                __key__=f"k{start + i}",
                __restore_key__=(start + i,),
                image=np.full((2, 2), start + i, np.float32),
                caption=f"text {start + i}",
            )
            for i in range(count)
        ]
    )


def rich(**changes: Any) -> Rich:
    values: dict[str, Any] = {
        "__key__": ["a"],
        "__restore_key__": (1,),
        "image": np.ones((2, 3)),
        "extras": {"b": np.zeros(2), "name": "n", "a": [1, np.arange(2), "t"]},
        "inner": Inner(np.float32(2), "inner"),
        "pair": Pair(np.ones(1), "right"),
        "mask": "none",
        "__valid__": np.ones(1, bool),
    }
    return Rich(**{**values, **changes})


def test_leaves_are_found_in_containers_and_nested_dataclasses():
    batch = rich()
    assert {jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(batch)} == {
        ".__valid__",
        ".image",
        ".extras['a'][1]",
        ".extras['b']",
        ".inner.weights",
        ".pair.left",
    }


def test_rebuilding_keeps_everything():
    batch = rich(extras=OrderedDict(b=np.zeros(2), name="n"))
    leaves, structure = jax.tree.flatten(batch)
    again = jax.tree.unflatten(structure, leaves)
    assert type(again) is Rich
    assert isinstance(again.extras, OrderedDict)
    assert list(again.extras) == ["b", "name"]
    assert again.extras["name"] == "n"
    assert isinstance(again.inner, Inner)
    assert again.inner.name == "inner"
    assert again.pair == Pair(batch.pair.left, "right")  # type: ignore[union-attr]
    assert (again.__key__, again.mask, again.step) == (["a"], "none", 0)


def test_five_batches_make_one_trace():
    traces = 0

    @jax.jit
    def step(batch: CaptioningSample) -> jax.Array:
        nonlocal traces
        traces += 1
        return jnp.sum(batch.image)

    totals = [float(step(captions(start))) for start in range(5)]
    assert totals == [12.0 * (start + 1) for start in range(5)]
    assert traces == 1


def test_tree_map_takes_two_batches_with_different_texts():
    both = jax.tree.map(np.add, captions(0), captions(5))
    assert both.image[0, 0, 0] == 5
    assert both.__key__ == ["k0", "k1", "k2"]
    assert both.caption == ["text 0", "text 1", "text 2"]


@pytest.mark.parametrize("kind", [Plain, Slotted])
def test_plain_dataclasses_of_users_register_by_value(kind: Any):
    first, second = kind(np.ones(2), "a"), kind(np.ones(2), "b")
    pytree.register_value([first])
    assert jax.tree.structure(first) == jax.tree.structure(second)
    total = jax.tree.map(np.add, first, second)
    assert type(total) is kind
    assert total.label == "a"
    assert total.x.tolist() == [2, 2]
    shapes = jax.eval_shape(lambda b: b, first)
    assert shapes.x.shape == (2,)


def test_crude_samples_are_pytrees():
    crude = CrudeSample(__key__="a", npy=np.ones(2), txt="x")
    doubled = jax.tree.map(lambda x: 2 * x, crude)
    assert isinstance(doubled, CrudeSample)
    assert doubled["npy"].tolist() == [2, 2]
    assert doubled["txt"] == "x"
    ((path, _),) = jax.tree_util.tree_leaves_with_path(crude)
    assert jax.tree_util.keystr(path) == "['npy']"


def test_place_of_arrays_is_part_of_the_structure():
    image = rich(mask=None)
    mask = rich(image=None, mask=np.ones((2, 3)))
    assert jax.tree.structure(image) != jax.tree.structure(mask)
    first = InterleavedSample(__key__="a", __restore_key__=(), sequence=[np.ones(1), "t"])
    second = InterleavedSample(__key__="a", __restore_key__=(), sequence=["t", np.ones(1)])
    assert jax.tree.structure(first) != jax.tree.structure(second)
    assert jax.tree.structure(first) == jax.tree.structure(replace(first, __key__="b"))


@pytest.mark.parametrize("leaf", [None, 0, "text", (1, 2), object()])
def test_leaves_may_become_anything_and_are_found_again(leaf: Any):
    batch = rich()
    other = jax.tree.map(lambda _: leaf, batch)
    assert other.image is leaf
    assert other.extras["a"][1] is leaf
    is_leaf = lambda x: x is leaf  # noqa: E731
    assert len(jax.tree.leaves(other, is_leaf=is_leaf)) == 6
    assert jax.tree.structure(other, is_leaf=is_leaf) == jax.tree.structure(batch)
    again = jax.tree.map(lambda _, x: x, other, batch, is_leaf=is_leaf)
    assert again.image is batch.image


def test_layouts_of_rebuilt_objects_are_forgotten_with_them():
    gc.collect()
    before = len(pytree._layouts)
    other = jax.tree.map(lambda _: None, rich())
    assert len(pytree._layouts) > before
    del other
    gc.collect()
    assert len(pytree._layouts) == before


def test_vmap_jit_and_sharding_prefixes_work():
    batch = captions(0)
    sums = jax.vmap(lambda b: jnp.sum(b.image))(batch)
    assert sums.tolist() == [0.0, 4.0, 8.0]
    axes = jax.tree.map(lambda _: 0, batch)
    assert jax.vmap(lambda b: jnp.sum(b.image), in_axes=(axes,))(batch).tolist() == [0.0, 4.0, 8.0]
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    placed = jax.device_put(batch, device)
    assert placed.caption == batch.caption
    assert isinstance(placed.image, jax.Array)
    shardings = jax.tree.map(lambda _: device, batch)
    assert isinstance(jax.tree.map(jax.device_put, batch, shardings).image, jax.Array)
    doubled = jax.jit(lambda b: jax.tree.map(lambda x: 2 * x, b), in_shardings=device)(batch)
    assert float(doubled.image[1, 0, 0]) == 2.0


def test_static_values_are_refused_inside_a_trace():
    batch = generic_batch(
        [ImageClassificationSample(__key__="a", __restore_key__=(), image=np.ones(2), label=i) for i in range(3)]
    )
    assert batch.label == [0, 1, 2]
    with pytest.raises(TypeError, match=r"ImageClassificationSample\.label is not an array.*Make it an array"):
        jax.jit(lambda b: jnp.asarray(b.label))(batch)
    with pytest.raises(TypeError, match="label is not an array"):
        jax.jit(lambda b: b.image * b.label[0])(batch)
    with pytest.raises(TypeError, match="label is not an array"):
        jax.jit(lambda b: b.image * len(b.label))(batch)


def test_none_is_visible_inside_a_trace_and_part_of_the_structure():
    @jax.jit
    def step(batch: Rich) -> Any:
        return batch.image if batch.mask is None else jnp.zeros(())

    assert step(rich(mask=None)).shape == (2, 3)
    assert step(rich(mask="static")).shape == ()
    assert jax.tree.structure(rich(__subflavors__=None)) == jax.tree.structure(rich(__subflavors__=[{}]))


def test_static_values_inside_mixed_containers_are_refused_inside_a_trace():
    seen: list[Any] = []

    @jax.jit
    def step(batch: Rich) -> Any:
        seen.append(batch)
        return batch.extras["a"][1]

    step(rich())
    traced = seen[0]
    assert type(traced.extras["a"][2]).__name__ == "Untraced"
    assert repr(traced.extras["a"][2]) == "<Rich.extras['a'][2], not available inside jax.jit>"
    with pytest.raises(TypeError, match=r"Rich\.step is not an array"):
        bool(traced.step)


def test_registered_types_of_others_stay_as_they_are():
    @jax.tree_util.register_dataclass
    @dataclass
    class Theirs:
        x: Any
        y: Any

    pytree.register_type(Theirs)
    assert len(jax.tree.leaves(Theirs(1, 2))) == 2


BEFORE_JAX = """
import sys
from dataclasses import dataclass
from pathlib import Path
import numpy as np
from energon_grain import DefaultTaskEncoder, Sample, TextSample, WorkerConfig, edataclass, get_train_dataset

@edataclass
class Mine(TextSample):
    array: object

@dataclass
class Plain:
    array: object

class Encoder(DefaultTaskEncoder):
    def encode_sample(self, sample):
        return Plain(np.ones(2))

def dataset(**options):
    config = WorkerConfig(0, 1, 1)
    more = {"shuffle_buffer_size": 10, "max_samples_per_sequence": 4, "worker_config": config}
    return get_train_dataset(sys.argv[1], batch_size=4, **more, **options)

key = next(iter(dataset())).__restore_key__
finders = list(sys.meta_path)
import jax
assert sys.meta_path == finders
mine = Mine(array=np.ones(2), __key__="a", __restore_key__=(), text="x")

def shapes(value):
    return [np.shape(leaf) for leaf in jax.tree.leaves(value)]
"""
WAYS = {
    "the core's own loop": "assert shapes(next(iter(dataset(task_encoder=Encoder())))) == [(4, 2)]",
    "a loader": """
from energon_grain import get_savable_loader
with get_savable_loader(dataset(task_encoder=Encoder())) as loader:
    assert shapes(next(loader)) == [(4, 2)]
""",
    "samples that are restored": """
from energon_grain import Stream
with Stream.of(dataset()) as stream:
    assert shapes(stream.restore_sample(key)) == []
""",
    "batches by number": """
from energon_grain.loader import BatchMapDataset
assert shapes(BatchMapDataset(dataset(task_encoder=Encoder()))[1]) == [(4, 2)]
""",
    "samples by number": """
from energon_grain.loader import EnergonDataSource
assert shapes(EnergonDataSource(sys.argv[1])[3]) == []
""",
    "a batch made by hand": """
from energon_grain import generic_batch
assert shapes(generic_batch([Plain(np.ones(2))] * 3)) == [(3, 2)]
""",
    "a class defined later": """
@edataclass
class Other(Sample):
    array: object

assert shapes(Other(array=np.ones(3), __key__="a", __restore_key__=())) == [(3,)]
""",
}


@pytest.mark.parametrize("way", WAYS)
def test_jax_may_be_imported_late(text_dataset: Callable[..., Path], run_script: RunScript, way: str):
    """Whatever comes first of these registers all classes that were defined before, without a hook in the import."""
    program = f"{BEFORE_JAX}{WAYS[way]}\nassert shapes(mine) == [(2,)]\n"
    done = run_script(program, text_dataset(53))
    assert (done.returncode, done.stderr) == (0, "")
