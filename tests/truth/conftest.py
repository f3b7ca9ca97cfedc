"""Fleets of loaders, one for each class that a module asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.truth.fleet import Fleet

Fleets = Callable[..., Fleet]


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleets]:
    """Return a fleet by the name of its adapter, or of a class of `planted_faults`."""
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent))
        opened = dict[str, Fleet]()

        def of(name: str, timeout_s: float = 60.0) -> Fleet:
            if name not in opened:
                place = f"planted_faults:{name}" if name[0].isupper() else name
                opened[name] = stack.enter_context(Fleet(place, timeout_s=timeout_s))
            return opened[name]

        yield of
