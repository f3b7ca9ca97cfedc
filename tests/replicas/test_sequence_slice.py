"""Slices of sequences for context parallelism."""

from __future__ import annotations

import dataclasses
import os
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from energon_grain import ConfigError, SequenceSlice, WorkerConfig, pad_to_multiple
from energon_grain.replicas.sequence_slice import slice_indices

LAYOUTS = 1000 if os.environ.get("HYPOTHESIS_PROFILE") == "night" else 100
CONFIG = WorkerConfig(rank=0, world_size=1)


@dataclasses.dataclass
class Layout:
    size: int
    kind: Any
    documents: list[int]
    packed: bool
    dim: int
    tail: int


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    size, kind = draw(st.sampled_from([1, 2, 3, 4, 8])), draw(st.sampled_from(["zigzag", "contiguous"]))
    unit = 2 * size if kind == "zigzag" else size
    documents = draw(st.lists(st.integers(0, 5), min_size=1, max_size=6).filter(any))
    lengths = [unit * count for count in documents]
    return Layout(size, kind, lengths, draw(st.booleans()), draw(st.integers(0, 1)), unit * draw(st.integers(0, 2)))


@settings(max_examples=LAYOUTS)
@given(layouts())
def test_slices_join_to_the_batch_bit_for_bit(layout: Layout) -> None:
    tail = layout.tail if layout.packed else 0
    length = sum(layout.documents) + tail
    positions = np.concatenate([np.arange(count) for count in (*layout.documents, tail)])
    shape = (length, 3) if layout.dim == 0 else (3, length)
    batch: dict[str, Any] = {"tokens": np.arange(3 * length).reshape(shape), "position_ids": positions, "name": "x"}
    if layout.packed:
        batch["cu_seqlens"] = np.cumsum([0, *layout.documents]).astype(np.int32)
    before = {name: np.copy(value) for name, value in batch.items()}
    bounds = batch.get("cu_seqlens")
    joined = {name: np.full_like(batch[name], -1) for name in ("tokens", "position_ids")}
    for rank in range(layout.size):
        cut = SequenceSlice(
            {"tokens": layout.dim, "position_ids": -1}, kind=layout.kind, rank=rank, size=layout.size
        ).on(CONFIG)
        part = cut(batch)
        assert part["name"] == "x"
        assert part.get("cu_seqlens") is bounds
        indices = slice_indices(length, rank, layout.size, layout.kind, bounds)
        assert len(indices) == length // layout.size
        joined["tokens"][(indices,) if layout.dim == 0 else (slice(None), indices)] = part["tokens"]
        joined["position_ids"][indices] = part["position_ids"]
        if layout.kind == "zigzag" and layout.packed:  # causal attention costs every rank the same
            assert part["position_ids"].sum() * layout.size == positions.sum()
    for name, value in joined.items():
        assert np.array_equal(value, before[name])
        assert np.array_equal(batch[name], before[name])


def test_zigzag_is_that_of_megatron() -> None:
    tokens = torch.arange(32).reshape(2, 16)
    for rank in range(4):  # `get_batch_on_this_cp_rank`
        view = tokens.view(2, 8, 2)
        expected = view.index_select(1, torch.tensor([rank, 7 - rank])).view(2, -1)
        part = SequenceSlice({"tokens": 1}, rank=rank, size=4).on(CONFIG)({"tokens": tokens})["tokens"]
        assert isinstance(part, torch.Tensor)
        assert torch.equal(part, expected)


def test_packed_zigzag_is_that_of_transformer_engine() -> None:
    cu_seqlens = np.array([0, 8, 24])
    assert slice_indices(24, 0, 2, "zigzag", cu_seqlens).tolist() == [0, 1, 6, 7, 8, 9, 10, 11, 20, 21, 22, 23]
    assert slice_indices(24, 1, 2, "zigzag", cu_seqlens).tolist() == [2, 3, 4, 5, 12, 13, 14, 15, 16, 17, 18, 19]
    assert slice_indices(24, 1, 2, "zigzag", cu_seqlens[None]).tolist()[:4] == [2, 3, 4, 5]


