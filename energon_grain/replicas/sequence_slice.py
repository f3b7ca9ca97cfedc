# SPDX-License-Identifier: Apache-2.0
"""The part of each sequence that a rank of context parallelism gets."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt

from energon_grain.errors import ConfigError, public
from energon_grain.stream.worker_config import WorkerConfig

Kind = Literal["zigzag", "contiguous"]
Bounds = Literal["whole", "local"]


def slice_indices(
    length: int, rank: int, size: int, kind: Kind = "zigzag", cu_seqlens: npt.NDArray[Any] | None = None
) -> npt.NDArray[np.int64]:
    """Return the positions of a sequence that a rank gets, ascending within each document.

    "zigzag" cuts each document into 2 · size equal pieces, and rank r gets pieces r and 2 · size - 1 - r, so that
    causal attention costs every rank the same. These are the pieces of `get_batch_on_this_cp_rank` of Megatron-LM and
    of `thd_get_partitioned_indices` of Transformer Engine. "contiguous" cuts it into `size` pieces.

    Args:
        length: Length of the sequence.
        rank: Rank in the dimension of context parallelism, in [0, size).
        size: Number of ranks.
        kind: How documents are cut.
        cu_seqlens: (documents + 1,) integers, ascending from 0: where documents begin and end. Positions after the last
            one are cut like a document. None: the sequence is one document.

    Returns:
        (length / size,) int64.

    Raises:
        ConfigError: A document cannot be cut into equal pieces, or `cu_seqlens` does not fit.
    """
    ends = np.array([length], np.int64) if cu_seqlens is None else _ends(cu_seqlens, length)
    begins = np.concatenate([[0], ends[:-1]])
    pieces = 2 * size if kind == "zigzag" else size
    steps, rest = np.divmod(ends - begins, pieces)
    if rest.any():
        document = int(rest.argmax() if rest.any() else 0)
        raise ConfigError(
            f"SequenceSlice: document {document} has {int(ends[document] - begins[document])} positions, which cannot "
            f"be cut into {pieces} equal pieces ({size} ranks, {kind!r}): pad documents to a multiple of {pieces}, for "
            f"example with pad_to_multiple({pieces}, …)"
        )
    mine = (rank, pieces - 1 - rank) if kind == "zigzag" else (rank,)
    firsts = (begins[:, None] + steps[:, None] * np.array(mine)).reshape(-1)
    return _ranges(firsts, np.repeat(steps, len(mine)))


def _ends(cu_seqlens: npt.NDArray[Any], length: int) -> npt.NDArray[np.int64]:
    bounds = np.asarray(cu_seqlens, np.int64)
    if bounds.ndim == 2 and len(bounds) == 1:
        bounds = bounds[0]
    if bounds.ndim != 1 or not len(bounds) or bounds[0] != 0 or (np.diff(bounds) < 0).any() or bounds[-1] > length:
        raise ConfigError(
            f"SequenceSlice: cu_seqlens has shape {bounds.shape} and values {bounds.tolist()[:8]}…; expected one "
            f"dimension, ascending from 0 to at most the length {length} of the sequence. Packs of a batch are sliced "
            f"as one sequence: concatenate them, or deliver one pack in each batch"
        )
    return bounds[1:] if bounds[-1] == length else np.concatenate([bounds[1:], [length]])


def _ranges(firsts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The concatenated ranges [first, first + length)."""
    total = int(lengths.sum())
    offsets = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64)
    return np.repeat(firsts - offsets, lengths) + np.arange(total)


@public
def pad_to_multiple(array: npt.NDArray[Any], multiple: int, value: Any = 0, dim: int = -1) -> npt.NDArray[Any]:
    """Return an array padded at the end of a dimension to a multiple of a length; for hooks, before packing.

    Args:
        array: The array of one document.
        multiple: For slices of kind "zigzag" over n ranks: 2 · n.
        value: Value of the padding.
        dim: The dimension.
    """
    missing = -array.shape[dim] % multiple
    widths = [(0, 0)] * array.ndim
    widths[dim] = (0, missing)
    return np.pad(array, widths, constant_values=value) if missing else array


