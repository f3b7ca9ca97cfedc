# SPDX-License-Identifier: Apache-2.0
"""Every error that energon-grain raises on purpose.

    EnergonGrainError
    ├── ConfigError (ValueError)               an argument or a configuration file is invalid
    │   ├── FieldMapError                      a field map does not match the sample type or the grammar
    │   ├── SplitError                         a split configuration names something unknown, or selects nothing
    │   ├── HostsError                         the number of hosts does not divide the lanes of the run
    │   ├── RefusedError                       the existing content of a path does not allow the operation
    │   └── MissingPackageError (ImportError)  an optional package is not installed
    ├── DatasetNotFoundError (FileNotFoundError)   no prepared dataset at a path
    ├── FormatError (ValueError)               bytes on disk do not follow their format
    │   ├── TarError                           a tar file is damaged, or uses an unsupported feature
    │   ├── IndexFileError                     an index file is damaged
    │   │   └── StaleIndexError                an index no longer matches the files that it describes
    │   └── DuplicateKeyError                  two samples of one dataset have the same key
    ├── KeyNotFoundError (KeyError)            a file store has no entry for a key
    ├── EmptyDatasetError (ValueError)         there is nothing to iterate over
    ├── UntrustedCodeError (PermissionError)   a data file would run code that the program did not allow
    ├── DecodingError (ValueError)             a part cannot be decoded; the error policy handles the sample
    ├── ReadError (OSError)                    reading failed after retries; never skipped
    │   ├── RangeError                         a file or object ends before the requested bytes
    │   └── MissingObjectError (FileNotFoundError)  an object store has no object of a name
    ├── StateError (ValueError)                a saved state cannot be used
    │   └── FingerprintError                   a saved state belongs to another configuration or other data
    │       └── AmendmentError                 a change of a running mixture cannot be made
    ├── FatalSampleError (RuntimeError)        too many consecutive failures, or one that must not be skipped
    ├── WorkerError (RuntimeError)             a worker process died, cannot start, or belongs to another process
    └── SkipSample                             raised by user hooks to drop the current sample

A message states what happened, where (shard, member, byte offset), the rule, and what to do next.

Tracebacks are short. An error that leaves a public function shows the frames of the caller and none of this library:
library frames do not help a user who misspelled a path. `public` and `shorten` remove them where the error leaves the
library and not where it is printed, so threads, notebooks, loggers and `traceback.print_exc` show the same traceback.
`ENERGON_GRAIN_TRACEBACK=full` keeps all frames. A bare `raise` adds no frame of its own function. An error whose
`__traceback__` was cleared just before therefore begins with the caller.
"""

from __future__ import annotations

import functools
import inspect
import os
import sysconfig
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any, Self, TypeVar, cast


class EnergonGrainError(Exception):
    """Base of every error that this library raises on purpose."""


class ConfigError(EnergonGrainError, ValueError):
    """An argument or a configuration file is invalid."""


class FieldMapError(ConfigError):
    """A field map does not match the sample type, or breaks the grammar."""


class SplitError(ConfigError):
    """A split configuration names something unknown, or selects nothing."""


class HostsError(ConfigError):
    """The number of hosts does not divide the lanes of the run."""


class RefusedError(ConfigError):
    """The path is already prepared, is being prepared, or is not empty, which rules out the operation."""


class MissingPackageError(ConfigError, ImportError):
    """An optional package is not installed; the message names the extra that installs it."""


class DatasetNotFoundError(EnergonGrainError, FileNotFoundError):
    """There is no prepared dataset at a path."""


class FormatError(EnergonGrainError, ValueError):
    """Bytes on disk do not follow their format."""


class TarError(FormatError):
    """A tar file is damaged, or uses a feature that datasets do not support."""


class IndexFileError(FormatError):
    """An index file is damaged."""


class StaleIndexError(IndexFileError):
    """An index no longer matches the files that it describes."""


class DuplicateKeyError(FormatError):
    """Two samples of one dataset have the same key."""


class KeyNotFoundError(EnergonGrainError, KeyError):
    """A file store has no entry for a key."""

    def __str__(self) -> str:
        # KeyError shows the repr of its argument, which is wrong for a sentence.
        return Exception.__str__(self)


class EmptyDatasetError(EnergonGrainError, ValueError):
    """There is nothing to iterate over."""


class UntrustedCodeError(EnergonGrainError, PermissionError):
    """A data file would run code that the program did not allow."""


class DecodingError(EnergonGrainError, ValueError):
    """The bytes of a part cannot be decoded. The error policy handles the sample."""


class ReadError(EnergonGrainError, OSError):
    """Reading failed after retries. Never skipped: a transient disk fault must not change the stream."""


class RangeError(ReadError):
    """A file or an object ends before the requested bytes."""