def test_padded_documents_are_cut_with_their_padding() -> None:
    """The convention of Megatron-LM: indices follow `cu_seqlens_padded`, and both stay those of the whole sequence."""
    bounds = {"cu_seqlens": np.array([0, 7, 12]), "cu_seqlens_padded": np.array([0, 8, 16])}
    for rank, expected in enumerate([[0, 1, 6, 7, 8, 9, 14, 15], [2, 3, 4, 5, 10, 11, 12, 13]]):
        part = SequenceSlice({"tokens": 0}, rank=rank, size=2).on(CONFIG)({"tokens": np.arange(16), **bounds})
        assert part["tokens"].tolist() == expected
        assert all(part[name] is value for name, value in bounds.items())


@pytest.mark.parametrize("kind", ["zigzag", "contiguous"])
def test_local_bounds_are_those_of_the_part(kind: Any) -> None:
    """The convention of ring-flash-attention."""
    batch = {"tokens": torch.arange(24), "cu_seqlens": torch.tensor([0, 8, 24], dtype=torch.int32)}
    for rank in range(2):
        part = SequenceSlice({"tokens": 0}, kind=kind, rank=rank, size=2, bounds="local").on(CONFIG)(batch)
        assert part["cu_seqlens"].tolist() == [0, 4, 12]
        assert part["cu_seqlens"].dtype == torch.int32
        first, second = part["tokens"][:4], part["tokens"][4:]
        assert int(first.max()) < 8 <= int(second.min())
    assert batch["cu_seqlens"].tolist() == [0, 8, 24]


class Named(NamedTuple):
    tokens: Any
    other: int


@dataclasses.dataclass(frozen=True)
class Frozen:
    tokens: Any
    other: int


@pytest.mark.parametrize("kind", [Named, Frozen])
def test_batches_keep_their_type(kind: Any) -> None:
    batch = kind(np.arange(8)[None], 3)
    part = SequenceSlice({"tokens": 1}, rank=1, size=2).on(CONFIG)(batch)
    assert type(part) is kind
    assert (part.tokens.tolist(), part.other) == ([[2, 3, 4, 5]], 3)
    assert batch.tokens.shape == (1, 8)


def test_a_length_that_does_not_divide_says_how_to_pad() -> None:
    cut = SequenceSlice({"tokens": 0}, rank=0, size=2).on(CONFIG)
    batch = {"tokens": np.arange(14), "cu_seqlens": np.array([0, 8, 14])}
    with pytest.raises(ConfigError, match=r"document 1 has 6 positions.*pad_to_multiple\(4, …\)|pad_to_multiple"):
        cut(batch)
    padded = pad_to_multiple(np.arange(6), 4, value=-1)
    assert padded.tolist() == [0, 1, 2, 3, 4, 5, -1, -1]
    assert pad_to_multiple(np.zeros((2, 8)), 4, dim=1).shape == (2, 8)


@pytest.mark.parametrize("bounds", [[1, 8], [0, 6, 4], [0, 9], [[0, 4], [0, 8]]])
def test_bounds_that_do_not_fit_are_refused(bounds: Any) -> None:
    cut = SequenceSlice({"tokens": 0}, rank=0, size=2).on(CONFIG)
    with pytest.raises(ConfigError, match="cu_seqlens has shape"):
        cut({"tokens": np.arange(8), "cu_seqlens": np.array(bounds)})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SequenceSlice({"a": 0}, kind="ring"), "kind='ring'"),  # pyright: ignore[reportArgumentType]
        (lambda: SequenceSlice({"a": 0}, bounds="each"), "bounds='each'"),  # pyright: ignore[reportArgumentType]
        (lambda: SequenceSlice({"a": 0}, rank=2, size=2).on(CONFIG), "rank must be in"),
        (lambda: SequenceSlice({"a": 0}, dim="cp").on(CONFIG), "has not been used"),
        (lambda: SequenceSlice({"a": 0}, rank=0, size=2).on(CONFIG)({"b": 1}), "has no field 'a'"),
    ],
)
def test_mistakes_are_named(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()
