"""Encoded chunks between processes: pickles whose large buffers travel beside them.

Provenance of a sample refers to its source; between processes it is sent as (number of the source, index) and bound to
the receiver's own source again. Classes that the user's script defines are sent by name: in a worker, `__main__` is not
that script.
"""

from __future__ import annotations

import dataclasses
import io
import pickle
import sys
import traceback
from collections.abc import Iterable
from operator import attrgetter
from typing import Any, cast

from energon_grain.errors import SkipSample, WorkerError
from energon_grain.sources.provenance import LazySources
from energon_grain.sources.source import Source
from energon_grain.stream.chunk import Encoded
from energon_grain.stream.dropped import Dropped


class SamplePickler(pickle.Pickler):
    """Pickles a result; arrays go to `buffers`."""

    def __init__(self, sources: list[Source]) -> None:
        self._stream = io.BytesIO()
        self._numbers = {id(source): number for number, source in enumerate(sources)}
        self.buffers: list[pickle.PickleBuffer] = []
        super().__init__(self._stream, protocol=5, buffer_callback=self._keep)

    def _keep(self, buffer: pickle.PickleBuffer) -> bool:
        self.buffers.append(buffer)
        return False

    def persistent_id(self, obj: Any) -> tuple[int, int] | str | None:
        """(source, index) in place of provenance, a name in place of a class of the script."""
        if type(obj) is LazySources and id(obj.source) in self._numbers:
            return self._numbers[id(obj.source)], obj.index
        if isinstance(obj, type) and obj.__module__ == "__main__" and "<locals>" not in obj.__qualname__:
            return obj.__qualname__
        return None

    def payload(self, result: Any) -> memoryview:
        """The pickle itself."""
        self.dump(result)
        return self._stream.getbuffer()


class SampleUnpickler(pickle.Unpickler):
    """Reads what `SamplePickler` wrote."""

    def __init__(self, payload: bytes | bytearray, buffers: Iterable[Any], sources: list[Source]) -> None:
        super().__init__(io.BytesIO(payload), buffers=buffers)
        self._sources = sources

    def persistent_load(self, pid: Any) -> Any:
        """Provenance, bound to this process's source; or a class of the script."""
        if isinstance(pid, str):
            try:
                return attrgetter(pid)(sys.modules["__main__"])
            except AttributeError as error:
                raise WorkerError(
                    f"a hook returned an instance of {pid}, which the script does not define at its top level, so that "
                    f"it cannot be found in the main process; define it at the top level, or in a module"
                ) from error
        number, index = pid
        return LazySources(self._sources[number], index)


def with_portable_errors(encoded: Encoded) -> Encoded:
    """The chunk with errors that arrive in another process; with what was given to hooks only where a handler asks."""
    if not encoded.drops:
        return encoded
    outcomes = [_portable(outcome) if type(outcome) is Dropped else outcome for outcome in encoded.outcomes]
    return dataclasses.replace(encoded, outcomes=outcomes)


def _portable(dropped: Dropped) -> Dropped:
    sample = None if dropped.skipped or not _pickles(dropped.sample) else dropped.sample
    return dataclasses.replace(dropped, error=portable_error(dropped.error), sample=sample)


def _pickles(value: Any) -> bool:
    try:
        SamplePickler([]).payload(value)
    except Exception:
        return False
    return True


def portable_error(error: BaseException) -> Any:
    """The error with its traceback as a note, or a namesake where it cannot be pickled and made again."""
    if not isinstance(error, SkipSample):
        error.add_note("In a worker process:\n" + "".join(traceback.format_exception(error)))
    if _pickles(error) and _can_be_made_again(error):
        return error
    return _Namesake(type(error).__name__, str(error), isinstance(error, SkipSample), getattr(error, "__notes__", []))


def _can_be_made_again(error: BaseException) -> bool:
    """Whether the class takes the arguments that pickle calls it with; one with its own `__init__` may not."""
    try:
        make, arguments, *_ = cast("tuple[Any, ...]", error.__reduce_ex__(5))
        make(*arguments)
    except Exception:
        return False
    return True


class _Namesake:
    """Is pickled as an error of a class of this name."""

    def __init__(self, name: str, text: str, skips: bool, notes: list[str]) -> None:
        self._arguments = (name, text, skips, notes)

    def __reduce__(self) -> tuple[Any, ...]:
        return _make_namesake, self._arguments


def _make_namesake(name: str, text: str, skips: bool, notes: list[str]) -> Exception:
    error = cast("Exception", type(name, (SkipSample if skips else RuntimeError,), {})(text))
    for note in notes:
        error.add_note(note)
    return error
