"""What did not make it, and why: samples, items of lanes, and batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from energon_grain.errors import (
    ConfigError,
    FatalSampleError,
    IndexFileError,
    ReadError,
    SkipSample,
    UntrustedCodeError,
)
from energon_grain.stream.worker_config import named

FATAL = (
    SystemError,
    SyntaxError,
    ImportError,
    StopIteration,
    StopAsyncIteration,
    MemoryError,
    RecursionError,
    ReferenceError,
    NameError,
    FatalSampleError,
    ConfigError,
    UntrustedCodeError,
    ReadError,
    IndexFileError,
)
"""Exceptions that tell of a broken program or of a failing disk rather than of a broken sample.

They end the iteration at once: a hiccup of the network must not change the stream."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Dropped:
    """What was dropped, where and by which hook. In a chunk it stands in place of the sample.

    Attributes:
        leaf: Number of the leaf that it is of, or its first sample; -1: of several.
        hook: What dropped it: "decode", or the name of a hook.
        failure_tolerance: Of that hook.
        error: What it raised; a `SkipSample` when the hook chose to drop the sample.
        key: Key of the sample; "" for others.
        shard: Shard that it lies in, likewise.
        sample: What the hook was given, for the error handler; None where it was dropped on purpose.
        sources: Provenance of the sample.
        what: A sample as it is read, what a lane makes, or a batch of a step.
    """

    leaf: int
    hook: str
    failure_tolerance: int
    error: Exception
    key: str
    shard: str
    sample: Any
    sources: Any
    what: Literal["sample", "item", "batch"] = "sample"

    @property
    def where(self) -> str:
        """The place, for messages."""
        if self.what == "sample":
            return f"{self.shard}: {self.key}"
        return f"{'an item' if self.what == 'item' else 'a batch'} ({named(self.sample)})"

    @property
    def skipped(self) -> bool:
        """Whether it was dropped on purpose."""
        return isinstance(self.error, SkipSample)


def release_frames(error: BaseException | None) -> None:
    """Take the traceback from an error that is kept: its frames hold the whole chunk that was being encoded."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def raise_if_fatal(error: Exception, hook: str, where: str) -> None:
    """End the iteration for errors that no policy may skip.

    Raises:
        FatalSampleError: `error` is one of `FATAL`.
    """
    if isinstance(error, FATAL):
        raise FatalSampleError(
            f"{hook} failed on {where} with {type(error).__name__}: {error}; such an error is a fault of the program, "
            f"not of the sample, and is never skipped"
        ) from error
