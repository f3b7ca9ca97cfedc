"""Modules of the user that options of commands name."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from energon_grain.errors import ConfigError

if TYPE_CHECKING:
    from energon_grain.datasets.task_encoder import TaskEncoder


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


def own_task_encoder(named: str) -> TaskEncoder:
    """The task encoder that is written as `package.module:Class`, made without arguments.

    Raises:
        ConfigError: There is none of that name.
    """
    from energon_grain.datasets.task_encoder import TaskEncoder

    module, _, name = named.partition(":")
    if not module or not name:
        raise ConfigError(f"--task-encoder {named}: module:Class is meant, as my_training.data:Encoder")
    own_modules([module])
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"--task-encoder {named}: {error}") from error
    encoder = found() if isinstance(found, type) else found
    if not isinstance(encoder, TaskEncoder):
        raise ConfigError(f"--task-encoder {named}: is no TaskEncoder")
    return encoder
