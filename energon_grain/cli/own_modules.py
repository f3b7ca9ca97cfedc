"""Modules of the user that options of commands name."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable


def own_modules(named: Iterable[str] | None) -> tuple[str, ...]:
    """The modules that options name, after which imports look in the current folder too, as with `python -m`.

    Where none is named nothing changes, so that no file of the current folder takes the place of an installed module.
    """
    modules = tuple(named or ())
    if modules and "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # its name, which processes that are started get too
    return modules


def own_sample_type(name: str | None) -> None:
    """Do so for a sample type, if it is written as `package.module:Class`."""
    module, colon, _ = (name or "").partition(":")
    own_modules([module] if colon else None)
