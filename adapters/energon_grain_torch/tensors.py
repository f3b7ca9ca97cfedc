# SPDX-License-Identifier: Apache-2.0
"""Tensors as a kind of array, and PyTorch's global generator. Importing this module makes the core use both.

The core then stacks, pads, joins and sends tensors, and seeds the generator for hooks with
`@stateless(restore_seeds=True)`.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy.typing as npt
import torch
from torch import Tensor, default_generator

from energon_grain.stream.hooks import GENERATORS, GlobalGenerator
from energon_grain.transforms.batching import WORTH_A_LOOK, ArrayKind, fill_rows, fill_stretches, register_array_kind


def _stack(batch: Sequence[Tensor]) -> Tensor:
    """Stack tensors of one shape. If they are all rows of a tensor in order (from the decoder), return that tensor."""
    base = batch[0]._base
    if base is not None and batch[0].nbytes >= WORTH_A_LOOK and _are_rows(batch, base):
        return base
    return _in_type_of_first(torch.stack, batch)


def _are_rows(batch: Sequence[Tensor], base: Tensor) -> bool:
    first = batch[0]
    if base.shape != (len(batch), *first.shape) or base.dtype != first.dtype or not base.is_contiguous():
        return False
    start, step = base.data_ptr(), first.nbytes
    return all(
        row._base is base
        and row.data_ptr() == start + at * step
        and row.is_contiguous()
        and not row.requires_grad
        and not row.is_neg()
        and not row.is_conj()
        for at, row in enumerate(batch)
    )


def _pad_stack(batch: Sequence[Tensor], shape: tuple[int, ...]) -> Tensor:
    first = batch[0]
    if len(shape) == 2 or all(tensor.shape[1:] == shape[2:] for tensor in batch):
        return torch.nn.utils.rnn.pad_sequence(list(batch), batch_first=True)
    return fill_rows(first.new_zeros(shape), batch)


def _concatenate(batch: Sequence[Tensor]) -> Tensor:
    return _in_type_of_first(torch.cat, batch)


def _concat_pad(batch: Sequence[Tensor], shape: tuple[int, ...]) -> Tensor:
    return fill_stretches(batch[0].new_zeros(shape), batch)


def _in_type_of_first(join: Callable[[list[Tensor]], Tensor], batch: Sequence[Tensor]) -> Tensor:
    """Join tensors in the type of the first. `join` uses the common type, whose rounding must not show."""
    dtype = batch[0].dtype
    joined = join(list(batch))
    return joined if joined.dtype == dtype else join([tensor.to(dtype) for tensor in batch])


def _reduce(tensor: Tensor) -> tuple[Any, ...]:
    """Pickle only the elements of a tensor, not the storage that it is a view of. The copy is contiguous.

    Raises pickle.PicklingError if it was computed with gradients.
    """
    if not tensor.is_leaf:
        raise pickle.PicklingError(
            f"a tensor of shape {tuple(tensor.shape)} was computed with gradients, which cannot cross processes: "
            f"return tensor.detach() from the hook, or compute it under torch.no_grad()"
        )
    plain = tensor.device.type == "cpu" and tensor.layout == torch.strided and not tensor.is_quantized
    if not plain or tensor.is_conj() or tensor.is_neg() or tensor.__dict__:
        return tensor.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    flat = tensor.detach().contiguous().as_strided((tensor.numel(),), (1,))  # one element: any stride is contiguous
    buffer = pickle.PickleBuffer(cast("Any", flat.view(torch.uint8).numpy()))
    return _rebuild, (buffer, tensor.dtype, tuple(tensor.shape), tensor.requires_grad)


def _rebuild(buffer: Any, dtype: torch.dtype, shape: tuple[int, ...], requires_grad: bool) -> Tensor:
    # `frombuffer` does not accept an empty buffer.
    flat = torch.frombuffer(buffer, dtype=dtype) if memoryview(buffer).nbytes else torch.empty(0, dtype=dtype)
    return flat.reshape(shape).requires_grad_(requires_grad)


def _like(array: npt.NDArray[Any], other: Tensor) -> Tensor:
    """Return a tensor of a numpy array on the device of another tensor."""
    return torch.from_numpy(array).to(other.device, non_blocking=True)


register_array_kind(
    Tensor,
    ArrayKind(
        stack=_stack,
        pad_stack=_pad_stack,
        concatenate=_concatenate,
        concat_pad=_concat_pad,
        reduce=_reduce,
        like=_like,
    ),
)


GENERATORS["torch"] = GlobalGenerator(
    seed=lambda seed: default_generator.manual_seed(seed),
    get_state=torch.get_rng_state,
    set_state=torch.set_rng_state,
)
