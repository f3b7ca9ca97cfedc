# SPDX-License-Identifier: Apache-2.0
"""What the commands share: an answer as text or as JSON, numbers as people read them, progress, the user's own modules.

A command computes an `Answer` and prints nothing of it; `answering` adds `--json` to its options and prints the answer
either way. With `--json` whatever else is written to stdout meanwhile, by questions or by modules of the user, goes to
stderr: stdout has one JSON document and nothing more.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from energon_grain.words import visible

if TYPE_CHECKING:
    from rich.progress import Progress

    from energon_grain.conversion import ConversionReport
    from energon_grain.prepare.preparation import PrepareReport


DataPath = Annotated[
    str, typer.Argument(help="Folder or URL of a dataset or array, a JSONL file, or a metadataset (.yaml).")
]
SplitConfig = Annotated[str | None, typer.Option(help="Name of the split file in .nv-meta.")]
DatasetConfig = Annotated[
    str | None, typer.Option(help="Name of the dataset's YAML file in .nv-meta. Default: dataset.yaml.")
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What a command found.

    Attributes:
        document: What `--json` prints: dataclasses, structs and containers of these.
        lines: What people read.
        failed: Whether the command ends with status 1 all the same.
    """

    document: Any
    lines: Iterable[str]
    failed: bool = False


def answering(command: Callable[..., Answer]) -> Callable[..., None]:
    """Make a command of a function that answers: one with `--json`, which prints."""

    @functools.wraps(command)
    def run(*, as_json: bool, **given: Any) -> None:
        with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
            answer = command(**given)
        for line in [_json(answer.document)] if as_json else map(_shown, answer.lines):
            typer.echo(line)
        if answer.failed:
            raise typer.Exit(1)

    kind = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout, all else on stderr.")]
    asked = inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=kind)
    signature = inspect.signature(command, eval_str=True)
    vars(run)["__signature__"] = signature.replace(parameters=[*signature.parameters.values(), asked])
    run.__annotations__ = {**get_type_hints(command, include_extras=True), "as_json": kind}
    paragraphs = (inspect.getdoc(command) or "").split("\n\n")
    run.__doc__ = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)  # as wide as the terminal is
    return run


def _json(value: Any) -> str:
    import msgspec

    try:
        return msgspec.json.format(msgspec.json.encode(value, enc_hook=str), indent=2).decode()
    except UnicodeEncodeError:  # names of files need not be UTF-8, and JSON of the data may hold halves of letters
        return json.dumps(msgspec.to_builtins(value, enc_hook=str), indent=2)


_OURS = re.compile(r"((?:\x1b\[[0-9;]*m|[\n\t])+)")


def _shown(line: str) -> str:
    """A line in which nothing acts on a terminal but colours and ends of lines, whatever data say."""
    return "".join(piece if number % 2 else visible(piece) for number, piece in enumerate(_OURS.split(line)))


def with_samples(report: PrepareReport | ConversionReport) -> dict[str, Any]:
    """A report for `--json`, with the number of samples, which it has by shards alone."""
    import msgspec

    return {"samples": report.samples, **msgspec.to_builtins(report, enc_hook=str)}


def note(text: str, *, kind: str = "note") -> str:
    """A line that is no error, in yellow on terminals."""
    return typer.style(f"{kind}: {text}", fg=typer.colors.YELLOW)


def significant(value: float, digits: int = 3) -> str:
    """Write a number with so many digits that count, or all of them before the point, and without an exponent.

    >>> significant(12345.6), significant(9.96, 2), significant(0.0312, 2)
    ('12,346', '10', '0.031')
    """
    rounded = float(f"{value:.{digits - 1}e}")
    decimals = digits - 1 - math.floor(math.log10(abs(rounded))) if rounded else 0
    return f"{value:,.{max(0, decimals)}f}"


class ProgressBar(contextlib.AbstractContextManager["ProgressBar"]):
    """Shows how far work is, with the remaining time, on stderr; does nothing where that is no terminal."""

    def __init__(self, label: str, *, shown: bool = True) -> None:
        self._label = label
        self._wanted = shown and sys.stderr.isatty()
        self._progress: Progress | None = None
        self._started_s = time.monotonic()

    def advance_to(self, done: float, total: float, detail: str, label: str | None = None) -> None:
        """Show that `done` of `total` bytes, samples or whatever it is are done.

        The bar appears with the first call: drawing it takes a thread, and `prepare` forks before that.
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
        """Since it appeared."""
        return time.monotonic() - self._started_s

    def stop(self) -> None:
        """Leave the terminal to whoever writes next."""
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
    """The modules that options name, after which imports look in the current folder too, as with `python -m`.

    Where none is named nothing changes, so that no file of the current folder takes the place of an installed module.
    """
    modules = tuple(named or ())
    if modules and "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # its name, which processes that are started get too
    return modules


def own_sample_type(name: str | None) -> None:
    """Do so for a sample type, if it is written as `package.module:Class`."""
    module, colon, _ = (name or "").partition(":")
    own_modules([module] if colon else None)
