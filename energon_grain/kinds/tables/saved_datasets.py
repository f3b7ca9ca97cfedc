# SPDX-License-Identifier: Apache-2.0
"""Folders written by `save_to_disk` of Hugging Face's `datasets`: selects the Arrow files of the dataset.

A dataset's `state.json` lists its files, in order; other files are outdated, or caches. A `DatasetDict` has a
`dataset_dict.json`, and a folder for each split.
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
    """Raise ConfigError for a folder with the splits of a `DatasetDict`, each of which is a dataset."""
    if not read_beginning(path := join(folder, _SPLITS_JSON), 1):
        return
    try:
        found = _SPLITS.from_json(read_whole(path)).splits
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise FormatError(
            f"{path}: {error}; this list of the splits of a `DatasetDict` is damaged; save it again"
        ) from error
    ways = " or ".join(join(folder, split) for split in found or ["train"])
    raise ConfigError(
        f"{folder}: contains the splits of a Hugging Face `DatasetDict`, each in its own folder; pass one of them: "
        f"{ways}"
    )


def files_of_saved(root: str, names: Sequence[str], states: Iterable[str], exists: Callable[[str], bool]) -> list[str]:
    """Names of the files below a folder; for folders written by `save_to_disk`, only the files listed there.

    Args:
        names: All existing files, sorted.
        states: The existing `state.json` files.
        exists: Whether a file exists.

    Raises:
        FormatError: A `state.json` is damaged, or lists files outside its folder.
        DatasetNotFoundError: A listed file is missing.
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
                    f"{join(root, name)}: no such file, but {join(root, folder + STATE_JSON)} lists it; restore the "
                    "file, or save the dataset again"
                )
    others = [(name, 0, name) for name in names if not name.startswith(tuple(saved))]
    named = [(min(each), number, name) for each in saved.values() for number, name in enumerate(each)]
    return [name for *_, name in sorted(others + named)]


def _named(root: str, state: str) -> list[str] | None:
    """The files that a `state.json` lists; None if it belongs to another format."""
    path = join(root, state)
    try:
        files = _STATE.from_json(read_whole(path)).files
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise FormatError(
            f"{path}: {error}; the list of files of a dataset written by `save_to_disk` is damaged; save the dataset "
            "again, or select its files by a pattern"
        ) from error
    return None if files is None else [each.filename for each in files]
