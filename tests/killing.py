"""Commands that are killed at one of their changes to files, and the same command after that.

As a program, `killing.py FOLDER [SCENARIO=STEP …]` runs a command in one process after the other and kills each at a
change to files (opening for writing, renaming, removing, making folders, …), drawn at random so that about every so
many such changes come, until one comes through. Behind each the same command runs again. What goes wrong is
printed: another status than 0, other files than those of a run that nobody disturbed. Without scenarios all run, and
kill at every change, which takes minutes.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import random
import shutil
import signal
import sqlite3
import sys
import tarfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metadatasets import write_v2

from energon_grain import DatasetWriter, write_dataset
from energon_grain.cli import main
from energon_grain.testing import make_captioning_dataset, make_text_dataset, write_tars

_CHANGES = {
    f"os.{name}" for name in ("rename", "remove", "mkdir", "rmdir", "link", "symlink", "truncate", "chmod", "utime")
}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A command that may be killed.

    Attributes:
        make: Makes the data below a folder.
        arguments: Of `energon-grain`; what begins with `:` lies below that folder. Or what is called with the folder.
        data: What is read between a kill and the second run, if that changes nothing for the command.
        then: What runs behind the second run, if not all that the command leaves is swept by itself.
    """

    make: Callable[[Path], object]
    arguments: tuple[str, ...] | Callable[[Path], object]
    data: str | None = None
    then: tuple[str, ...] = ()


def _texts(root: Path, *, prepared: bool = False) -> Path:
    return make_text_dataset(root / "texts", n=6, shards=2, prepared=prepared)


def _duplicates(root: Path) -> None:
    for name in "abc":
        write_tars(root / "texts", [{"__key__": f"{i}", "txt": f"{name}{i}"} for i in range(2)], name=f"{name}.tar")


def _pictures(root: Path) -> None:
    make_captioning_dataset(root / "pictures", n=6, shards=2)
    files = root / "files"
    files.mkdir()
    for tar in (root / "pictures").glob("*.tar"):
        with tarfile.open(tar) as archive:
            archive.extractall(files, filter="data")


def _unindexed(root: Path) -> None:
    shutil.rmtree(_texts(root, prepared=True) / ".nv-meta/columnar")


def _joined(root: Path) -> None:
    for name in ("texts", "other"):
        make_text_dataset(root / name, n=6, shards=2)
    write_v2(root, train={"join": [{"path": "texts"}, {"path": "other"}]})


def _lines(root: Path) -> None:
    (root / "x.jsonl").write_text("".join(f'{{"text": "{i}"}}\n' for i in range(6)))


def _text(number: int) -> dict[str, str]:
    return {"__key__": f"{number:03d}", "txt": f"text {number}"}


def _finished(dataset: Path) -> bool:
    """Whether whoever wrote it has nothing to go on with."""
    meta = dataset / ".nv-meta"
    return (meta / ".info.json").exists() and not any(
        (meta / name).exists() for name in (".writing", ".prepare", ".written")
    )


def _write(root: Path) -> None:
    if not _finished(root / "new"):
        with DatasetWriter(root / "new", shard_samples=2, resume=True) as write:
            for number in range(write.samples_done, 5):
                write(_text(number))


def _append(root: Path) -> None:
    done = (root / "texts/.nv-meta/split-first-2-shards.yaml").exists()
    if not done or (root / "texts/.nv-meta/.writing").exists():
        with DatasetWriter(root / "texts", shard_samples=2, append=True, resume=True) as write:
            for number in range(write.samples_done, 5):
                write(_text(100 + number))
    else:  # killed when all was done: the next `prepare` would remove what is left of that
        for name in (".prepare", ".written"):
            shutil.rmtree(root / "texts/.nv-meta" / name, ignore_errors=True)


def _write_items(root: Path) -> None:
    if not _finished(root / "new"):
        write_dataset(range(5), _text, root / "new", shard_items=2, num_workers=0)


def _another_shard(root: Path) -> None:
    write_tars(_texts(root, prepared=True), [_text(7)], name="x.tar")


