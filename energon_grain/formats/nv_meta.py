# SPDX-License-Identifier: Apache-2.0
"""The `.nv-meta` folder of a prepared dataset: `.info.json`, `index.uuid`, and advice for other paths."""

from __future__ import annotations

import json
import os
import shlex
import uuid
from collections.abc import Iterable
from itertools import islice
from os.path import isfile
from pathlib import Path
from typing import Any

import msgspec
import yaml

from energon_grain.atomic_files import atomic_write_text
from energon_grain.errors import ConfigError, DatasetNotFoundError, IndexFileError, ReadError
from energon_grain.formats.yaml_dialect import parse_yaml
from energon_grain.forms import Form
from energon_grain.sources.kinds import hint_at
from energon_grain.storage.location import METADATASET_ENDINGS, first_leading_out, is_url, name_of, no_such_path
from energon_grain.storage.remote import has_lists, read_beginning, shared_client
from energon_grain.storage.settings import storage_settings

_LONGEST_LIST_SECONDS = 10.0


def not_prepared(location: str) -> str:
    """Describe what is at a path or URL instead of a prepared dataset. For a store this takes a few requests.

    Raises ConfigError and ReadError.
    """
    if not is_url(location):
        return local_not_prepared(Path(location))
    names = names_below(location)
    if names is not None and not names:
        found = _file_at(location) if read_beginning(location, 1) else "there is nothing below that URL; check it"
    elif hint := hint_at(location, [name for name in names or () if "/" not in name]):
        found = hint
    elif not has_lists(location, storage_settings()):
        found = f"no {META_FOLDER}/{INFO_JSON} is served there: check the URL, or prepare the folder on its own machine"
    else:
        found = loose_files(location, names or ()) or not_indexed(location)
    return f"{location}: {found}"


def names_below(url: str) -> list[str] | None:
    """Names below a folder of a store; None if they cannot be listed, or not quickly."""
    settings = storage_settings()
    if not has_lists(url, settings):
        return None
    quick = msgspec.structs.replace(settings, attempts=1, timeout_s=min(settings.timeout_s, _LONGEST_LIST_SECONDS))
    try:
        return shared_client(quick).list(url)
    except ReadError:
        return None


META_FOLDER = ".nv-meta"
INFO_JSON = ".info.json"
INFO_YAML = ".info.yaml"
INDEX_SQLITE = "index.sqlite"
INDEX_UUID = "index.uuid"
RECORDS_JSON = "records.json"
INDEX_JSON = "index.json"
"""Lists the shards of an MDS dataset, in their folder."""
COMPATIBLE_ENERGON_VERSION = "7.4.0"
"""The `energon_version` that we write: the release whose format the files follow. Energon only displays it."""
_IS_FILE = "is a file; a WebDataset is a prepared folder with tar files: pass that folder"
_IS_METADATASET = "is a metadataset, which get_train_dataset and similar functions take; pass one of its datasets"
_LOOSE = (
    *(".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff"),
    *(".mp4", ".mkv", ".webm", ".mov", ".avi", ".m4v", ".mp3", ".wav", ".flac", ".ogg", ".m4a"),
)
"""Endings of images, videos and audio files that are often kept in folders."""
_MAX_LISTED = 10_000


class DatasetInfo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of `.info.json`.

    Attributes:
        shard_counts: Samples of each shard by its path relative to the dataset. The order matters: the position of a
            shard is its `tar_file_id` in `index.sqlite`.
        energon_version: The release that prepared the dataset; None before 7.1.
    """

    shard_counts: dict[str, int]
    energon_version: str | None = None

    def __post_init__(self) -> None:
        for shard, count in self.shard_counts.items():
            if count < 0:
                raise ValueError(f"Shard {shard!r} has {count} samples")


_INFO = Form(DatasetInfo)


def is_prepared(root: str | os.PathLike[str]) -> bool:
    """Whether a local folder is a prepared dataset, by the info file in its `.nv-meta`."""
    meta = os.path.join(root, META_FOLDER, "")
    return isfile(meta + INFO_JSON) or isfile(meta + INFO_YAML)


def holds_records(root: str | os.PathLike[str]) -> bool:
    """Whether the shards of a prepared dataset are ArrayRecord files, by the `records.json` in its `.nv-meta`."""
    return is_prepared(root) and isfile(os.path.join(root, META_FOLDER, RECORDS_JSON))


def read_info(root: str | os.PathLike[str]) -> DatasetInfo:
    """Read `.info.json`, or `.info.yaml` if only that exists (datasets prepared before Energon 7).

    Raises DatasetNotFoundError, and IndexFileError, also for shards outside the folder.
    """
    meta = Path(root) / META_FOLDER
    try:
        data = (meta / INFO_JSON).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return _read_info_yaml(Path(root))
    try:
        info = _INFO.from_json(data)
    except msgspec.MsgspecError as error:
        raise _damaged(Path(root), f"{meta / INFO_JSON}: {error}") from error
    refuse_outside(info.shard_counts, meta / INFO_JSON, root)
    return info


def refuse_outside(shards: Iterable[str], where: Path, root: str | os.PathLike[str]) -> None:
    """Refuse an index, the file `where` of the dataset at `root`, that names shards outside it: it is untrusted.

    Raises IndexFileError.
    """
    outside = first_leading_out(shards)
    if outside is None:
        return
    raise IndexFileError(
        f"{where}: names the shard {outside!r}; shards must be named by their paths inside the dataset, without `..`. "
        f"Find out who created this index before you use the data; `energon-grain prepare {root} --force-overwrite` "
        f"creates a new one from the shards in the folder"
    )


def write_info(root: str | os.PathLike[str], info: DatasetInfo) -> None:
    """Write `.info.json` atomically, and `.info.yaml` too if it exists, so that both always agree."""
    meta = Path(root) / META_FOLDER
    atomic_write_text(meta / INFO_JSON, encode_info(info))
    if (meta / INFO_YAML).exists():
        atomic_write_text(meta / INFO_YAML, yaml.safe_dump(_plain(info), sort_keys=False))


def encode_info(info: DatasetInfo) -> str:
    """Return the text of `.info.json` in Energon's form: two spaces of indentation, no trailing newline."""
    return json.dumps(_plain(info), indent=2)


