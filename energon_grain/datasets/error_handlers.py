"""What to do with a sample that fails. See `WorkerConfig.global_error_handler`."""

from __future__ import annotations

import logging
import traceback
from typing import Any

from energon_grain.errors import DecodingError

IN_A_WORKER = "In a worker process:\n"
"""Begins the note with the traceback of an error that comes from another process."""

_logger = logging.getLogger("energon_grain")


def log_exception(error: Exception, sample: Any, sources: Any = None) -> None:
    """Log what failed and where, and go on without the sample. The default.

    As the handler of a loader it is called for the first failure of a kind alone; of the others only their number is
    logged, when it reaches 10, 100, 1,000 and so on. Bytes that do not decode are told without a traceback.
    """
    places = "; ".join(str(source) for source in sources or ())
    _logger.warning(
        "%s was dropped: %s: %s%s%s",
        named(sample),
        type(error).__name__,
        error,
        f" (from {places})" if places else "",
        "" if isinstance(error, DecodingError) else f"\n{traceback_text(error).rstrip()}",
    )


def traceback_text(error: BaseException) -> str:
    """The traceback of an error; the one in the process that it comes from."""
    notes: list[str] = getattr(error, "__notes__", [])
    for note in notes:
        if note.startswith(IN_A_WORKER):
            return note.removeprefix(IN_A_WORKER)
    return "".join(traceback.format_exception(error))


def forget_traceback(error: BaseException) -> None:
    """Take from an error what `traceback_text` gives."""
    error.with_traceback(None)
    notes: list[str] = getattr(error, "__notes__", [])
    notes[:] = [note for note in notes if not note.startswith(IN_A_WORKER)]


def named(sample: Any) -> str:
    """What was dropped, by key where it has one: a sample, or the samples of a batch or a pack."""
    if isinstance(sample, list):
        several: list[Any] = sample
        return (
            f"what was made of {len(several)} samples, the first {_key(several[0])!r}," if several else "an empty group"
        )
    key = _key(sample)
    return f"a value without a key ({type(sample).__name__})" if key is None else f"sample {key!r}"


def _key(sample: Any) -> Any:
    return sample.get("__key__") if isinstance(sample, dict) else getattr(sample, "__key__", None)


def reraise_exception(error: Exception, sample: Any, sources: Any = None) -> None:
    """End the iteration with the error."""
    del sample, sources
    raise error
