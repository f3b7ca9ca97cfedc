# SPDX-License-Identifier: Apache-2.0
"""Folders that `save_to_disk` of Hugging Face's `datasets` wrote: which Arrow files in them are the dataset.

A dataset's `state.json` names its files, in order; others are left from before, or are caches. A `DatasetDict` has
`dataset_dict.json`, and a folder for each of its splits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Annotated

import msgspec

from energon_grain.errors import ConfigError, DatasetNotFoundError, FormatError
from energon_grain.forms import Form
from energon_grain.storage.location import join
from energon_grain.storage.remote import read_beginning, read_whole

STATE_JSON = "state.json"
_SPLITS_JSON = "dataset_dict.json"


class _DataFile(msgspec.Struct):
    filename: Annotated[str, msgspec.Meta(pattern=r"^(?!\.{1,2}(/|$))[^/\\]+(/(?!\.{1,2}(/|$))[^/\\]+)*\Z")]


class _State(msgspec.Struct):
    files: list[_DataFile] | None = msgspec.field(name="_data_files", default=None)


class _Splits(msgspec.Struct):
    splits: list[str]


_STATE, _SPLITS = Form(_State), Form(_Splits)


def refuse_splits(folder: str) -> None:
    """Raise ConfigError where a folder has the splits of a `DatasetDict`, each of which is a dataset."""
    if not read_beginning(path := join(folder, _SPLITS_JSON), 1):
        return
    try:
        found = _SPLITS.from_json(read_whole(path)).splits
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise FormatError(f"{path}: {error}; it names the splits of a `DatasetDict`, and is damaged") from error
    ways = " or ".join(join(folder, split) for split in found or ["train"])
    raise ConfigError(
        f"{folder}: holds the splits of a `DatasetDict` of Hugging Face, each in a folder of its name; give one, as "
        f"{ways}"
    )


def files_of_saved(root: str, names: Sequence[str], states: Iterable[str], exists: Callable[[str], bool]) -> list[str]:
    """Names of files below a folder, where those in folders that `save_to_disk` wrote are what these say.

    Args:
        names: All that are there, sorted.
        states: Which `state.json` are there.
        exists: Whether there is a file of a name.

    Raises:
        FormatError: A `state.json` is damaged, or names files outside of its folder.
        DatasetNotFoundError: A file that is named is missing.
    """
    saved: dict[str, list[str]] = {}
    for state in sorted(states, key=lambda name: (name.count("/"), name)):
        folder = state.removesuffix(STATE_JSON)
        if not folder.startswith(tuple(saved)) and (named := _named(root, state)) is not None:
            saved[folder] = [folder + name for name in named]
    for folder, named in saved.items():
        for name in named:
            if not exists(name):
                raise DatasetNotFoundError(
                    f"{join(root, name)}: there is no such file, which {join(root, folder + STATE_JSON)} names; put it "
                    "back, or save the dataset again"
                )
    others = [(name, 0, name) for name in names if not name.startswith(tuple(saved))]
    named = [(min(each), number, name) for each in saved.values() for number, name in enumerate(each)]
    return [name for *_, name in sorted(others + named)]


def _named(root: str, state: str) -> list[str] | None:
    """What a `state.json` names; None: it is of something else."""
    path = join(root, state)
    try:
        files = _STATE.from_json(read_whole(path)).files
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise FormatError(
            f"{path}: {error}; it names the files of a dataset that `save_to_disk` wrote, and is damaged; save that "
            "again, or name the files by a pattern"
        ) from error
    return None if files is None else [each.filename for each in files]
