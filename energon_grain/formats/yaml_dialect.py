# SPDX-License-Identifier: Apache-2.0
"""YAML with Energon's types: its own rules for plain scalars, on top of full YAML with anchors and merge keys.

Energon reads scalars by these rules, which differ from YAML 1.1 and 1.2, and files rely on them:

* quoted text, and block text (`|`, `>`), is text;
* `null` and `~` are None, `true` and `yes`, `false` and `no` are booleans, all in any case; `on` and `off` are text;
* text with a `.` or an `e` that Python parses as a float is a float; other text that Python parses as an int is an int:
  `1_000` is 1000 and `012` is 12, while `0x1f`, `.inf` and `2024-01-31` are text;
* keys are text, and the last one of equal keys counts, with a warning in the log.

Beyond Energon's own reader, an empty value is None, anchors, aliases and merge keys (`<<`) work, and the standard tags
(`!!str 12`) are respected. Other tags are refused: a file cannot name code to run.

Aliases and depth are limited, so that a small file cannot expand beyond the memory of a machine: readers of a document
visit every repetition of an alias, and nine lists of nine aliases each make 9^9 values from 300 bytes. A document may
expand to ten times its written size, or to a million values; it has at most a hundred levels, and nothing in it
contains itself.
"""

from __future__ import annotations

import copy
import logging
import re
from typing import TYPE_CHECKING, Any

import yaml

from energon_grain.errors import ConfigError

if TYPE_CHECKING:
    SafeLoader = yaml.SafeLoader
else:
    SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_logger = logging.getLogger("energon_grain")

_PLAIN = "energon:plain"
_TAGS = "tag:yaml.org,2002:"
_MERGE = "<<"
_UNNAMED = re.compile(r'in "<[a-z ]+>", line')
"""Location in messages of the parser about text that it did not read from a file."""
_MAX_VALUES = 1_000_000
_MAX_GROWTH = 10
_MAX_DEPTH = 100
_COUNTED = 10**18
"""Maximum of size counters."""
_REMEMBERED, _REMEMBERED_BYTES = 256, 4096
_remembered: dict[bytes | str, Any] = {}
"""Values of small documents: a thousand datasets often have the same ones."""
_OPENING = re.compile(rb"[\[{:?-]")
"""One of these precedes each nested value."""


class WrittenFloat(float):
    """A float that remembers its decimal text, as written in the file, so that `0.1` can be read as one tenth."""

    __slots__ = ("text",)
    text: str

    def __new__(cls, text: str) -> WrittenFloat:
        """Parse the number. Raises ValueError."""
        made = super().__new__(cls, text)
        made.text = text
        return made


def parse_yaml(data: bytes | str, *, where: str, written_floats: bool = True) -> Any:
    """Parse one YAML document into dicts, lists and scalars, with floats as `WrittenFloat` if requested.

    Raises ConfigError, which names `where`, line and column, if it is not valid YAML, has non-standard tags, is nested
    too deeply or expands too much by its aliases.
    """
    if not written_floats and data in _remembered:
        return copy.deepcopy(_remembered[data])
    try:
        encoded = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
        if b"*" in encoded or len(_OPENING.findall(encoded)) >= _MAX_DEPTH:
            _check(data)
        loader = _Loader(data)
        try:
            node = loader.get_single_node()
        finally:
            loader.dispose()
        native = _Native(WrittenFloat if written_floats else float, where)
        value = None if node is None else native.value(node)
        if not (written_floats or native.warned) and len(data) <= _REMEMBERED_BYTES:
            if len(_remembered) >= _REMEMBERED:
                _remembered.clear()
            _remembered[data] = copy.deepcopy(value)
        return value
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        message = _UNNAMED.sub("at line", str(error))
        if "maximum nesting depth" in message:  # libyaml looks ahead, and has its own limit since version 0.2.6
            message = f"nested too deeply: at most {_MAX_DEPTH} levels"
        raise ConfigError(f"{where}: not valid YAML: {message}{_shown_line(error, data)}") from error