_WHICH = ("--step=0", "--batch-size=6", "--validation", "--split-part=train", "--json")
_PREPARE = ("--non-interactive", "--split-ratio=1", "--num-workers=0", "--no-progress")
SCENARIOS = {
    "prepare": Scenario(make=_texts, arguments=("prepare", ":texts", *_PREPARE, "--crude"), data="texts"),
    "prepare again": Scenario(
        make=lambda root: _texts(root, prepared=True),
        arguments=("prepare", ":texts", *_PREPARE, "--force-overwrite", "--no-sqlite", "--skip-dataset-yaml"),
        data="texts",
    ),
    "fix duplicates": Scenario(  # not read meanwhile: tars that nobody prepared yet are what they are by then
        make=_duplicates, arguments=("prepare", ":texts", *_PREPARE, "--crude", "--fix-duplicates")
    ),
    "media": Scenario(
        make=_pictures,
        arguments=("prepare-media", ":pictures", "--media-metadata-by-header", "--num-workers=0"),
        data="pictures",
    ),
    "media of files": Scenario(
        make=_pictures, arguments=("prepare-media", ":files", "--media-metadata-by-extension", "--num-workers=0")
    ),
    "join": Scenario(make=_joined, arguments=("prepare", ":meta.yaml"), data="meta.yaml"),
    "lines": Scenario(make=_lines, arguments=("prepare", ":x.jsonl"), data="x.jsonl"),
    "measure": Scenario(
        make=lambda root: _texts(root, prepared=True),
        arguments=("measure", ":texts", "--column=parts=builtins:len", "--column=n=builtins:len", "--num-workers=0"),
        data="texts",
    ),
    "measure lines": Scenario(
        make=_lines, arguments=("measure", ":x.jsonl", "--column=parts=builtins:len", "--num-workers=0"), data="x.jsonl"
    ),
    "convert": Scenario(
        make=lambda root: _texts(root, prepared=True), arguments=("convert", ":texts", ":records", "--num-workers=0")
    ),
    "convert lines": Scenario(
        make=_lines, arguments=("convert", ":x.jsonl", ":new", "--shard-samples=2", "--num-workers=0")
    ),
    "write": Scenario(make=lambda root: (root / "beside").mkdir(), arguments=_write),
    "write items": Scenario(make=lambda root: (root / "beside").mkdir(), arguments=_write_items),
    "append": Scenario(make=lambda root: _texts(root, prepared=True), arguments=_append),
    "prepare more": Scenario(make=_another_shard, arguments=("prepare", ":texts", "--append", "--num-workers=0")),
    "first use": Scenario(make=_unindexed, arguments=("which", ":texts", *_WHICH)),
    "first use of bare tars": Scenario(make=_texts, arguments=("which", ":texts", *_WHICH)),
    "first use of a join": Scenario(
        make=_joined, arguments=("which", ":meta.yaml", *_WHICH), then=("prepare", ":meta.yaml")
    ),
    "first use of lines": Scenario(make=_lines, arguments=("which", ":x.jsonl", *_WHICH)),
}