def read_uuid(root: str | os.PathLike[str]) -> str | None:
    """Return the id from the last `prepare` of the dataset, or None without one."""
    try:
        return (Path(root) / META_FOLDER / INDEX_UUID).read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return None


def write_uuid(root: str | os.PathLike[str], value: str | None = None) -> str:
    """Write `index.uuid` (a new random uuid4 if `value` is None) and return it."""
    value = value or str(uuid.uuid4())
    atomic_write_text(Path(root) / META_FOLDER / INDEX_UUID, value)
    return value


def _read_info_yaml(root: Path) -> DatasetInfo:
    path = root / META_FOLDER / INFO_YAML
    try:
        info = _INFO.from_value(parse_yaml(path.read_bytes(), where=str(path), written_floats=False))
    except (FileNotFoundError, NotADirectoryError):
        raise DatasetNotFoundError(local_not_prepared(root)) from None
    except ConfigError as error:
        raise _damaged(root, str(error)) from error
    except msgspec.MsgspecError as error:
        raise _damaged(root, f"{path}: {error}") from error
    refuse_outside(info.shard_counts, path, root)
    return info


def _plain(info: DatasetInfo) -> dict[str, Any]:
    version = {} if info.energon_version is None else {"energon_version": info.energon_version}
    return {**version, "shard_counts": info.shard_counts}


def _damaged(root: Path, problem: str) -> IndexFileError:
    return IndexFileError(
        f"{problem}. It must contain `shard_counts` (samples by shard), may contain `energon_version`, and nothing "
        f"else; `energon-grain prepare {root} --force-overwrite` rewrites it"
    )


def local_not_prepared(root: Path) -> str:
    """Describe what is at a local path instead of a prepared dataset, with advice."""
    if not root.exists():
        return no_such_path(root)
    if root.is_file():
        return f"{root}: {_file_at(str(root))}"
    names = os.listdir(root) if root.is_dir() else []
    if hint := hint_at(str(root), names):
        return f"{root}: {hint}"
    if root.name == META_FOLDER:
        return f"{root}: belongs to the dataset in {root.parent}; pass that folder"
    found = None
    if not any(root.rglob("*.tar")):
        found = loose_files(str(root), (path.name for path in islice(root.rglob("*"), _MAX_LISTED)))
    return f"{root}: {found or not_indexed(root)}"


def loose_files(folder: str, names: Iterable[str]) -> str | None:
    """Advice for loose media files, with the command that makes a dataset of them; None for other files."""
    found = next((name for name in sorted(names) if name.lower().endswith(_LOOSE)), None)
    if found is None:
        return None
    here = folder.rstrip("/")
    target = f"{name_of(here) if is_url(here) else here}-tars"
    return (
        f"{os.path.basename(found)} and other files are not in shards; convert them with "
        f"`energon-grain convert {shlex.quote(here)} {shlex.quote(target)} --to tars`, and pass {target}"
    )


def _file_at(location: str) -> str:
    return hint_at(location, ()) or (_IS_METADATASET if location.endswith(METADATASET_ENDINGS) else _IS_FILE)


def not_indexed(root: str | os.PathLike[str], flags: str = "") -> str:
    """Message about a folder of unprepared shards at a path or URL; `flags` are those of the command."""
    return f"not a prepared dataset (no {META_FOLDER}/{INFO_JSON}); run `{preparing(root, flags)}`"


def preparing(root: str | os.PathLike[str], flags: str = "") -> str:
    """The command that prepares the folder at a path or URL."""
    return f"energon-grain prepare {os.fspath(root)}{flags}"
