"""YAML whose aliases and depth are bounded, so that a small file cannot stand for more than a machine holds.

An alias repeats what it stands for, and what reads the document walks through every repetition: nine lists of nine
aliases each make 9^9 values of 300 bytes. A document may be ten times as large as it is written, or a million values;
it is at most a hundred levels deep, and nothing in it contains itself.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import yaml

_MOST_VALUES = 1_000_000
_MOST_GROWTH = 10
_MOST_DEPTH = 100
_COUNTED = 10**18
"""Sizes are counted up to here."""
_OPENING = re.compile(rb"[\[{:?-]")
"""One of these stands before each value that lies in another."""

if TYPE_CHECKING:
    SafeLoader = yaml.SafeLoader
else:
    SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load_yaml(data: bytes) -> Any:
    """Read a document as `yaml.safe_load` does. Raises yaml.YAMLError."""
    with composed(data, SafeLoader) as (loader, node):
        try:
            return None if node is None else loader.construct_document(node)
        except ValueError as error:  # of a date that there is not, say
            raise yaml.YAMLError(str(error)) from error


@contextmanager
def composed(data: bytes | str, kind: type[yaml.SafeLoader]) -> Generator[tuple[yaml.SafeLoader, Any]]:
    """A loader of a document and the node of it, None where it is empty. Raises yaml.YAMLError."""
    encoded = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    if b"*" in encoded or len(_OPENING.findall(encoded)) >= _MOST_DEPTH:
        _check(data)
    loader = kind(data)
    try:
        yield loader, loader.get_single_node()
    finally:
        loader.dispose()


def _check(data: bytes | str) -> None:
    """Count values and levels with every alias replaced by what it stands for; long texts count as several values.

    This goes from event to event: composing a document of 100,000 levels would overflow the stack.
    """
    known: dict[str, tuple[int, int]] = {}  # values, and levels below, by anchor
    opened: list[Any] = [None]
    values, levels = [0], [0]  # in what is open
    written = 0
    for event in yaml.parse(data, SafeLoader):
        if isinstance(event, yaml.ScalarEvent):
            found, below = 1 + len(event.value) // 256, 1
            written += 1
        elif isinstance(event, yaml.CollectionStartEvent):
            opened.append(event)
            values.append(1)
            levels.append(0)
            found, below = 0, 1
            written += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            event, found, below = opened.pop(), min(values.pop(), _COUNTED), 1 + levels.pop()
        elif isinstance(event, yaml.AliasEvent):
            if any(start is not None and start.anchor == event.anchor for start in opened):
                raise yaml.MarkedYAMLError(
                    problem="an alias inside of what it stands for", problem_mark=event.start_mark
                )
            found, below = known.get(event.anchor, (0, 0))  # what is not known is complained of later
        else:
            continue
        if len(opened) + below > _MOST_DEPTH + 1:
            problem = f"nested too deeply: at most {_MOST_DEPTH} levels"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)
        if event.anchor and found:
            known[event.anchor] = found, below
        values[-1] += found
        if below > levels[-1]:
            levels[-1] = below
    if values[0] > max(_MOST_VALUES, _MOST_GROWTH * written):
        shown = f"{values[0]:,}" if values[0] < _COUNTED else "more than 10^18"
        raise yaml.YAMLError(
            f"with its aliases it stands for {shown} values, though {written:,} are written; at most {_MOST_VALUES:,} "
            f"or {_MOST_GROWTH} times as many are read. Write fewer aliases"
        )
