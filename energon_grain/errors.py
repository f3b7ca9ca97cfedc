# SPDX-License-Identifier: Apache-2.0
"""Every error that energon-grain raises on purpose.

    EnergonGrainError
    ├── ConfigError (ValueError)               an argument or a configuration file asks for something impossible
    │   ├── FieldMapError                      a field map does not fit the sample type or the grammar
    │   ├── SplitError                         a split configuration names what does not exist, or selects nothing
    │   ├── HostsError                         the number of hosts does not fit the lanes of the run
    │   ├── RefusedError                       what lies at a path already does not allow what is asked for
    │   └── MissingPackageError (ImportError)  a package that only an extra installs is not there
    ├── DatasetNotFoundError (FileNotFoundError)   no prepared dataset at a path
    ├── FormatError (ValueError)               bytes on disk are not what their format demands
    │   ├── TarError                           a tar file is damaged, or uses what a dataset may not
    │   ├── IndexFileError                      an index file is damaged
    │   │   └── StaleIndexError                an index no longer fits the files that it describes
    │   └── DuplicateKeyError                  two samples of one dataset have the same key
    ├── KeyNotFoundError (KeyError)            a file store has nothing under a key
    ├── EmptyDatasetError (ValueError)         nothing is left to iterate over
    ├── UntrustedCodeError (PermissionError)   a data file asks to run code that the program did not allow
    ├── DecodingError (ValueError)             the bytes of a part do not decode; the sample is skipped by policy
    ├── ReadError (OSError)                    reading failed after retries; never skipped
    │   ├── RangeError                         a file or object ends before the bytes that were asked for
    │   └── MissingObjectError (FileNotFoundError)  an object store has nothing under a name
    ├── StateError (ValueError)                a saved state cannot be used
    │   └── FingerprintError                   a saved state belongs to another configuration or other data
    ├── FatalSampleError (RuntimeError)        too many failures in a row, or a failure that no policy may skip
    ├── WorkerError (RuntimeError)             a worker process died or cannot start, or is another process's
    └── SkipSample                             raised by user hooks to drop the current sample

A message says what happened, where (shard, member, byte offset), the rule, and the way out.

Errors are short: one that leaves a public function shows the caller's frames, and none of ours. The frames between the
public function and the place that noticed are of no use to somebody who misspelt a path. They are taken away where the
error leaves the library (`public`, `shorten`), not where it is shown, so that threads, notebooks, loggers and
`traceback.print_exc` all show the same. `ENERGON_GRAIN_TRACEBACK=full` keeps them. How it works: a bare `raise` adds no
frame of the function that it is in, so an error whose `__traceback__` was emptied just before begins with the caller.
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
    """An argument or a configuration file asks for something impossible."""


class FieldMapError(ConfigError):
    """A field map does not fit the sample type, or breaks the grammar."""


class SplitError(ConfigError):
    """A split configuration names what does not exist, or selects nothing."""


class HostsError(ConfigError):
    """The number of hosts does not fit the lanes of the run."""


class RefusedError(ConfigError):
    """What lies at a path already does not allow what is asked for: it is prepared, being prepared, or not empty."""


class MissingPackageError(ConfigError, ImportError):
    """A package that only an extra of this library installs is not there; the message names the extra."""


class DatasetNotFoundError(EnergonGrainError, FileNotFoundError):
    """There is no prepared dataset at a path."""


class FormatError(EnergonGrainError, ValueError):
    """Bytes on disk are not what their format demands."""


class TarError(FormatError):
    """A tar file is damaged, or uses a feature that a dataset may not use."""


class IndexFileError(FormatError):
    """An index file is damaged."""


class StaleIndexError(IndexFileError):
    """An index no longer fits the files that it describes."""


class DuplicateKeyError(FormatError):
    """Two samples of one dataset have the same key."""


class KeyNotFoundError(EnergonGrainError, KeyError):
    """A file store has nothing under a key."""

    def __str__(self) -> str:
        # A KeyError shows the representation of its argument, which for a sentence is wrong.
        return Exception.__str__(self)


class EmptyDatasetError(EnergonGrainError, ValueError):
    """Nothing is left to iterate over."""


class UntrustedCodeError(EnergonGrainError, PermissionError):
    """A data file asks to run code that the program did not allow."""


class DecodingError(EnergonGrainError, ValueError):
    """The bytes of a part do not decode. The sample is handled by the error policy."""


class ReadError(EnergonGrainError, OSError):
    """Reading failed after retries. Never skipped: a hiccup of a disk must not change the stream."""


class RangeError(ReadError):
    """A file or an object ends before the bytes that were asked for."""


class MissingObjectError(ReadError, FileNotFoundError):
    """An object store has nothing under a name."""


class StateError(EnergonGrainError, ValueError):
    """A saved state cannot be used."""


class FingerprintError(StateError):
    """A saved state belongs to another configuration or to other data."""


class AmendmentError(FingerprintError):
    """A change of a running mixture that cannot be made; the message names what, and what to do instead."""


class FatalSampleError(EnergonGrainError, RuntimeError):
    """Too many failures in a row, or a failure that no policy may skip. Hooks may raise it to end the iteration."""

    @classmethod
    def from_sample(cls, sample: object, message: str = "") -> Self:
        """An error that names a sample by its key.

        Args:
            sample: A sample, crude or not, or a batch.
            message: What is wrong with it.
        """
        key = sample.get("__key__") if isinstance(sample, dict) else getattr(sample, "__key__", None)
        return cls(f"{type(sample).__name__} {key!r} failed{': ' if message else ''}{message}")


class WorkerError(EnergonGrainError, RuntimeError):
    """A worker process died or could not start; or workers are those of the process that this one was forked from."""


class SkipSample(EnergonGrainError):  # noqa: N818 (Energon's public name)
    """Raised by a user hook to drop the current sample. Counted, never logged as a failure."""


Api = TypeVar("Api", bound=Callable[..., Any])
_OURS = ("energon_grain", "energon_grain_torch")
_LIBRARIES = (*(f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib")), "<frozen ")
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_SPECIAL = ("__init__", "__call__", "__getitem__", "__getitems__", "__iter__", "__len__", "__enter__", "__exit__")


def shorten(error: EnergonGrainError) -> None:
    """Take our frames from an error that leaves the library, and from what it was raised from. Then `raise` it bare.

    Frames of the program stay: of a hook that failed, its own and all below it. An error that was raised before the
    program called us is not touched. A cause without frames of the program stays if it says more than the error.
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
    """What an error was raised from, without our frames; None: nothing, or it adds nothing."""
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is None or _is_program(cause.__traceback__):
        return None
    rest = _of_program(cause.__traceback__)
    if rest is None and isinstance(error, FatalSampleError):
        rest = _behind_ours(cause.__traceback__)  # a hook of an installed package
    cause.__traceback__ = rest
    if rest is None and _says(cause) in str(error):
        error.__cause__ = None  # and suppresses the context, where it stays
    return cause


