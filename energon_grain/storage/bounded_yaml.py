"""YAML whose aliases and depth are bounded, so that a small file cannot stand for more than a machine holds.

An alias repeats what it stands for, and what reads the document walks through every repetition: nine lists of nine
aliases each make 9^9 values of 300 bytes. A document may be ten times as large as it is written, or a million values;
it is at most a hundred levels deep, and nothing in it contains itself.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import yaml

_MOST_VALUES = 1_000_000
_MOST_GROWTH = 10
_MOST_DEPTH = 100
_MOST_RECURSION = 1_000
"""Bytes of documents that cannot be nested so deep that composing them harms."""

if TYPE_CHECKING:
    SafeLoader = yaml.SafeLoader
else:
    SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load_yaml(data: bytes) -> Any:
    """Read a document as `yaml.safe_load` does.

    Raises:
        yaml.YAMLError: It is not valid, or breaks a bound.
    """
    with composed(data, SafeLoader) as (loader, node):
        try:
            return None if node is None else loader.construct_document(node)
        except ValueError as error:  # of a date that there is not, say
            raise yaml.YAMLError(str(error)) from error


@contextmanager
def composed(data: bytes | str, kind: type[yaml.SafeLoader]) -> Generator[tuple[yaml.SafeLoader, Any]]:
    """A loader of a document and the node of it, None where it is empty.

    Raises:
        yaml.YAMLError: It is not valid, or breaks a bound.
    """
    if len(data) > _MOST_RECURSION:
        _check_depth(data)
    loader = kind(data)
    try:
        node: Any = loader.get_single_node()
        if node is not None:
            _Extent().check(node)
        yield loader, node
    finally:
        loader.dispose()


def _check_depth(data: bytes | str) -> None:
    """Go through a document without recursion: composing one of 100,000 levels overflows the stack."""
    level = 0
    for event in yaml.parse(data, SafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            level += 1
            if level > _MOST_DEPTH:
                raise yaml.MarkedYAMLError(problem=_TOO_DEEP, problem_mark=event.start_mark)
        elif isinstance(event, yaml.CollectionEndEvent):
            level -= 1


_INSIDE = "an alias inside of what it stands for"
_TOO_DEEP = f"nested too deeply: at most {_MOST_DEPTH} levels"


class _Extent:
    """How large a document is when every alias is replaced by what it stands for."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, int]] = {}
        self._open: set[int] = set()

    def check(self, root: yaml.Node) -> None:
        values, _ = self._of(root, 1)
        if values > max(_MOST_VALUES, _MOST_GROWTH * len(self._known)):
            raise yaml.MarkedYAMLError(
                problem=f"with its aliases it stands for {_in_words(values)} values, though {len(self._known):,} are "
                f"written; at most {_MOST_VALUES:,} or {_MOST_GROWTH} times as many are read. Write fewer aliases",
                problem_mark=root.start_mark,
            )

    def _of(self, node: yaml.Node, level: int) -> tuple[int, int]:
        """Values, and levels below this one; long texts count as several values."""
        known = self._known.get(id(node))
        if known is None:
            if id(node) in self._open:
                raise yaml.MarkedYAMLError(
                    problem="an alias inside of what it stands for", problem_mark=node.start_mark
                )
            if isinstance(node, yaml.ScalarNode):
                known = 1 + len(node.value) // 256, 0
            else:
                self._open.add(id(node))
                values, below = 1, 0
                for inner in _inner(node) if level <= _MOST_DEPTH else ():
                    more, deeper = self._of(inner, level + 1)
                    values, below = values + more, max(below, deeper + 1)
                known = values, below
                self._open.discard(id(node))
            self._known[id(node)] = known
        if level + known[1] > _MOST_DEPTH:
            raise yaml.MarkedYAMLError(problem=_TOO_DEEP, problem_mark=node.start_mark)
        return known


def _inner(node: yaml.Node) -> Any:
    if isinstance(node, yaml.MappingNode):
        return (each for pair in node.value for each in pair)
    return node.value


def _in_words(number: int) -> str:
    return f"{number:,}" if number < 10**18 else "more than 10^18"
