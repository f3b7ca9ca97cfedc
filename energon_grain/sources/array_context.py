"""What the arrays of a process share as TensorStore reads them, and whether it can read in this process at all.

TensorStore starts threads that a fork does not copy, and ends a forked process that uses it (`fork() use detected`).
`inherited` says that this process is such a one; then `array_helper` is to be used.
"""

from __future__ import annotations

import math
import os
import sys
import threading
from typing import Any

import msgspec

from energon_grain.storage.storage_settings import StorageSettings

_STALLED_BYTES_PER_S = 1024
_inherited = False
_contexts: dict[bytes, Any] = {}
_lock = threading.Lock()


def inherited() -> bool:
    """Whether this process was forked from one that had loaded TensorStore."""
    return _inherited


def _after_fork() -> None:
    global _inherited, _lock
    _inherited = _inherited or "tensorstore" in sys.modules
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def shared_context(settings: StorageSettings) -> Any:
    """The `tensorstore.Context` of all arrays of this process in stores that are reached by these settings."""
    import tensorstore

    spec: dict[str, Any] = {
        f"{driver}_request_concurrency": {"limit": settings.requests_in_flight} for driver in ("s3", "gcs", "http")
    }
    key = msgspec.json.encode(spec)
    _give_up_stalled_requests(settings.timeout_s)
    with _lock:
        if key not in _contexts:
            _contexts[key] = tensorstore.Context(tensorstore.Context.Spec(spec))
        return _contexts[key]


def _give_up_stalled_requests(timeout_s: float) -> None:
    """Let TensorStore end requests that get nothing: else they keep their places among those in flight for ever.

    TensorStore reads these variables with its first request, so the first settings of a process count.
    """
    os.environ.setdefault("TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS", str(math.ceil(timeout_s)))
    os.environ.setdefault("TENSORSTORE_CURL_LOW_SPEED_LIMIT_BYTES", str(_STALLED_BYTES_PER_S))
