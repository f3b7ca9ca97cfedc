"""PyTorch gives what Grain gives: the same recording, and the states of one go on in the other."""

from __future__ import annotations

import pytest
from golden import streams
from golden.configurations import CONFIGURATIONS
from golden.record import recorded

import energon_grain_torch

pytestmark = pytest.mark.slow

STREAMS = recorded("streams")


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_stream(name: str) -> None:
    (before,) = STREAMS[f"{name}, 1 host"]
    (now,) = streams.record_hosts(CONFIGURATIONS[name], energon_grain_torch, 1)
    assert streams.difference(name, before, now) is None
