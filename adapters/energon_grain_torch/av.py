"""Video and audio as the core decodes them, in tensors."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import torch

from energon_grain.media import av_decoder


class AVDecoder(av_decoder.AVDecoder):
    """`energon_grain.AVDecoder`, with tensors where that has arrays: the same values in the same shapes."""

    def array(self, values: npt.NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(values)


class AVWebdatasetDecoder(av_decoder.AVWebdatasetDecoder):
    """`energon_grain.AVWebdatasetDecoder`, with tensors where that has arrays."""

    _decoder = AVDecoder
