"""Where a sample or batch carries its restore key."""

from __future__ import annotations

from typing import Any, cast

RestoreKey = tuple[Any, ...]


def with_restore_key(value: Any, key: RestoreKey) -> Any:
    """The value, with its key where it has a place for it: an attribute `__restore_key__`, or that key of a dict."""
    if isinstance(value, dict):
        if "__restore_key__" in value:
            cast("dict[str, Any]", value)["__restore_key__"] = key
    elif hasattr(value, "__restore_key__"):
        value.__restore_key__ = key
    return cast("Any", value)
