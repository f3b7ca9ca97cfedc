"""What to do with a sample that fails. See `WorkerConfig.global_error_handler`."""

from __future__ import annotations

import logging
from typing import Any

_logger = logging.getLogger("energon_grain")


def log_exception(error: Exception, sample: Any, sources: Any = None) -> None:
    """Log what failed and where, and go on without the sample. The default."""
    places = "; ".join(str(source) for source in sources or ())
    _logger.warning(
        "%s was dropped: %s: %s%s",
        _named(sample),
        type(error).__name__,
        error,
        f" (from {places})" if places else "",
        exc_info=(type(error), error, error.__traceback__),
    )


def _named(sample: Any) -> str:
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
