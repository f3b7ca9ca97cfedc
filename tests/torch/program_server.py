"""Runs programs, each in a fork of a process that has the library imported already.

    python program_server.py LIBRARY

takes lines of JSON `[program, folder]` and answers each by a line `[exit code, output]`. Programs are written for
`energon_grain_torch`; for another LIBRARY that name is replaced. Needs the standard library alone, so that any
environment can run it.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import runpy
import sys
from pathlib import Path
from types import ModuleType

TIME_LIMIT_S = 600  # as on a machine that is ten times slower


def run_program(program: Path, library: str, folder: Path) -> None:
    """Run a program as `__main__` in a folder; what it prints goes to a file there."""
    os.chdir(folder)
    sys.path[0] = str(folder)
    output = os.open("output.txt", os.O_WRONLY | os.O_CREAT)
    for stream in (1, 2):
        os.dup2(output, stream)
    for file in (program, *program.parent.glob("_*.py")):
        (folder / file.name).write_text(file.read_text().replace("energon_grain_torch", library))
    runpy.run_path(str(folder / program.name), run_name="__main__")


def take_plain_paths(energon: ModuleType) -> None:
    """Let Energon's `prepare_metadataset` take a path of any type, as ours does."""
    prepare, EPath = energon.prepare_metadataset, importlib.import_module("megatron.energon.epathlib").EPath
    energon.prepare_metadataset = lambda path: prepare(EPath(str(path)))  # type: ignore[attr-defined]


def main(library: str) -> None:
    imported = importlib.import_module(library)
    if library == "megatron.energon":
        take_plain_paths(imported)
    for line in sys.stdin:
        program, folder = map(Path, json.loads(line))
        process = multiprocessing.get_context("fork").Process(target=run_program, args=(program, library, folder))
        process.start()
        process.join(TIME_LIMIT_S)
        if process.is_alive():
            process.kill()
            process.join()
        output = folder / "output.txt"
        print(json.dumps([process.exitcode, output.read_text() if output.exists() else ""]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
