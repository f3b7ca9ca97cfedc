"""Objects by TensorStore: one request a call, no second attempts.

TensorStore starts threads that a fork does not copy, and ends a forked process that uses it (`fork() use detected`).
`inherited` says that this process is such a one; then `helper_objects` is to be used.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from energon_grain.errors import ConfigError
from energon_grain.storage.given_up import LOOK_SECONDS, given_up
from energon_grain.storage.kvstore_spec import context_spec, kvstore_spec
from energon_grain.storage.object_error import GIVEN_UP, ObjectError, object_error
from energon_grain.storage.storage_settings import StorageSettings

UNVERSIONED = b"\x10"
"""The generation of all objects of a server that tells none (`https://` without entity tags)."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """What a read gave.

    Attributes:
        data: The bytes; None where the object is the version that the caller has.
        generation: Changes whenever the object does: its entity tag, or the store's generation number; `UNVERSIONED`
            where the store tells none.
    """

    data: bytes | None
    generation: bytes


class Objects(Protocol):
    """One request a call. Every method raises ObjectError, also when `timeout_s` is over."""

    def read(
        self, url: str, start: int | None, stop: int | None, known: bytes | None, timeout_s: float
    ) -> Fetched | None:
        """Read bytes [start, stop) of an object, whole where both are None; None: there is no such object.

        Args:
            url: Of the object.
            start: Negative: counted from the end (then without `stop`).
            stop: None: to the end.
            known: The generation that the caller has.
            timeout_s: In seconds.
        """
        ...

    def list(self, url: str, timeout_s: float) -> list[str]:
        """Keys below a folder, relative to it, sorted."""
        ...

    def write(self, url: str, data: bytes, timeout_s: float) -> bytes:
        """Put an object, whole; give its generation."""
        ...

    def delete(self, url: str, timeout_s: float) -> None:
        """Remove an object, if it is there."""
        ...


_STALLED_BYTES_PER_S = 1024


class TensorStoreObjects:
    """`Objects` of this process.

    Args:
        settings: How stores are reached.
    """

    def __init__(self, settings: StorageSettings) -> None:
        self._settings = settings
        self._stores: dict[str, Any] = {}

    def read(
        self, url: str, start: int | None, stop: int | None, known: bytes | None, timeout_s: float
    ) -> Fetched | None:
        """See `Objects`."""
        spec, store, key, mark = self._store(url)
        same = None
        if known is not None and known != UNVERSIONED and known.startswith(mark):
            same = known[len(mark) :]
        # TensorStore's driver for S3 keeps tags with their quotes, and cannot send one that came without, or is weak.
        sent = same if spec["driver"] != "s3" or (same or b"")[1:2] == b'"' else None
        wanted = {} if start is None and stop is None else {"byte_range": slice(start, stop)}
        result = _wait(store.read(key, if_not_equal=sent, **wanted), spec, timeout_s)
        if result.state == "missing":
            return None
        # Servers that do not know If-None-Match send the same version again.
        is_same = result.state == "unspecified" or (same is not None and result.stamp.generation == same)
        data = None if is_same else result.value
        if data is not None and start is not None and start >= 0 and stop is not None and len(data) != stop - start:
            raise ObjectError(f"{len(data)} bytes came instead of {stop - start}", passing=True)
        return Fetched(data, mark + result.stamp.generation)

    def list(self, url: str, timeout_s: float) -> list[str]:
        """See `Objects`."""
        import tensorstore

        spec, store, key, _ = self._store(url)
        prefix = f"{key}/" if key else ""
        keys = tensorstore.KvStore.KeyRange(prefix, f"{key}0" if key else "")  # "0" comes after "/"
        found = _wait(store.list(keys, strip_prefix_length=len(prefix.encode())), spec, timeout_s)
        return sorted(name.decode("utf-8", "surrogateescape") for name in found)

    def write(self, url: str, data: bytes, timeout_s: float) -> bytes:
        """See `Objects`."""
        spec, store, key, mark = self._store(url)
        return mark + _wait(store.write(key, data), spec, timeout_s).generation

    def delete(self, url: str, timeout_s: float) -> None:
        """See `Objects`."""
        spec, store, key, _ = self._store(url)
        _wait(store.write(key, None), spec, timeout_s)

    def _store(self, url: str) -> tuple[dict[str, Any], Any, str, bytes]:
        """A store as it is described and opened, the key there, and what its generations are to begin with."""
        import tensorstore

        spec, key = kvstore_spec(url, self._settings)
        name = repr(spec)
        if name not in self._stores:
            try:
                opening = tensorstore.KvStore.open(spec, context=shared_context(self._settings))
            except ValueError as error:  # no store can be called so
                raise ConfigError(f"{url}: {error}") from error
            self._stores[name] = _wait(opening, spec, self._settings.timeout_s)
        return spec, self._stores[name], key, _memory if spec["driver"] == "memory" else b""


def _wait(future: Any, spec: dict[str, Any], timeout_s: float) -> Any:
    end = time.monotonic() + timeout_s
    try:
        while True:
            try:
                return future.result(timeout=max(0.0, min(LOOK_SECONDS, end - time.monotonic())))
            except TimeoutError:
                if given_up():
                    raise ObjectError(GIVEN_UP, passing=False) from None
                if time.monotonic() >= end:
                    raise ObjectError(f"no answer within {timeout_s:g} s", passing=True) from None
    except ObjectError:
        future.cancel()
        raise
    except (ValueError, KeyError, NotImplementedError, RuntimeError, OSError) as error:
        raise object_error(error, spec) from None


_inherited = False
_memory = os.urandom(8)
"""Tells the generations of `memory://` from those of other processes, which count alike."""
_contexts: dict[bytes, Any] = {}
_lock = threading.Lock()


def inherited() -> bool:
    """Whether this process was forked from one that had loaded TensorStore."""
    return _inherited


def _after_fork() -> None:
    global _inherited, _lock, _memory
    _memory = os.urandom(8)
    _inherited = _inherited or "tensorstore" in sys.modules
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def shared_context(settings: StorageSettings) -> Any:
    """The `tensorstore.Context` of all stores and arrays of this process that are reached by these settings."""
    import tensorstore

    spec = context_spec(settings)
    key = msgspec.json.encode(spec)
    _give_up_stalled_requests(settings.timeout_s)
    with _lock:
        if not _contexts:
            # What lies in memory is one store for the whole process, whatever the settings.
            _contexts[b""] = tensorstore.Context({"memory_key_value_store": {}})
        if key not in _contexts:
            _contexts[key] = tensorstore.Context(tensorstore.Context.Spec(spec), _contexts[b""])
        return _contexts[key]


def _give_up_stalled_requests(timeout_s: float) -> None:
    """Let TensorStore end requests that get nothing, once the client has given them up.

    Else they keep their places among those in flight for ever: nothing cancels a request. TensorStore reads these
    variables with its first request, so the first settings of a process count.
    """
    os.environ.setdefault("TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS", str(math.ceil(timeout_s)))
    os.environ.setdefault("TENSORSTORE_CURL_LOW_SPEED_LIMIT_BYTES", str(_STALLED_BYTES_PER_S))