class MissingObjectError(ReadError, FileNotFoundError):
    """An object store has no object of a name."""


class StateError(EnergonGrainError, ValueError):
    """A saved state cannot be used."""


class FingerprintError(StateError):
    """A saved state belongs to another configuration or to other data."""


class AmendmentError(FingerprintError):
    """A change of a running mixture that cannot be made; the message names what, and what to do instead."""


class FatalSampleError(EnergonGrainError, RuntimeError):
    """Too many consecutive failures, or a failure that must not be skipped. Hooks may raise it to end the iteration."""

    @classmethod
    def from_sample(cls, sample: object, message: str = "") -> Self:
        """Return an error that names a sample by its key.

        Args:
            sample: A sample (crude or typed) or a batch.
            message: The reason.
        """
        key = sample.get("__key__") if isinstance(sample, dict) else getattr(sample, "__key__", None)
        return cls(f"{type(sample).__name__} {key!r} failed{': ' if message else ''}{message}")


class WorkerError(EnergonGrainError, RuntimeError):
    """A worker process died or could not start, or the workers belong to the process that this one was forked from."""


class SkipSample(EnergonGrainError):  # noqa: N818 (Energon's public name)
    """Raised by a user hook to drop the current sample. Such drops are counted and not logged as failures."""


Api = TypeVar("Api", bound=Callable[..., Any])
_OURS = ("energon_grain", "energon_grain_torch")
_LIBRARIES = (*(f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib")), "<frozen ")
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_SPECIAL = ("__init__", "__call__", "__getitem__", "__getitems__", "__iter__", "__len__", "__enter__", "__exit__")


def shorten(error: EnergonGrainError) -> None:
    """Remove library frames from an error that leaves the library, and from its causes. Then `raise` it bare.

    Frames of the program stay: for a failed hook, its own frame and all frames below. Errors raised before the program
    called the library are not changed. A cause without program frames stays if it adds information.
    """
    if os.environ.get("ENERGON_GRAIN_TRACEBACK") == "full":
        return
    error.__traceback__ = _of_program(error.__traceback__)
    raised: BaseException | None = error
    seen: set[int] = set()
    while raised is not None and id(raised) not in seen:
        seen.add(id(raised))
        raised = _shortened_cause(raised)


def _shortened_cause(error: BaseException) -> BaseException | None:
    """Return the cause of an error without library frames; None if it has none, or if it adds nothing."""
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is None or _is_program(cause.__traceback__):
        return None
    rest = _of_program(cause.__traceback__)
    if rest is None and isinstance(error, FatalSampleError):
        rest = _after_library(cause.__traceback__)  # a hook of an installed package
    cause.__traceback__ = rest
    if rest is None and _reason(cause) in str(error):
        error.__cause__ = None  # this also suppresses a remaining context
    return cause


def _reason(cause: BaseException) -> str:
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    return str(cause.args[0]) if isinstance(cause, KeyError) and cause.args else str(cause)


def _entries(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _is_program(traceback: TracebackType | None) -> bool:
    """Return whether the traceback begins in the program."""
    return traceback is not None and _in_program(traceback.tb_frame)


def _in_program(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    return not _is_ours(frame) and not file.startswith(_LIBRARIES) and not any(part in file for part in _INSTALLED)


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] in _OURS


def _of_program(traceback: TracebackType | None) -> TracebackType | None:
    """Return the traceback from the first frame of the program on."""
    return next((entry for entry in _entries(traceback) if _in_program(entry.tb_frame)), None)


def _after_library(traceback: TracebackType | None) -> TracebackType | None:
    """Return the traceback after the last frame of this library."""
    ours = [entry for entry in _entries(traceback) if _is_ours(entry.tb_frame)]
    return ours[-1].tb_next if ours else None


def public(api: Api) -> Api:
    """Decorate a public function, or a class with public methods, to shorten its errors. Signatures stay the same.

    For a class, this covers its own methods without a leading underscore, its constructor, and those of `_SPECIAL`.
    Generators, and `__next__`, where an extra call would cost time for each batch, call `shorten` themselves.
    """
    if not isinstance(api, type):
        return cast("Api", _guarded(api))
    for name, method in [*vars(api).items()]:
        if name.startswith("_") and name not in _SPECIAL:
            continue
        if isinstance(method, classmethod | staticmethod):
            kind: Any = type(method)
            setattr(api, name, kind(_guarded(cast("Any", method).__func__)))
        elif inspect.isfunction(method):
            setattr(api, name, _guarded(method))
    return cast("Api", api)


def _guarded(function: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
        return function

    @functools.wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        try:
            return function(*args, **keywords)
        except Exception as error:
            error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next  # drop the frame of this wrapper
            if isinstance(error, EnergonGrainError):
                shorten(error)
            raise

    return call
