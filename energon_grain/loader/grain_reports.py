"""Reads as Grain reports them: to its counters of bytes and latencies, and under their names in XProf's traces.

Both are what Grain's own sources use, and no part of its public interface: in a release that has them elsewhere, and
without Grain, nothing is reported.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


class _Decorator(Protocol):
    def __call__(self, method: F, /) -> F: ...


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _unchanged(method: F) -> F:
    return method


record_read: Callable[..., None] = _nothing
"""`record_read(source, num_bytes=, latency_ns=, num_reads=)`."""
traced_item: _Decorator = _unchanged
"""Decorates a `__getitem__` that reads."""
traced_next: _Decorator = _unchanged
"""Decorates a `__next__` that reads."""
with suppress(ImportError, AttributeError, TypeError):
    _stats: Any = importlib.import_module("grain._src.python.dataset.stats")
    _monitoring: Any = importlib.import_module("grain._src.core.monitoring")
    record_read = _monitoring.record_bytes_read_and_latency
    traced_item = _stats.trace_input_pipeline(stage_category=_stats.IPL_CAT_READ)
    traced_next = _stats.trace_input_pipeline_next(stage_category=_stats.IPL_CAT_READ)
