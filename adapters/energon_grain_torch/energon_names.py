"""What exists for Energon's spelling alone: its commands, names of its files, and small functions that we do not need.

Found through `as_megatron_energon`; nothing of ours uses it.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from energon_grain.datasets.stateless import failure_tolerance_of
from energon_grain.errors import EnergonGrainError
from energon_grain.formats import nv_meta
from energon_grain.samples import source_info
from energon_grain.samples.pinning import pin_memory
from energon_grain.samples.source_info import get_source_info as get_source_info
from energon_grain.storage.epath import EPath

DEFAULT_PROFILE_NAME = "__filesystem__"
INDEX_SQLITE_FILENAME = nv_meta.INDEX_SQLITE
INDEX_UUID_FILENAME = nv_meta.INDEX_UUID
INFO_JSON_FILENAME = nv_meta.INFO_JSON
INFO_YAML_FILENAME = nv_meta.INFO_YAML
JOIN_INDEX_FILENAME = "join_index.bin"
MAIN_FOLDER_NAME = nv_meta.META_FOLDER
SPLIT_YAML_FILENAME = "split.yaml"
split_name_re = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$")
skip_meta_re = re.compile(r"__[^/]*__($|/)")

get_failure_tolerance = failure_tolerance_of


def get_dataset_info(path: EPath) -> dict[str, Any]:
    """What `.info.json` of a prepared dataset says, as a dictionary."""
    return nv_meta._plain(nv_meta.read_info(path))


def get_stateless(fn: Any) -> bool:
    """True: every hook is taken to be stateless."""
    return True


class _AlsoOurs(type):
    """Classes that stand for another one: its instances are theirs."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, source_info.SourceInfo)


class SourceInfo(metaclass=_AlsoOurs):
    """Makes `energon_grain.SourceInfo`s, also of what Energon pickled, which fills an empty one in."""

    def __new__(cls, **fields: Any) -> Any:
        """A `SourceInfo` of these fields; of none, one that `__setstate__` fills."""
        blank = {"dataset_path": EPath("."), "index": 0, "shard_name": "", "file_names": ()}
        return source_info.SourceInfo(**(fields or blank))


class State(dict[str, Any]):
    """What Energon saved of a loader, or of a part of one: it can be loaded, looked into and saved again.

    It says nothing here: no loader of ours restores it. A new loader's `skip` goes to the step.
    """

    def __init__(self, *args: Any, **fields: Any) -> None:
        super().__init__(*args, **fields)

    def __setstate__(self, state: Any) -> None:
        for part in state if isinstance(state, tuple) else (state,):
            self.update(part or {})


class PinMemoryMixin:
    """Adds `pin_memory`, which every `Sample` and every `Batch` has, to another type."""

    def pin_memory(self) -> Any:
        """A copy with the tensors in pinned memory."""
        return pin_memory(self)


class _Command:
    """One of our commands under Energon's name, as `click` and its test runner call commands. Errors have status 1."""

    def __init__(self, name: str, *, at_end: str = "") -> None:
        self.name = name
        self._at_end = at_end

    def main(self, args: Sequence[str] | None = None, prog_name: str | None = None, **_: Any) -> NoReturn:
        """Run it with these arguments, or those of the program, and end the program."""
        app: Any = importlib.import_module("energon_grain.cli.app").app
        arguments = [*([self.name] if self.name else []), *(sys.argv[1:] if args is None else args)]
        try:
            app(arguments, prog_name=prog_name or "energon-grain")
        except SystemExit as end:
            if end.code in (0, None) and self._at_end:
                print(self._at_end)
            raise
        except (EnergonGrainError, OSError) as error:
            print(f"Error: {error}", file=sys.stderr)
        raise SystemExit(1)

    __call__ = main


def __getattr__(name: str) -> Any:
    if name not in _COMMANDS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    ours, at_end = _COMMANDS[name]
    value = globals()[name] = _Command(ours, at_end=at_end)
    return value


_COMMANDS = {"prepare": ("prepare", "Done"), "info": ("info", ""), "lint": ("lint", ""), "main": ("", "")}
"""Name here to name of ours, and what Energon's ends with, which scripts look for."""
