"""The mark in a dataset's folder that it is being written: what is written, and which shards are whole already.

    .nv-meta/.writing/plan.json                what must be the same for a write to go on
    .nv-meta/.writing/part-00000-of-00001.open the records of shards that are in place, a `ScanLog`, while one writes
    .nv-meta/.writing/part-00000-of-00001.log  the same, when that writer has come to its end

The folder is there from the first moment to the last. Each of several writers has a log of its own, so that they need
not know of each other. `prepare_dataset` takes the records over instead of scanning these shards, refuses while a part
is open or missing, and removes the folder when all is in place.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from energon_grain.errors import ConfigError, RefusedError
from energon_grain.formats.columnar import ColumnarIndex
from energon_grain.formats.commit_journal import PREPARE_FOLDER
from energon_grain.formats.nv_meta import META_FOLDER, dataset_kind
from energon_grain.forms import Form
from energon_grain.prepare.placing import preparation_lock
from energon_grain.prepare.scan import ScanLog
from energon_grain.storage.atomic import atomic_write_bytes, remove_temporaries

WRITING_FOLDER = f"{META_FOLDER}/.writing"
REQUEST = f"{PREPARE_FOLDER}/request"
"""What a `prepare` was asked for that is not at its end."""
OF_A_WRITER = "of a writer"
"""Stands in it where shards were written into the folder."""
WRITTEN_FOLDER = f"{META_FOLDER}/.written"
"""What the `.prepare` of such a one becomes at its end, at once, before it is removed."""
_PLAN_JSON = "plan.json"
_PLAN: Form[dict[str, Any]] = Form(dict[str, Any])
_LOG = re.compile(r"part-(\d+)-of-(\d+)\.(open|log)")


def read_plan(root: Path) -> dict[str, Any] | None:
    """What an unfinished write into a folder is of; None: there is none, or it was killed right at its beginning.

    Raises:
        ConfigError: The file is damaged.
    """
    path = root / WRITING_FOLDER / _PLAN_JSON
    try:
        return _PLAN.from_json(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{path}: is no plan of a write ({error}); remove {root}, or this file") from error


def begin_writing(root: Path, plan: Mapping[str, Any], *, append: bool = False, any_function: bool = False) -> None:
    """Mark a folder as being written, unless it is.

    Args:
        root: New, empty, or what an unfinished write with the same plan left.
        plan: What must be the same for a write to go on; JSON-native.
        append: It is a dataset, which shards are added to.
        any_function: The `fn` of the plan may differ.

    Raises:
        RefusedError: Something else is there.
    """
    work, found = root / WRITING_FOLDER, read_plan(root)
    if found is not None:
        differs = [name for name in dict.fromkeys([*plan, *found]) if found.get(name) != plan.get(name)]
        if differs == ["fn"] and any_function:
            atomic_write_bytes(work / _PLAN_JSON, msgspec.json.encode(plan))
        elif differs:
            ways = "; resume=True keeps what the old function wrote" if differs == ["fn"] else ""
            raise RefusedError(
                f"{root}: holds an unfinished write with other settings or of other data "
                f"({', '.join(differs)} differ); finish that one, or remove what it wrote and {work}{ways}"
            )
        return
    # What was killed right at its beginning leaves an empty `.nv-meta`, or one with an empty folder.
    there = list(root.iterdir()) if root.is_dir() else []
    free = all(path == work.parent and not any(path.iterdir()) for path in there)
    free = free or _nearly_at_its_end(root)
    if (root.exists() and not root.is_dir()) or not (append or free or work.is_dir()):
        ways = "; append=True adds shards to it" if dataset_kind(root).has_shards else ""
        raise RefusedError(
            f"{root}: is not empty. A dataset is written into a new or empty folder, or goes on with an unfinished "
            f"write of the same data{ways}"
        )
    work.mkdir(parents=True, exist_ok=True)
    remove_temporaries(work, f".{_PLAN_JSON}.*.tmp")
    atomic_write_bytes(work / _PLAN_JSON, msgspec.json.encode(plan))


def _nearly_at_its_end(root: Path) -> bool:
    """Whether a write was killed when its index was in place already, and its plan gone."""
    request = root / REQUEST
    return (root / WRITTEN_FOLDER).is_dir() or (
        request.is_file() and OF_A_WRITER in request.read_text(encoding="utf-8")
    )


class PartLog:
    """The log of one of several writers, which nobody else may have meanwhile.

    Args:
        root: The dataset.
        part: Which of them, from 0.
        parts: How many there are.
        index: See `ScanLog`.

    Attributes:
        log: The records of its shards.

    Raises:
        RefusedError: Another process writes this part right now.
    """

    def __init__(self, root: Path, part: int, parts: int, index: ColumnarIndex | None = None) -> None:
        self._open = root / WRITING_FOLDER / f"part-{part:05d}-of-{parts:05d}.open"
        if self.closed.exists():
            self.closed.rename(self._open)
        self._open.touch()
        self._stack = contextlib.ExitStack()
        self._stack.enter_context(preparation_lock(self._open, doing="writing"))
        self.log = self._stack.enter_context(contextlib.closing(ScanLog(self._open, index)))

    @property
    def closed(self) -> Path:
        """What it is called when its writer has come to its end."""
        return self._open.with_suffix(".log")

    def __enter__(self) -> PartLog:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(done=kind is None)

    def close(self, *, done: bool) -> None:
        """Release it; `done` says that this part is whole."""
        if done:
            self._open.rename(self.closed)
        self._stack.close()


def has_part(root: Path, part: int, parts: int) -> bool:
    """Whether one of several writers wrote into a folder before."""
    name = f"part-{part:05d}-of-{parts:05d}"
    return any((root / WRITING_FOLDER / f"{name}.{ending}").exists() for ending in ("open", "log"))


def check_written(root: Path) -> None:
    """Raise RefusedError where what is written into a folder is not whole."""
    work = root / WRITING_FOLDER
    found = {(int(match[1]), int(match[2])): match[3] for _, match in _logs(work)}
    missing = sorted({part for _, parts in found for part in range(parts)} - {part for part, _ in found})
    unfinished = sorted(part for (part, _), ending in found.items() if ending == "open")
    if (work / _PLAN_JSON).exists() and not found:
        unfinished = [0]
    if missing or unfinished:
        said = f"parts {', '.join(map(str, missing))} of it were never begun" if missing else "interrupted, or going on"
        raise RefusedError(
            f"{root}: a write into this folder is not finished ({said}): run its program or command again, which goes "
            f"on where it was; or remove {work} to prepare the whole shards that are there"
        )


def take_over(root: Path, log: ScanLog) -> None:
    """Take over what writers know of the shards that they wrote."""
    for path, _ in _logs(root / WRITING_FOLDER):
        with contextlib.closing(ScanLog(path)) as written:
            for record in written.records():
                log.add(record)


def end_writing(root: Path) -> None:
    """Forget at once that a folder was being written; what is left of that goes with what a `prepare` leaves."""
    work, left = root / WRITING_FOLDER, root / PREPARE_FOLDER / "written"
    if work.is_dir():
        left.parent.mkdir(exist_ok=True)
        shutil.rmtree(left, ignore_errors=True)
        work.rename(left)


def _logs(work: Path) -> Iterator[tuple[Path, re.Match[str]]]:
    for path in sorted(work.glob("part-*")):
        if match := _LOG.fullmatch(path.name):
            yield path, match
