# SPDX-License-Identifier: Apache-2.0
"""Losses of a run by step, as trainers and trackers write them: CSV, JSON lines, JSON, or TensorBoard event files.

The columns of the step and of the loss are found by their usual names. Columns that are named like the loss with a
further part, as `train/loss/web`, are losses of single datasets or statistics; `Losses.parts` keeps them. A value that
is a list holds the losses of all samples of the step.
"""

from __future__ import annotations

import csv
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from energon_grain.errors import ConfigError
from energon_grain.history.event_files import EVENT_FILE, read_scalars

FloatArray: TypeAlias = npt.NDArray[np.float64]
Int64Array: TypeAlias = npt.NDArray[np.int64]
STEP_COLUMNS = ("step", "trainer/global_step", "train/global_step", "global_step", "_step", "Step", "iteration")
"""Names of the column of steps, the first of which is used. In exports of W&B, `_step` counts calls of `log`, so the
steps of a trainer, if it logs them, are preferred."""
LOSS_COLUMNS = ("loss", "train/loss", "train_loss", "training/loss", "training_loss", "loss/train", "train/loss_step")
"""Names of the column of losses, the first of which is used."""
_SEPARATORS = "/_.:-"
_MOST_BYTES = 4 << 30
_ROW = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Losses:
    """Losses of steps, in ascending order, each step once.

    Attributes:
        steps: (n,) number of each step, int64.
        values: (n,) mean loss of each step, float64; NaN and infinity where the run had them.
        samples: For each step the losses of its items in the order of hosts, and within a host in the order of its
            batch, as a gather over all hosts returns them, (items,) float64; None: unknown.
        parts: Further losses of the same steps, (n,) each, by the rest of their column's name; NaN: not logged.
        column: Name of the column of the losses.
        repeated: Number of values that were replaced by a later value of the same step, as after a restart.
    """

    steps: Int64Array
    values: FloatArray
    samples: Sequence[FloatArray] | None = None
    parts: Mapping[str, FloatArray] = field(default_factory=dict[str, FloatArray])
    column: str = "loss"
    repeated: int = 0

    @classmethod
    def of(cls, given: Any) -> Losses:
        """Losses from a program: `Losses`, a path, or a mapping of step to loss (or to the losses of its items).

        Raises ConfigError if there are none, or if one is not a number.
        """
        if isinstance(given, Losses):
            return given
        if isinstance(given, str | os.PathLike):
            return read_losses(Path(cast("str | os.PathLike[str]", given)))
        if not isinstance(given, Mapping):
            raise ConfigError(
                f"losses: expected a file, or a mapping of step to loss, got a {type(given).__name__}: write "
                f"dict(enumerate(losses)) if it is a list with a loss for every step from 0 on"
            )
        rows = [{"step": step, "loss": loss} for step, loss in cast("Mapping[Any, Any]", given).items()]
        return _of_rows(rows, "losses", None, None)


def read_losses(file: Path, *, column: str | None = None, step_column: str | None = None) -> Losses:
    """Read losses.

    Args:
        file: A CSV file, a file of JSON lines (or one JSON list, or `trainer_state.json`), a TensorBoard event file, or
            a folder with such.
        column: The column (or tag) of the losses. Default: the first of `LOSS_COLUMNS` that is there; else the only one
            with "loss" in its name.
        step_column: The column of the steps. Default: the first of `STEP_COLUMNS` that is there.

    Raises:
        ConfigError: The file does not exist, has no such columns, or holds a value that is not a number.
    """
    if not file.exists():
        raise ConfigError(f"--losses {file}: there is no such file or folder")
    if file.is_dir() or EVENT_FILE in file.name:
        return _of_events(file, column)
    if file.stat().st_size > _MOST_BYTES:
        raise ConfigError(f"--losses {file}: it has more than {_MOST_BYTES >> 30} GiB, which no list of losses has")
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"--losses {file}: cannot be read as text ({error}): expected CSV, JSON lines, or TensorBoard event files"
        ) from error
    rows = _json_rows(text, file) if text.lstrip()[:1] in ("{", "[") else _csv_rows(text)
    return _of_rows(rows, f"--losses {file}", column, step_column)


def _csv_rows(text: str) -> Iterator[_ROW]:
    """The rows of a CSV file, without empty cells."""
    lines = text.splitlines()
    header = lines[0] if lines else ""
    delimiter = max(",\t;", key=header.count)
    for row in csv.DictReader(lines, delimiter=delimiter, skipinitialspace=True):
        yield {name: value for name, value in row.items() if name is not None and value not in ("", None)}


def _json_rows(text: str, file: Path) -> Iterable[_ROW]:
    """The rows of JSON lines, of one list of objects, or of the log in a trainer's state."""
    try:
        whole = json.loads(text)
    except ValueError:
        return list(_json_lines(text, file))
    if isinstance(whole, dict):
        found = cast("dict[str, Any]", whole)
        whole = found.get("log_history", [found])
    if not isinstance(whole, list) or not all(isinstance(row, dict) for row in cast("list[Any]", whole)):
        raise ConfigError(
            f"--losses {file}: expected a JSON object with step and loss for each line, or a list of such"
        )
    return cast("list[_ROW]", whole)


def _json_lines(text: str, file: Path) -> Iterator[_ROW]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ConfigError(f"--losses {file}, line {number}: is not JSON: {error}") from error
        if not isinstance(row, dict):
            raise ConfigError(f"--losses {file}, line {number}: expected an object with step and loss")
        yield cast("_ROW", row)


