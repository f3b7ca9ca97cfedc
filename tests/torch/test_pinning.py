"""Pinned memory, on machines that have a device to pin for."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data._utils.pin_memory import pin_memory as pinned_by_torch

from energon_grain_torch import Batch, edataclass

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


class Pair(NamedTuple):
    left: Any
    right: Any


@edataclass
class Images(Batch):
    image: torch.Tensor
    more: dict[str, Any]


def test_tensors_are_pinned_and_all_else_stays() -> None:
    array = np.ones(2)
    batch = Images(
        __key__=["a"],
        __restore_key__=((),),
        image=torch.ones(3, 4),
        more={"pair": Pair(torch.arange(3), "text"), "array": array},
    )
    for pinned in (batch.pin_memory(), pinned_by_torch(batch)):
        assert type(pinned) is Images
        assert pinned.__key__ == ["a"]
        assert pinned.image.is_pinned()
        assert torch.equal(pinned.image, batch.image)
        assert pinned.more["pair"].left.is_pinned()
        assert pinned.more["array"] is array
    assert not batch.image.is_pinned()