def _kill_at(number: int, root: Path) -> None:
    """Kill this process right before its change to files below `root` with this number, counted from 1."""
    left = number

    def look(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal left
        if event == "open":
            changes = arguments[2] & _WRITING and str(arguments[0]).startswith(str(root))
        else:  # trees are removed by names relative to open folders
            changes = event in _CHANGES and (str(arguments[0]).startswith(str(root)) or arguments[-1] not in (-1, None))
        if changes:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(look)


def _call(root: Path, arguments: tuple[str, ...] | Callable[[Path], object]) -> int:
    if callable(arguments):
        arguments(root)
        return 0
    sys.argv = ["energon-grain", *(f"{root}/{each[1:]}" if each[0] == ":" else each for each in arguments)]
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def _run(
    root: Path, arguments: tuple[str, ...] | Callable[[Path], object], *, kill_at: int | None = None
) -> tuple[int, str]:
    """Run `energon-grain` in a process of its own; give its status (negative: a signal) and what it printed."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 99
        with contextlib.suppress(BaseException):
            sys.stdout = sys.stderr = io.TextIOWrapper(io.FileIO(writer, "w"), write_through=True)
            if kill_at is not None:
                _kill_at(kill_at, root)
            try:
                status = _call(root, arguments)
            except BaseException:
                traceback.print_exc()
        os._exit(status)
    os.close(writer)
    with open(reader, encoding="utf-8", errors="replace") as file:
        told = file.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), told


def _files(root: Path) -> dict[str, bytes]:
    """All files and folders below a folder, without what is random: ids, times, and names of columns."""
    paths = root.rglob("*")
    found = {path.relative_to(root).as_posix(): path.read_bytes() if path.is_file() else b"" for path in paths}
    for name in [name for name in found if name.endswith("/state.json")]:  # of bare tars
        folder = json.loads(found[name])["folder"]
        found = {key.replace(folder, "current"): value for key, value in found.items()}
        found[name] = found[name].replace(folder.encode(), b"current")
    for name, content in list(found.items()):
        if name.endswith("columnar/header.json"):
            generation = json.loads(content)["generation"]
            found = {key.replace(generation, "generation"): value for key, value in found.items()}
            found[name] = content.replace(generation.encode(), b"generation")
            found[name] = b"" if b"info_stamp" in content else found[name]
        if name.endswith("/columns.json"):
            columns = json.loads(content)["columns"]
            for column, stored in columns.items():
                found = {key.replace(stored["file"], f"{column}.npy"): value for key, value in found.items()}
                stored["file"] = ""
            found[name] = json.dumps(columns).encode()
        if name.endswith("index.sqlite") and b"media_filters" in content:
            with contextlib.closing(sqlite3.connect(root / name)) as database:
                database.execute("UPDATE media_filters SET created_at_utc = NULL")
                found[name] = "\n".join(database.iterdump()).encode()
    return {name: b"" if name.endswith("index.uuid") else content for name, content in found.items()}


def faults(scenario: Scenario, folder: Path, step: int = 1) -> Iterator[str]:
    """Say what goes wrong, by the number of the change; last, how many changes there are, and kills there were.

    Args:
        scenario: Which.
        folder: Where to work.
        step: From one change at which a process is killed to the next, on average.
    """
    made = folder / "made"
    made.mkdir()
    scenario.make(made)
    root = folder / "data"

    def run(*, kill_at: int | None = None) -> tuple[int, str]:
        status, told = _run(root, scenario.arguments, kill_at=kill_at)
        return _run(root, scenario.then) if scenario.then and status == 0 and kill_at is None else (status, told)

    def look() -> str:
        return _run(root, ("which", f":{scenario.data}", *_WHICH))[1] if scenario.data else ""

    def begin() -> None:
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(made, root)

    begin()
    before = look()
    begin()
    with contextlib.redirect_stdout(io.StringIO()):  # here, so that processes have their modules when they begin
        assert _call(root, scenario.arguments) == 0
        assert not scenario.data or _call(root, ("which", f":{scenario.data}", *_WHICH)) == 0
    begin()
    status, told = run()
    assert status == 0, told
    after, expected = look(), _files(root)
    number = 0
    for kills in itertools.count():
        number += random.randint(1, 2 * step - 1)
        begin()
        status, told = run(kill_at=number)
        if status == 0:
            yield f"kills: {kills}, of less than {number} changes"
            return
        if status != -signal.SIGKILL:
            yield f"{number}: ended with {status}: {told}"
        if number % 2 and look() not in (before, after):
            yield f"{number}: read {look()}"
        if number % 3 == 0:
            run(kill_at=number // 2 + 1)
        status, told = run()
        if status != 0:
            yield f"{number}: the same command ended with {status}: {told}"
        found = _files(root)
        if found != expected:
            odd = [name for name in sorted({*found, *expected}) if found.get(name) != expected.get(name)]
            yield f"{number}: {odd} differ"


def run_scenarios(root: Path, chosen: list[str]) -> None:
    """Run those that the arguments name."""
    for each in chosen or [f"{name}=1" for name in SCENARIOS]:
        name, _, step = each.partition("=")
        folder = root / name
        folder.mkdir()
        for fault in faults(SCENARIOS[name], folder, int(step)):
            print(f"{name}: {fault}", flush=True)


if __name__ == "__main__":
    run_scenarios(Path(sys.argv[1]), sys.argv[2:])