def _of_rows(rows: Iterable[_ROW], where: str, column: str | None, step_column: str | None) -> Losses:
    """The losses of rows, one for each logged step."""
    rows = list(rows)
    names = list(dict.fromkeys(name for row in rows for name in row))
    if not rows:
        raise ConfigError(f"{where}: it is empty")
    step_name = _named(names, step_column, STEP_COLUMNS, where, "step", "--step-column")
    name = _named(names, column, LOSS_COLUMNS, where, "loss", "--column")
    rows = _with_both(rows, step_name, name, where)
    steps = np.array([_step(row[step_name], where, step_name) for row in rows], np.int64)
    values = [_value(row[name], where, name, step) for row, step in zip(rows, steps.tolist(), strict=True)]
    parts = {part: np.array([_part(row.get(long)) for row in rows]) for long, part in _parts_of(names, name).items()}
    means = np.array([float(np.mean(value)) for value in values])
    return _sorted(steps, means, _lists(values, where, name), parts, name)


def _with_both(rows: Iterable[_ROW], step_name: str, name: str, where: str) -> list[_ROW]:
    """The rows with a step and a loss. Raises ConfigError if there are none."""
    found = [row for row in rows if row.get(name) is not None and row.get(step_name) is not None]
    if not found:
        raise ConfigError(f"{where}: no row has both {step_name!r} and {name!r}")
    return found


def _lists(values: Sequence[float | FloatArray], where: str, name: str) -> list[FloatArray] | None:
    """The losses of items; None: steps have one number. Raises ConfigError if both occur."""
    found = [value for value in values if isinstance(value, np.ndarray)]
    if found and len(found) < len(values):
        raise ConfigError(f"{where}: {name!r} has lists for some steps and numbers for others: expected one of both")
    return found or None


def _named(names: Sequence[str], given: str | None, usual: Sequence[str], where: str, what: str, option: str) -> str:
    """The name of a column. Raises ConfigError if it is not there, or if there are several candidates."""
    if given is not None:
        if given not in names:
            raise ConfigError(f"{where}: there is no column {given!r}; there are {_listed(names)}")
        return given
    for name in usual:
        if name in names:
            return name
    found = [name for name in names if what in name.lower() and not name.endswith(("__MIN", "__MAX"))]
    if len(found) == 1:
        return found[0]
    problem = f"no column for the {what}" if not found else f"several columns could be the {what} ({_listed(found)})"
    raise ConfigError(f"{where}: {problem}; there are {_listed(names)}: name it with {option}")


def _listed(names: Sequence[str]) -> str:
    more = f", and {len(names) - 20} more" if len(names) > 20 else ""
    return ", ".join(map(repr, names[:20])) + more


def _parts_of(names: Iterable[str], column: str) -> dict[str, str]:
    """Columns that continue the name of the loss, and the rest of their names."""
    rest = {name: name[len(column) :] for name in names if name.startswith(column)}
    return {name: part[1:] for name, part in rest.items() if len(part) > 1 and part[0] in _SEPARATORS}


def _step(value: Any, where: str, name: str) -> int:
    try:
        number = float(value)
        if not number.is_integer() or not 0 <= number < 1 << 53:
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise ConfigError(f"{where}: {name} is {value!r}: expected the number of a step, 0 or more") from None
    return int(number)


def _value(value: Any, where: str, name: str, step: int) -> float | FloatArray:
    """A loss, or the losses of a step's items."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)
        except ValueError:
            raise ConfigError(f"{where}: {name} of step {step} is not a list of numbers: {value[:80]!r}") from None
    if isinstance(value, bool):
        raise ConfigError(f"{where}: {name} of step {step} is {value}: expected a number")
    try:
        number = np.asarray(value, np.float64)
    except (TypeError, ValueError):
        raise ConfigError(f"{where}: {name} of step {step} is {str(value)[:80]!r}: expected a number") from None
    if number.ndim > 1 or not number.size:
        raise ConfigError(f"{where}: {name} of step {step} has the shape {number.shape}: expected one loss per item")
    return number if number.ndim else float(number)


def _part(value: Any) -> float:
    """A loss of a further column; NaN: it has none, or is no number."""
    try:
        return math.nan if value is None else float(value)
    except (TypeError, ValueError):
        return math.nan


def _sorted(
    steps: Int64Array,
    values: FloatArray,
    samples: Sequence[FloatArray] | None,
    parts: Mapping[str, FloatArray],
    column: str,
) -> Losses:
    """The losses in the order of steps. Of several of one step, the last one counts."""
    order = np.argsort(steps, kind="stable")
    last = np.append(np.diff(steps[order]) > 0, True)
    kept = order[last]
    return Losses(
        steps=steps[kept],
        values=values[kept],
        samples=None if samples is None else [samples[at] for at in kept.tolist()],
        parts={name: part[kept] for name, part in parts.items() if np.isfinite(part[kept]).any()},
        column=column,
        repeated=len(steps) - len(kept),
    )


def _of_events(place: Path, column: str | None) -> Losses:
    """The losses in event files of TensorBoard, and those of tags that continue the tag's name."""
    tags = read_scalars(place)
    where = f"--losses {place}"
    name = _named(list(tags), column, LOSS_COLUMNS, where, "loss", "--column")
    steps, values = tags[name]
    losses = _sorted(steps, values, None, {}, name)
    parts: dict[str, FloatArray] = {}
    for tag, part in _parts_of(tags, name).items():
        own = _sorted(*tags[tag], None, {}, tag)
        found = np.full(len(losses.steps), math.nan)
        at = np.searchsorted(losses.steps, own.steps)
        there = (at < len(found)) & (losses.steps[np.minimum(at, len(found) - 1)] == own.steps)
        found[at[there]] = own.values[there]
        parts[part] = found
    return Losses(steps=losses.steps, values=losses.values, parts=parts, column=name, repeated=losses.repeated)
