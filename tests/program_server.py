"""Runs programs, each in a fork of one process that has imported already what takes seconds to import.

    python program_server.py NAME …

imports what the names stand for (`package.module`, or `package.module:name` where a package loads what it is asked for)
and answers each line of JSON `[program, folder, environment, arguments]` by a line `[exit code, output]`. A program
runs as `__main__` and ends as an interpreter does. Needs the standard library alone, so that any environment can run
it; `serving` is the tests' end.
"""

from __future__ import annotations

import json
import os
import pkgutil
import runpy
import signal
import subprocess
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TIME_LIMIT_S = 600  # as on a machine that is ten times slower
_ROOT = Path(__file__).parents[1]


class ProgramServer:
    """The tests' end of a process that runs programs."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(
        self, program: Path, folder: Path, *arguments: object, environment: dict[str, str] | None = None
    ) -> tuple[int, str]:
        """The status of a program that ran in a folder (negative: a signal), and what it printed."""
        assert self._process.stdin
        assert self._process.stdout
        request = [str(program), str(folder), environment or {}, [*map(str, arguments)]]
        print(json.dumps(request), file=self._process.stdin, flush=True)
        status, output = json.loads(self._process.stdout.readline())
        return status, output


@contextmanager
def serving(
    *names: str, python: str = sys.executable, start: tuple[str, ...] = (), environment: dict[str, str] | None = None
) -> Iterator[ProgramServer]:
    """A process that has imported some names.

    Args:
        names: As on the command line.
        python: Interpreter.
        start: Further arguments of it.
        environment: Variables of the process and of all programs.
    """
    paths = os.pathsep.join([str(_ROOT), str(_ROOT / "adapters"), str(_ROOT / "tests")])
    own = {**os.environ, "PYTHONPATH": paths, **(environment or {})}
    command = [python, *start, __file__, *names]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=own) as process:
        yield ProgramServer(process)
        assert process.stdin
        process.stdin.close()


def _run_program(program: str, folder: str, environment: dict[str, str], arguments: list[str]) -> None:
    """Run a program in this process; what it prints goes to a file in the folder above its own."""
    signal.alarm(TIME_LIMIT_S)
    with open(os.devnull) as nothing, open(_output(folder), "w") as output:
        for stream, file in enumerate((nothing, output, output)):
            os.dup2(file.fileno(), stream)
    os.chdir(folder)
    os.environ.update(environment)
    sys.argv = [program, *arguments]
    sys.path[0] = str(Path(program).parent)
    runpy.run_path(program, run_name="__main__")


def _output(folder: str) -> Path:
    return Path(f"{folder}.output")


def _take_plain_paths(energon: types.ModuleType) -> None:
    """Let Energon's `prepare_metadataset` take a path of any type, as ours does."""
    prepare, path_type = energon.prepare_metadataset, pkgutil.resolve_name("megatron.energon.epathlib:EPath")
    energon.prepare_metadataset = lambda path: prepare(path_type(str(path)))  # type: ignore[attr-defined]


def main(names: list[str]) -> None:
    for name in names:
        imported = pkgutil.resolve_name(name)
        if name == "megatron.energon":
            _take_plain_paths(imported)
    for line in sys.stdin:
        program, folder, environment, arguments = json.loads(line)
        child = os.fork()
        if child == 0:
            return _run_program(program, folder, environment, arguments)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(json.dumps([status, _output(folder).read_text(errors="replace")]), flush=True)
    return None


if __name__ == "__main__":
    main(sys.argv[1:])