@public
@dataclass(frozen=True, slots=True)
class SequenceSlice:
    """Delivers to each rank of context parallelism its part of each sequence.

    Documents are cut one by one. Shift labels, and compute position ids and loss masks, before slicing (in
    `encode_batch` or earlier): the next token of the last position of a piece is on another rank.

    If batches have both `cu_seqlens` (tokens only) and `cu_seqlens_padded`, documents are cut with their padding, at
    the latter, as Megatron-LM cuts them.

    The state, `which` and `restore_sample` refer to whole batches.

    Example:
        mesh = init_device_mesh("cuda", (4, 2), mesh_dim_names=("dp", "cp"))
        config = WorkerConfig.of_mesh(mesh, data="dp")
        cut = SequenceSlice({"tokens": 1, "labels": 1, "position_ids": 1}, dim="cp")
        loader = get_savable_loader(dataset, worker_config=config, sequence_slice=cut)

    Attributes:
        fields: Names of the fields of the batch, with their sequence dimension. Other fields stay whole.
        dim: Dimension of the mesh of `WorkerConfig.of_mesh`. None: see `rank`.
        kind: "zigzag": causal attention costs every rank the same. "contiguous": one piece of each document.
        cu_seqlens: Field with the bounds of documents, if batches have it. A field of this name with the suffix
            `_padded` takes precedence.
        bounds: "whole": these fields stay those of the whole sequence. Transformer Engine expects that, and divides
            them itself. "local": the field that documents are cut at becomes that of the part of this rank
            (cu_seqlens / size), as ring-flash-attention expects it.
        rank: Rank in the dimension, without a mesh.
        size: Number of ranks in the dimension, without a mesh.
    """

    fields: Mapping[str, int]
    dim: str | None = None
    kind: Kind = "zigzag"
    cu_seqlens: str = "cu_seqlens"
    rank: int | None = None
    size: int | None = None
    bounds: Bounds = "whole"

    def __post_init__(self) -> None:
        if self.kind not in ("zigzag", "contiguous"):
            raise ConfigError(f"SequenceSlice(kind={self.kind!r}): expected 'zigzag' or 'contiguous'")
        if self.bounds not in ("whole", "local"):
            raise ConfigError(f"SequenceSlice(bounds={self.bounds!r}): expected 'whole' or 'local'")

    def on(self, config: WorkerConfig) -> Callable[[Any], Any]:
        """Return the function that slices batches on this rank.

        Raises:
            ConfigError: The dimension is unknown.
        """
        if self.rank is not None and self.size is not None:
            if not 0 <= self.rank < self.size:
                raise ConfigError(f"SequenceSlice(rank={self.rank}, size={self.size}): rank must be in [0, size)")
            return _OnRank(self, self.rank, self.size)
        coordinates = {} if config.replicas is None else config.replicas.coordinates
        if self.dim not in coordinates:
            raise ConfigError(
                f"SequenceSlice(dim={self.dim!r}): expected rank= and size=, or a dimension of the mesh of "
                f"WorkerConfig.of_mesh, which has {list(coordinates) or 'not been used'}"
            )
        return _OnRank(self, *coordinates[self.dim])


@dataclass(frozen=True, slots=True)
class _OnRank:
    """Slices batches on one rank."""

    cut: SequenceSlice
    rank: int
    size: int

    def __call__(self, batch: Any) -> Any:
        cut = self.cut
        cut_at = f"{cut.cu_seqlens}_padded"
        if _field(batch, cut_at) is None:
            cut_at = cut.cu_seqlens
        given = _field(batch, cut_at)
        bounds = None if given is None else np.asarray(given)
        indices: dict[int, Any] = {}
        made = _copied(batch)
        for name, dim in cut.fields.items():
            value = _field(batch, name)
            if value is None:
                raise ConfigError(
                    f"SequenceSlice: a batch of type {type(batch).__name__} has no field {name!r}; name fields of the "
                    f"batches that the loader delivers"
                )
            length = int(value.shape[dim])
            if length not in indices:
                indices[length] = slice_indices(length, self.rank, self.size, cut.kind, bounds)
            index = (*[slice(None)] * (dim % value.ndim), indices[length])
            made = _with(made, name, value[index])
        return made if cut.bounds == "whole" or given is None else _with(made, cut_at, _divided(given, self.size))


def _field(batch: Any, name: str) -> Any:
    if isinstance(batch, Mapping):
        return cast("Mapping[str, Any]", batch).get(name)
    return getattr(batch, name, None)


def _divided(bounds: Any, size: int) -> Any:
    return (bounds if hasattr(bounds, "dtype") else np.asarray(bounds)) // size


def _copied(batch: Any) -> Any:
    return batch if isinstance(batch, tuple) else copy.copy(batch)


def _with(batch: Any, name: str, value: Any) -> Any:
    """The copied batch with another value of a field."""
    if isinstance(batch, dict):
        batch[name] = value
    elif isinstance(batch, tuple):
        return cast("Any", batch)._replace(**{name: value})
    elif is_dataclass(batch):
        object.__setattr__(batch, name, value)
    else:
        setattr(batch, name, value)
    return batch


def with_slice(
    sequence_slice: SequenceSlice | None, config: WorkerConfig, finish: Callable[[Any], Any] | None = None
) -> Callable[[Any], Any] | None:
    """Return a function that slices a batch and then calls `finish`; None: there is nothing to do."""
    if sequence_slice is None:
        return finish
    cut = sequence_slice.on(config)
    return cut if finish is None else lambda batch: finish(cut(batch))
