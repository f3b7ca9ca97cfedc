"""Calling overridden hooks and builders with the keywords that they declare, and no others.

So an override that was written for an earlier version, or for Energon, goes on working when a keyword is added.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

from energon_grain.errors import ConfigError


def declared_keywords(function: Callable[..., Any], keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Those of `keywords` that the function takes; all of them where it takes `**kwargs`."""
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return dict(keywords)
    names = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    return {name: value for name, value in keywords.items() if name in names}


def call_declared(function: Callable[..., Any], *arguments: Any, asked: Collection[str] = (), **keywords: Any) -> Any:
    """Call a function with the keywords that it declares.

    Args:
        function: An overridable builder.
        *arguments: Passed as they are.
        asked: Names of keywords that carry what the user asked for, and that must not be lost.
        **keywords: Passed where they are declared.

    Raises:
        ConfigError: One of `asked` is not declared.
    """
    declared = declared_keywords(function, keywords)
    lost = [name for name in asked if name not in declared]
    if lost:
        name = getattr(function, "__qualname__", repr(function))
        what = ", ".join(f"{keyword}={keywords[keyword]!r}" for keyword in lost)
        raise ConfigError(
            f"{name} does not take {what}, which was asked for; declare {', '.join(lost)} there (or **kwargs) and pass "
            f"it on, or do not ask for it"
        )
    return function(*arguments, **declared)
