"""What to do with a sample that fails. See `WorkerConfig.global_error_handler`."""

from __future__ import annotations

import logging
from typing import Any

_logger = logging.getLogger("energon_grain")


def log_exception(error: Exception, sample: Any, sources: Any = None) -> None:
    """Log what failed and where, and go on without the sample. The default."""
    key = sample.get("__key__") if isinstance(sample, dict) else getattr(sample, "__key__", None)
    places = "; ".join(str(source) for source in sources or ())
    _logger.warning(
        "sample %r was dropped: %s: %s%s",
        key,
        type(error).__name__,
        error,
        f" (from {places})" if places else "",
        exc_info=(type(error), error, error.__traceback__),
    )


def reraise_exception(error: Exception, sample: Any, sources: Any = None) -> None:
    """End the iteration with the error."""
    del sample, sources
    raise error
