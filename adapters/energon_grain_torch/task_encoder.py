# SPDX-License-Identifier: Apache-2.0
"""The core's decoders with tensors where Energon has tensors, and the task encoders that use them."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy.typing as npt
import torch

from energon_grain import task_encoder
from energon_grain.media import av_decoder
from energon_grain.samples.subscripts import EncodedBatch, EncodedSample, RawBatch, RawSample
from energon_grain.transforms import decode
from energon_grain.transforms.decode import Buffer, torch_file


class AVDecoder(av_decoder.AVDecoder):
    """`energon_grain.AVDecoder` with tensors instead of arrays: the same values in the same shapes."""

    def array(self, values: npt.NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(values)


class AVWebdatasetDecoder(av_decoder.AVWebdatasetDecoder):
    """`energon_grain.AVWebdatasetDecoder` with tensors in place of arrays."""

    _decoder = AVDecoder


class SampleDecoder(decode.SampleDecoder):
    """Decodes the parts of samples like `energon_grain.SampleDecoder`, with tensors.

    | option or part | value |
    |---|---|
    | `image_decode="torch…"` | tensors with the values of the core's arrays; other modes stay arrays or images |
    | `av_decode="AVDecoder"`, `"torch"` | the core's objects, whose clips are tensors |
    | `pth` | content of `torch.save`, on the CPU: tensors and plain containers; any class with `allow_pickle` |
    | `npy`, `npz`, `ten` `tb` | numpy arrays, as in Energon |
    """

    _av_decoder = f"{AVWebdatasetDecoder.__module__}.{AVWebdatasetDecoder.__qualname__}"

    def _planes_value(self, planes: npt.NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(planes)

    def _torch_codec(self, part: str) -> Callable[[Buffer], Any]:
        if self._config["allow_pickle"]:
            return super()._torch_codec(part)
        return partial(_load_weights, max_bytes=self._config["max_part_bytes"])


def _load_weights(data: Buffer, *, max_bytes: int | None) -> Any:
    try:
        return torch.load(torch_file(data, max_bytes), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"contains more than tensors and plain containers, or is damaged; if you trust the data, use "
            f"SampleDecoder(allow_pickle=True): {str(error).splitlines()[0]}"
        ) from error


class TaskEncoder(task_encoder.TaskEncoder[RawSample, EncodedSample, RawBatch, EncodedBatch]):
    """Base of task encoders, see `energon_grain.TaskEncoder`. Hooks may return tensors; images decode to tensors."""

    decoder: decode.SampleDecoder | None = SampleDecoder()
    decoder_type: type[decode.SampleDecoder] = SampleDecoder


class DefaultTaskEncoder(
    task_encoder.DefaultTaskEncoder[RawSample, EncodedSample, RawBatch, EncodedBatch],
    TaskEncoder[RawSample, EncodedSample, RawBatch, EncodedBatch],
):
    """Converts between types by field name, like `energon_grain.DefaultTaskEncoder`."""


class AugmentTaskEncoder(  # pyright: ignore[reportIncompatibleVariableOverride]
    task_encoder.AugmentTaskEncoder[RawSample, EncodedSample, RawBatch, EncodedBatch],
    TaskEncoder[RawSample, EncodedSample, RawBatch, EncodedBatch],
):
    """A task encoder that forwards to another one, except for the hooks of a subclass, like the core's class."""
