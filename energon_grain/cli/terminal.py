# SPDX-License-Identifier: Apache-2.0
"""Parts that all commands share: answers as text or JSON, `-q` and `-v`, numbers, progress bars, own modules.

A command returns an `Answer` and does not print it. `answering` adds `--json`, `--quiet` and `--verbose` to its options
and prints the answer. With `--json`, all other output to stdout (questions, output of the user's modules) goes to
stderr: stdout holds exactly one JSON document.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import logging
import math
import os
import re
import sys
import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from energon_grain.errors import ConfigError
from energon_grain.words import visible

if TYPE_CHECKING:
    from rich.progress import Progress

    from energon_grain.conversion import ConversionReport
    from energon_grain.prepare.preparation import PrepareReport


DataPath = Annotated[
    str, typer.Argument(help="Folder or URL of a dataset or array, a JSONL file, or a metadataset (.yaml).")
]
SplitConfig = Annotated[str | None, typer.Option(help="Name of the split file in .nv-meta. Default: split.yaml.")]
DatasetConfig = Annotated[
    str | None, typer.Option(help="Name of the dataset's YAML file in .nv-meta. Default: dataset.yaml.")
]
RatioOption = Annotated[
    str | None, typer.Option(help="How to split tars that are not prepared, as 8,1,1 or train:0.9,val:0.1.")
]
TrustModule = Annotated[
    list[str] | None, typer.Option(help="Module whose sample types and functions may be imported. Repeatable.")
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """The result of a command.

    Attributes:
        document: The value that `--json` prints: dataclasses, structs and containers of these.
        lines: The text.
        failed: Whether the command ends with exit code 1 after printing the answer.
        is_report: Whether the text only reports a success, which `--quiet` leaves out.
    """

    document: Any
    lines: Iterable[str]
    failed: bool = False
    is_report: bool = False


_SHARED: dict[str, Any] = {
    "as_json": (
        Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout, everything else on stderr.")],
        False,
    ),
    "quiet": (
        Annotated[
            bool, typer.Option("-q", "--quiet", help="Leave out progress, reports of success, notes and warnings.")
        ],
        False,
    ),
    "verbose": (
        Annotated[int, typer.Option("-v", "--verbose", count=True, show_default=False, help="Log more; -vv: debug.")],
        0,
    ),
}
"""Annotation and default of the options that every command has."""


def answering(command: Callable[..., Answer]) -> Callable[..., None]:
    """Turn a function that returns an answer into a command that prints it.

    The command gets the options `--json`, `--quiet` and `--verbose`. The lines of the section `Examples:` of the
    docstring are its attribute `examples`; the rest of the docstring is its help.
    """

    @functools.wraps(command)
    def run(*, as_json: bool, quiet: bool, verbose: int, **given: Any) -> None:
        with _logging(quiet, verbose):
            with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
                answer = command(**given)
            # Lines may be computed as they are printed, with output of their own.
            lines = [] if quiet and answer.is_report else map(_shown, answer.lines)
            for line in [_json(answer.document)] if as_json else lines:
                typer.echo(line)
        if answer.failed:
            raise typer.Exit(1)

    signature = inspect.signature(command, eval_str=True)
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, (annotation, default) in _SHARED.items()
    ]
    vars(run)["__signature__"] = signature.replace(parameters=[*signature.parameters.values(), *shared])
    run.__annotations__ = {
        **get_type_hints(command, include_extras=True),
        **{name: annotation for name, (annotation, _) in _SHARED.items()},
    }
    text, _, examples = (inspect.getdoc(command) or "").partition("\n\nExamples:\n")
    vars(run)["examples"] = tuple(line.strip() for line in examples.splitlines())
    run.__doc__ = "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
    return run


_quiet = False
"""Whether the command that runs has `--quiet`, so that no progress bar appears."""


def announce(line: str) -> None:
    """Print a line about the progress of a command, except with `--quiet`."""
    if not _quiet:
        typer.echo(line)


@contextlib.contextmanager
def _logging(quiet: bool, verbose: int) -> Generator[None]:
    """Log errors only with `quiet`, information with `verbose=1`, debug messages with 2; without both, warnings."""
    global _quiet
    if quiet and verbose:
        raise ConfigError("--quiet and --verbose contradict each other: give one of them")
    logger = logging.getLogger("energon_grain")
    before = logger.level, logger.propagate, _quiet
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s" if verbose else None))
    try:
        _quiet = quiet
        if quiet:
            handler.setLevel(logging.ERROR)  # of the handler alone: `lint` collects the warnings of the logger
        if verbose:
            logger.setLevel(logging.INFO if verbose == 1 else logging.DEBUG)
        if quiet or verbose:
            logger.addHandler(handler)
            logger.propagate = False
        yield
    finally:
        logger.removeHandler(handler)
        level, logger.propagate, _quiet = before
        logger.setLevel(level)


def _json(value: Any) -> str:
    import msgspec

    try:
        return msgspec.json.format(msgspec.json.encode(value, enc_hook=str), indent=2).decode()
    except UnicodeEncodeError:  # file names need not be UTF-8, and JSON data may hold lone surrogates
        return json.dumps(msgspec.to_builtins(value, enc_hook=str), indent=2)


_OURS = re.compile(r"((?:\x1b\[[0-9;]*m|[\n\t])+)")


def _shown(line: str) -> str:
    """A line in which only colours and line ends act on a terminal, whatever the data contain."""
    return "".join(piece if number % 2 else visible(piece) for number, piece in enumerate(_OURS.split(line)))


def with_samples(report: PrepareReport | ConversionReport) -> dict[str, Any]:
    """A report for `--json`, with the total number of samples."""
    import msgspec

    return {"samples": report.samples, **msgspec.to_builtins(report, enc_hook=str)}


def note(text: str, *, kind: str = "note") -> str:
    """A line that is not an error, in yellow on terminals."""
    return typer.style(f"{kind}: {text}", fg=typer.colors.YELLOW)


def significant(value: float, digits: int = 3) -> str:
    """Write a number with n significant digits, or all digits before the decimal point, without an exponent.

    >>> significant(12345.6), significant(9.96, 2), significant(0.0312, 2)
    ('12,346', '10', '0.031')
    """
    rounded = float(f"{value:.{digits - 1}e}")
    decimals = digits - 1 - math.floor(math.log10(abs(rounded))) if rounded else 0
    return f"{value:,.{max(0, decimals)}f}"


class ProgressBar(contextlib.AbstractContextManager["ProgressBar"]):
    """A progress bar with the remaining time on stderr. Shows nothing if stderr is not a terminal or with `--quiet`."""

    def __init__(self, label: str, *, shown: bool = True) -> None:
        self._label = label
        self._wanted = shown and not _quiet and sys.stderr.isatty()
        self._progress: Progress | None = None
        self._started_s = time.monotonic()

    def advance_to(self, done: float, total: float, detail: str, label: str | None = None) -> None:
        """Show that `done` of `total` units (bytes, samples, …) are done.

        The first call starts the bar: it draws from a thread, and `prepare` forks before that.
        """
        if not self._wanted:
            return
        if self._progress is None:
            self._progress, self._started_s = _progress(), time.monotonic()
            self._progress.add_task(self._label, detail="")
            self._progress.start()
        [task] = self._progress.task_ids
        self._progress.update(task, completed=done, total=total, detail=detail, description=label or self._label)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the bar appeared."""
        return time.monotonic() - self._started_s

    def stop(self) -> None:
        """Remove the bar, so that other output can follow."""
        self._wanted = False
        if self._progress is not None:
            self._progress.stop()

    def __exit__(self, *exception: object) -> None:
        self.stop()


def _progress() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        TaskProgressColumn(),
        TextColumn("{task.fields[detail]}"),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=Console(stderr=True), redirect_stdout=False, redirect_stderr=False)


def own_modules(named: Iterable[str] | None) -> tuple[str, ...]:
    """Return the modules that options name. From then on, imports also search the current folder, as `python -m` does.

    If no module is named, nothing changes: no file of the current folder can shadow an installed module.
    """
    modules = tuple(named or ())
    if modules and "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as a full path, which child processes inherit
    return modules


def own_sample_type(name: str | None) -> None:
    """Search the current folder, too, if a sample type is written as `package.module:Class`."""
    module, colon, _ = (name or "").partition(":")
    own_modules([module] if colon else None)
