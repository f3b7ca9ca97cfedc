# SPDX-License-Identifier: Apache-2.0
"""Commits all outputs of one `prepare` together: staged files, one journal, and renames that can be repeated.

A folder has no atomic rename of many files, so the commit works like a database's redo log:

1. every output is written, and flushed, under `.nv-meta/.prepare/staged-<random>/`, at its later path relative to the
   dataset;
2. `.nv-meta/.prepare/commit.json` is created by one rename. **This is the commit point**: the old state is valid before
   it, the new state after it;
3. the renames that it lists are done in order, the paths it lists as obsolete are removed, and the journal is removed
   last.

A process killed during step 3 leaves a journal. The next process (another `prepare`, or a reader that opens the
dataset) calls `finish_interrupted_prepare`, which repeats step 3: a missing staged file has already been moved.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec

from energon_grain.atomic_files import atomic_write_bytes, sync_folder
from energon_grain.errors import IndexFileError, StaleIndexError
from energon_grain.forms import Form

META_FOLDER = ".nv-meta"
PREPARE_FOLDER = f"{META_FOLDER}/.prepare"
JOURNAL = f"{PREPARE_FOLDER}/commit.json"
_VERSION = 1


class _Journal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    version: int
    staged: str
    put: tuple[str, ...]
    remove: tuple[str, ...]


_JOURNAL = Form(_Journal)


def new_staging_folder(root: Path) -> Path:
    """Create an empty folder that mirrors `root`: the later file `root / p` must be written at `staging / p`."""
    staging = root / PREPARE_FOLDER / f"staged-{secrets.token_hex(6)}"
    staging.mkdir(parents=True)
    return staging


def commit_staged(root: Path, staging: Path, *, put: Sequence[str], remove: Sequence[str] = ()) -> None:
    """Move `put` from the staging folder into the dataset and remove `remove`, all or nothing.

    Args:
        staging: A folder from `new_staging_folder`, which is removed.
        put: Paths relative to `root`, of files or whole folders, in the order in which to move them. Each is in
            `.nv-meta` or is a `.tar.idx`. The caller has flushed their bytes to disk.
        remove: Obsolete paths relative to `root`, inside `.nv-meta`. Missing ones are ignored.
    """
    journal = _Journal(version=_VERSION, staged=staging.name, put=tuple(put), remove=tuple(remove))
    _check_journal(root, journal)
    atomic_write_bytes(root / JOURNAL, msgspec.json.format(msgspec.json.encode(journal), indent=1))
    finish_interrupted_prepare(root)


def finish_interrupted_prepare(root: Path) -> bool:
    """Complete an interrupted commit, so that the dataset is in its new state. Returns whether there was one.

    Costs one `stat` if nothing was interrupted. Safe in several processes at once. Raises StaleIndexError and
    IndexFileError.
    """
    if not os.path.exists(os.path.join(root, JOURNAL)):
        return False
    journal_path = root / JOURNAL
    try:
        content = journal_path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return False
    journal = _read_journal(root, content)
    staging = root / PREPARE_FOLDER / journal.staged
    try:
        _roll_forward(root, staging, journal.put, journal.remove)
        journal_path.unlink(missing_ok=True)
        sync_folder(journal_path.parent)
    except PermissionError as error:
        raise _not_writable(root) from error
    except OSError as error:
        if error.errno == errno.EROFS:
            raise _not_writable(root) from error
        raise
    shutil.rmtree(staging, ignore_errors=True)
    return True


def _not_writable(root: Path) -> StaleIndexError:
    return StaleIndexError(
        f"{root}: a `prepare` was interrupted while it moved its files into place, and this process has no write "
        f"permission to complete it. Run `energon-grain info {root}` once as a user with write permission."
    )


def _read_journal(root: Path, content: bytes) -> _Journal:
    try:
        journal = _JOURNAL.from_json(content)
    except msgspec.MsgspecError as error:
        raise IndexFileError(
            f"{root / JOURNAL}: not a commit journal of this version ({error}). Delete {root / PREPARE_FOLDER} and "
            f"prepare the dataset again: `energon-grain prepare {root} --force-overwrite`."
        ) from error
    _check_journal(root, journal)
    return journal


def _check_journal(root: Path, journal: _Journal) -> None:
    """A journal is untrusted, like the data beside it: it may only touch files that `prepare` writes."""
    if journal.version != _VERSION:
        raise IndexFileError(
            f"{root / JOURNAL}: has version {journal.version}, but this release reads {_VERSION}; install a newer one."
        )
    foreign = [path for path in journal.put if not (_in_meta_folder(path) or _is_tar_index(path))]
    foreign += [path for path in journal.remove if not _in_meta_folder(path)]
    if not journal.staged.startswith("staged-") or "/" in journal.staged:
        foreign.append(journal.staged)
    if foreign:
        raise IndexFileError(
            f"{root / JOURNAL}: lists {foreign[0]!r}, which `prepare` does not own. Delete the journal and prepare "
            f"again: `energon-grain prepare {root} --force-overwrite`."
        )


def _in_meta_folder(path: str) -> bool:
    parts = path.split("/")
    return len(parts) > 1 and parts[0] == META_FOLDER and not {"", ".", "..", ".prepare"} & set(parts)


def _is_tar_index(path: str) -> bool:
    return path.endswith(".tar.idx") and not {"", ".", ".."} & set(path.split("/"))


def _roll_forward(root: Path, staging: Path, put: Sequence[str], remove: Sequence[str]) -> None:
    touched: set[Path] = set()
    for path in put:
        source, target = staging / path, root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            _move(source, target)
        except FileNotFoundError as error:
            if not target.exists():
                raise IndexFileError(
                    f"{target}: an interrupted `prepare` did not write it, and its staged copy is missing. "
                    f"Prepare again: `energon-grain prepare {root} --force-overwrite`."
                ) from error
        touched.add(target.parent)
    for path in remove:
        target = root / path
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target, ignore_errors=True)
        else:
            target.unlink(missing_ok=True)
        touched.add(target.parent)
    for folder in touched:
        if folder.is_dir():
            sync_folder(folder)


def _move(source: Path, target: Path) -> None:
    """Rename. If a shard folder is a mount or link to another file system: copy, rename there and remove."""
    try:
        os.replace(source, target)
    except OSError as error:
        if error.errno == errno.EXDEV:
            atomic_write_bytes(target, source.read_bytes())
            source.unlink(missing_ok=True)
        elif error.errno in (errno.ENOTEMPTY, errno.EEXIST) and target.is_dir():
            shutil.rmtree(source, ignore_errors=True)  # another process moved the same folder first
        else:
            raise