def _shown_line(error: Exception, data: bytes | str) -> str:
    """The line of an error, with a mark below the column."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return ""
    text = data if isinstance(data, str) else data.decode("utf-8", "replace")
    line = (text.splitlines()[mark.line : mark.line + 1] or [""])[0].expandtabs(1)
    if not line.strip() or len(line) > 200:
        return ""
    return f"\n    {line}\n    {' ' * mark.column}^"


def _check(data: bytes | str) -> None:
    """Count values and levels with all aliases expanded; long texts count as several values.

    Works on events: composing a document of 100,000 levels would overflow the stack.
    """
    known: dict[str, tuple[int, int]] = {}  # (values, levels below) by anchor
    opened: list[Any] = [None]
    values, levels = [0], [0]  # of open collections
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
                raise yaml.MarkedYAMLError(problem="an alias inside its own anchor", problem_mark=event.start_mark)
            found, below = known.get(event.anchor, (0, 0))  # unknown anchors are reported later
        else:
            continue
        if len(opened) + below > _MAX_DEPTH + 1:
            problem = f"nested too deeply: at most {_MAX_DEPTH} levels"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)
        if event.anchor and found:
            known[event.anchor] = found, below
        values[-1] += found
        if below > levels[-1]:
            levels[-1] = below
    if values[0] > max(_MAX_VALUES, _MAX_GROWTH * written):
        shown = f"{values[0]:,}" if values[0] < _COUNTED else "more than 10^18"
        raise yaml.YAMLError(
            f"its aliases expand to {shown} values from {written:,} written ones; the limit is {_MAX_VALUES:,}, or "
            f"{_MAX_GROWTH} times the written ones. Write fewer aliases"
        )


def dump_yaml(content: Any) -> str:
    """Write a document in which both these rules and those of YAML 1.1 read every text as that text."""
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


class _Dumper(yaml.SafeDumper):
    """Quotes texts that would be read as another type."""


def _text_node(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar(f"{_TAGS}str", text, style=None if cast_scalar(text) == text else "'")


_Dumper.add_representer(str, _text_node)


class _Loader(SafeLoader):
    """Composes nodes. Marks untagged plain scalars; no other rule for scalars applies."""

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        if kind is yaml.ScalarNode:
            return _PLAIN if implicit[0] else f"{_TAGS}str"
        return super().resolve(kind, value, implicit)


class _Native:
    """Converts composed nodes to Python values; the value of an alias is created once and shared."""

    def __init__(self, number: type[float], where: str) -> None:
        self._number = number
        self._where = where
        self._done: dict[int, Any] = {}
        self.warned = False

    def value(self, node: yaml.Node) -> Any:
        if id(node) in self._done:
            return self._done[id(node)]
        if isinstance(node, yaml.ScalarNode):
            value = _scalar(node)
            if isinstance(value, WrittenFloat):
                value = self._number(value.text)
        elif isinstance(node, yaml.SequenceNode):
            _expect(node, "seq")
            value = [self.value(item) for item in node.value]
        else:
            value = self._mapping(node)
        self._done[id(node)] = value
        return value

    def _mapping(self, node: yaml.Node) -> dict[str, Any]:
        _expect(node, "map")
        own: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        for key, item in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.MarkedYAMLError(problem="a key must be a string", problem_mark=key.start_mark)
            if key.value == _MERGE and key.tag == _PLAIN:
                merged = self._merged(item) | merged
            else:
                if key.value in own:
                    line, self.warned = key.start_mark.line + 1, True
                    _logger.warning(
                        "%s: line %d: the key `%s` is repeated in one mapping; only the last one counts",
                        *(self._where, line, key.value),
                    )
                own[key.value] = self.value(item)
        return {**merged, **own}

    def _merged(self, node: yaml.Node) -> dict[str, Any]:
        """The result of `<<:`: a mapping, or a list of mappings whose first one with a key counts."""
        value = self.value(node)
        sources: list[Any] = value if isinstance(value, list) else [value]
        found: dict[str, Any] = {}
        for source in sources:
            if not isinstance(source, dict):
                raise yaml.MarkedYAMLError(
                    problem="`<<` requires a mapping or a list of mappings", problem_mark=node.start_mark
                )
            found = {**source, **found}
        return found


def _expect(node: yaml.Node, kind: str) -> None:
    if node.tag != _TAGS + kind:
        raise yaml.MarkedYAMLError(problem=f"the tag {node.tag!r} is not supported", problem_mark=node.start_mark)


def _scalar(node: yaml.ScalarNode) -> Any:
    text: str = node.value
    kind = node.tag.removeprefix(_TAGS)
    if kind == "str":
        return text
    value = cast_scalar(text)
    if kind in (_PLAIN, "null" if value is None else type(value).__name__):
        return value
    if kind == "float":
        if type(value) is int:
            return WrittenFloat(text)
        if isinstance(value, float):
            return value
    raise yaml.MarkedYAMLError(problem=f"{text!r} is not valid for the tag {node.tag!r}", problem_mark=node.start_mark)


def cast_scalar(text: str) -> str | int | float | bool | None:
    """Convert a plain (unquoted) scalar to its type, by the rules of this module."""
    lower = text.lower()
    if lower in ("", "null", "~"):
        return None
    if lower in ("true", "yes"):
        return True
    if lower in ("false", "no"):
        return False
    try:
        return WrittenFloat(text) if "." in text or "e" in lower else int(text)
    except ValueError:
        return text