def _says(cause: BaseException) -> str:
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    return str(cause.args[0]) if isinstance(cause, KeyError) and cause.args else str(cause)


def _entries(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _is_program(traceback: TracebackType | None) -> bool:
    """Whether it begins in the program."""
    return traceback is not None and _in_program(traceback.tb_frame)


def _in_program(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    return not _is_ours(frame) and not file.startswith(_LIBRARIES) and not any(part in file for part in _INSTALLED)


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] in _OURS


def _of_program(traceback: TracebackType | None) -> TracebackType | None:
    """From the first frame of the program on."""
    return next((entry for entry in _entries(traceback) if _in_program(entry.tb_frame)), None)


def _behind_ours(traceback: TracebackType | None) -> TracebackType | None:
    """From behind our last frame on."""
    ours = [entry for entry in _entries(traceback) if _is_ours(entry.tb_frame)]
    return ours[-1].tb_next if ours else None


def public(api: Api) -> Api:
    """Decorates a public function, or a class with public methods: its errors are shortened. Signatures stay.

    Of a class that are its own methods without an underscore, its constructor, and those of `_SPECIAL`. Generators, and
    `__next__`, where a call more would cost something for each batch, call `shorten` themselves.
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
            error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next  # this frame says nothing
            if isinstance(error, EnergonGrainError):
                shorten(error)
            raise

    return call
