# SPDX-License-Identifier: Apache-2.0
"""Expressions over the columns of samples: `tokens >= 16 and width * height > 65536`, parsed safely, computed by numpy.

The syntax is Python's, restricted to arithmetic and conditions on columns. The text is parsed, never run as Python:

* numbers; names of columns, including dotted ones (`bytes.jpg`, `captions.tokens`), or `column("bytes.0.jpg")` for
  names that are not Python names;
* `+ - * / // % **` and `abs ceil floor log max min sqrt`;
* comparisons, including chained ones (`16 <= tokens < 4096`), `in [1, 2, 3]`, `not in [...]`, `isnan(score)`, joined by
  `and`, `or`, `not`. A number used as a condition is true if it is not 0.

**Missing values.** NaN is a missing number, and so is any number that is not finite: `inf` in a column, `x / 0`,
`log(0)`, `sqrt(-1)`. The result of an operation on a missing number is missing (also `max(x, 0)` and `x ** 0`). A
comparison with it is neither true nor false, as in SQL, and only true counts. So neither `score > 0.3` nor
`not score > 0.3` is true for a sample without a score, and `not (a and b)` equals `not a or not b` for all samples.
Only `isnan(score)` selects missing values. No third truth value is stored: `not` is pushed down to the comparisons
(`not a > b` is `a <= b`), and above them `and` and `or` combine values of "is true".

**Numbers.** Integer columns are int64 and stay so under `+ - *`, `abs`, `max`, `min`, and under `//`, `%`, `**` with an
integer literal on their right; everything else is float64. So 64-bit identifiers keep all their bits (`id % 10 == 3`),
and narrow columns do not overflow. Columns may hold any 64-bit number. An integer result of `+ - * // **` with a
magnitude of 2**62 or more is an error, and so is the negation of -2**63; write `1.0 * a * b` to compute in floats. An
integer is compared with a float as a float.

All results have the same bits on every processor, so plans are the same, with two exceptions: `log`, and `**` of floats
with an exponent that is not a literal multiple of 0.5 up to 64. These may differ in the last bit between kinds of
processors. If hosts of several kinds plan together, measure a column of their results instead.

**Memory.** Rows are computed in blocks, so that intermediate arrays, 128 KiB each, stay in a core's cache and their
memory is reused. Allocating new pages takes several times as long as the arithmetic.
"""

from __future__ import annotations

import ast
import keyword
import math
import operator
from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain
from typing import Any, NamedTuple, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt

from energon_grain.errors import ConfigError

_Array: TypeAlias = npt.NDArray[Any]

LONGEST = 10_000
"""Maximum length of an expression in characters."""

_DEEPEST = 100
_MAX_VALUE = 2**62
_NEAR = 2**20
"""Error bound of floats for results up to 2**62, for example 62 factors with 53 bits."""
_ROWS_AT_ONCE = 1 << 14
_FEW = 16
_LONGEST_TABLE = 1 << 16
_MAX_FACTORS = 64
_MISCOUNTS = 20


class _Listed(NamedTuple):
    """The numbers of a list after `in`.

    Attributes:
        numbers: The numbers, ascending.
        table: If there are many numbers within a short range: for each number of the range whether it is in the list,
            followed by False. Otherwise None.
    """

    numbers: _Array
    table: npt.NDArray[np.bool_] | None

    @staticmethod
    @lru_cache(maxsize=256)
    def of(node: ast.List, whole: bool) -> _Listed:
        """The numbers of a list that is compared with integers, exactly, or with floats."""
        given: list[int | float] = [ast.literal_eval(element) for element in node.elts]
        if whole:
            ints = [int(each) for each in given if int(each) == each and abs(each) < 2**63]
            numbers = np.unique(np.array(ints, np.int64))
        else:
            numbers = np.unique(np.array(given, np.float64))
        points = numbers.astype(np.int64)
        if len(points) <= _FEW or (points != numbers).any():
            return _Listed(numbers, None)
        span = int(points[-1]) - int(points[0]) + 1
        if span > _LONGEST_TABLE:
            return _Listed(numbers, None)
        table = np.zeros(span + 1, np.bool_)
        table[points - points[0]] = True
        return _Listed(points, table)


def _is_in(value: _Array, listed: _Listed) -> npt.NDArray[np.bool_]:
    """Where a value is in a list. `np.isin` sorts all values or uses masks, which is slow."""
    numbers, table = listed
    if table is not None:
        point = value.astype(np.int64, copy=False)
        above = np.asarray(point - numbers[0]).view(np.uint64)  # numbers below the first become very large
        found = table.take(np.minimum(above, np.uint64(len(table) - 1)).view(np.int64))
        return found if point is value else found & (point == value)
    if len(numbers) <= _FEW:
        return _folded(np.logical_or, chain([np.zeros(value.shape, np.bool_)], (value == each for each in numbers)))
    return numbers.take(np.searchsorted(numbers, value), mode="clip") == value


def _power(base: _Array, exponent: _Array) -> _Array:
    """`**`, by products and square roots where possible, because all processors round these the same way."""
    if base.dtype.kind != "f":
        return np.power(base, exponent)
    halves = 2 * abs(float(exponent)) if exponent.ndim == 0 else math.inf
    if halves == 0 or halves > 2 * _MAX_FACTORS or not halves.is_integer():
        # IEEE 754 defines `nan ** 0` and `1 ** nan` as 1.
        return np.where((base == base) & (exponent == exponent), np.power(base, exponent), np.nan)
    factors, root = divmod(int(halves), 2)
    result = np.sqrt(base) if root else np.ones_like(base)
    while factors:
        if factors % 2:
            result = result * base
        factors //= 2
        base = base * base
    return 1 / result if exponent < 0 else result


_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: np.true_divide,
    ast.FloorDiv: np.floor_divide,
    ast.Mod: np.mod,
    ast.Pow: _power,
}
_COMPARISONS: dict[type[ast.cmpop], tuple[Callable[[Any, Any], Any], type[ast.cmpop]]] = {
    ast.Lt: (operator.lt, ast.GtE),
    ast.LtE: (operator.le, ast.Gt),
    ast.Gt: (operator.gt, ast.LtE),
    ast.GtE: (operator.ge, ast.Lt),
    ast.Eq: (operator.eq, ast.NotEq),
    ast.NotEq: (operator.ne, ast.Eq),
    ast.In: (_is_in, ast.NotIn),
    ast.NotIn: (lambda value, listed: ~_is_in(value, listed), ast.In),
}
"""For each comparison, its function and its negation."""
_JOINS = (np.logical_or, np.logical_and)

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": np.abs,
    "ceil": np.ceil,
    "floor": np.floor,
    "isnan": np.isnan,
    "log": np.log,
    "max": np.maximum,
    "min": np.minimum,
    "sqrt": np.sqrt,
}
_KNOWN = "expected numbers, columns, + - * / // % **, comparisons, in [...], and, or, not, " + ", ".join(
    f"{name}()" for name in (*_FUNCTIONS, "column")
)


@dataclass(frozen=True, slots=True)
class Expression:
    """An expression over columns. The module docstring defines its syntax and meaning.

    Attributes:
        text: The normalised text: equal for texts that differ only in spaces and redundant parentheses.
        names: Columns that it uses, sorted.
    """

    text: str
    names: tuple[str, ...]

    @classmethod
    def parse(cls, text: str, *, where: str) -> Expression:
        """Parse an expression.

        Args:
            text: At most 10,000 characters; line breaks count as spaces.
            where: Location of the text for messages, such as `where of /data/images`.

        Raises:
            ConfigError: It is invalid. The message has the character position, the text there, and the valid syntax.
        """
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # from YAML it may be anything
            raise ConfigError(f"{where}: expected the text of an expression, such as 'tokens >= 16', got {text!r}")
        if len(text) > LONGEST:
            raise ConfigError(f"{where}: the expression has {len(text):,} characters; the maximum is {LONGEST:,}")
        reader = _Reader(text, where)
        tree = reader.read()
        if not reader.names:
            raise ConfigError(f"{where}: the expression {text!r} uses no column, so it is the same for every sample")
        return cls(_text(tree), tuple(sorted(reader.names)))

    def of(self, column: Callable[[str], _Array]) -> _Array:
        """Compute the expression for some samples.

        Args:
            column: Returns the values of a column for these samples by its name, (n,). Called once per name.

        Returns:
            (n,) bool if it is a condition, otherwise int64, or float64 with NaN for missing values.

        Raises:
            ConfigError: An integer result of 2**62 or more.
        """
        tree = _tree(self.text)
        return self._by_blocks(
            column, partial(_condition, tree, wanted=True) if _is_condition(tree) else partial(_value, tree)
        )

    def holds(self, column: Callable[[str], _Array]) -> npt.NDArray[np.bool_]:
        """Where the expression is true: a number if it is neither 0 nor missing. Arguments and errors as `of`."""
        return self._by_blocks(column, partial(_condition, _tree(self.text), wanted=True))

    def _by_blocks(self, column: Callable[[str], _Array], compute: Callable[[dict[str, _Array]], _Array]) -> _Array:
        columns = {name: column(name) for name in self.names}
        rows = len(next(iter(columns.values())))

        def block(begin: int) -> _Array:
            return compute(
                {name: _number(each[begin : begin + _ROWS_AT_ONCE], self.text) for name, each in columns.items()}
            )

        with np.errstate(all="ignore"):
            first = block(0)
            if rows <= _ROWS_AT_ONCE:
                return first
            computed = np.empty(rows, first.dtype)
            computed[:_ROWS_AT_ONCE] = first
            for begin in range(_ROWS_AT_ONCE, rows, _ROWS_AT_ONCE):
                computed[begin : begin + _ROWS_AT_ONCE] = block(begin)
        return computed

    def __str__(self) -> str:
        return self.text


def combine_expressions(inner: Expression | None, outer: Expression | None) -> Expression | None:
    """Join the expression of a node with the inherited one by `and`. None selects everything.

    Raises ConfigError if the result is longer than the maximum.
    """
    if inner is None or outer is None or inner == outer:
        return inner or outer
    return Expression.parse(f"({inner}) and ({outer})", where="where, joined with that of the dataset around it")


class _Reader(ast.NodeTransformer):
    """Checks the syntax tree from Python's parser, and turns every column into a plain name (with its dots).

    Each supported kind of node has a method; `generic_visit` rejects all others.
    """

    def __init__(self, text: str, where: str) -> None:
        self.names: set[str] = set()
        self._text = text.translate(dict.fromkeys(map(ord, "\t\r\n\f\v"), " ")).rstrip()
        self._where = where
        self._depth = 0
        self._bytes = self._text.encode("utf-8", "surrogatepass")

    def read(self) -> ast.expr:
        lead = len(self._text) - len(self._text.lstrip(" "))
        if not self._text:
            raise ConfigError(f"{self._where}: the expression is empty; leave it out to select all samples")
        try:
            tree = _parsed(self._text[lead:])
        except SyntaxError as error:
            at = lead + error.offset - 1 if error.offset else len(self._text)  # Python reports 0 for the end
            self._fail(at, "`==` compares" if self._text[at : at + 1] == "=" else f"{error.msg}; {_KNOWN}")
        except (ValueError, RecursionError, MemoryError) as error:
            why = error if isinstance(error, ValueError) else "nested too deeply"
            raise ConfigError(f"{self._where}: the expression {self._quoted()} cannot be read: {why}") from None
        self._lead = lead  # leading spaces, one byte each
        if b"#" in self._bytes[lead + (tree.end_col_offset or 0) :]:
            self._fail(self._text.rindex("#"), "a comment hides the text after it; write it outside the expression")
        return self._checked(tree)

    def _checked(self, node: ast.expr) -> ast.expr:
        """The node, with its columns as names. Raises: ConfigError."""
        if self._depth > _DEEPEST:
            self._fail_at(node, f"nested deeper than {_DEEPEST} levels; measure a column of the result instead")
        self._depth += 1
        checked = self.visit(node)
        self._depth -= 1
        return checked

    def _number(self, node: ast.expr) -> ast.expr:
        checked = self._checked(node)
        if _is_condition(checked):
            self._fail_at(node, "expected a number, found a condition")
        return checked

    def generic_visit(self, node: ast.AST) -> NoReturn:
        assert isinstance(node, ast.expr), ast.dump(node)
        if isinstance(node, ast.List | ast.Tuple | ast.Set):
            self._fail_at(node, "a list is only allowed after `in`")
        self._fail_at(node, f"not supported in an expression; {_KNOWN}")

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        value = node.value
        if isinstance(value, bool | str | None):
            self._fail_at(node, f"{value!r} is not a number, and columns hold numbers")
        if not isinstance(value, int | float):
            self.generic_visit(node)
        if not math.isfinite(value) or (isinstance(value, int) and value >= _MAX_VALUE):
            self._fail_at(node, "the number is too large: integers must be below 2**62")
        return node

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self._column(node, node.id)

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        return self._column(node, self._dotted(node))

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        if isinstance(node.op, ast.Invert):
            self.generic_visit(node)
        node.operand = self._checked(node.operand) if isinstance(node.op, ast.Not) else self._number(node.operand)
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        if isinstance(node.op, ast.BitAnd | ast.BitOr):
            self._fail_at(node, "`&` and `|` bind more tightly than comparisons; write `and` / `or`")
        if type(node.op) not in _ARITHMETIC:
            self.generic_visit(node)
        node.left, node.right = self._number(node.left), self._number(node.right)
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        checked = [self._checked(value) for value in node.values]
        same = type(node.op)
        node.values = [
            inner
            for each in checked
            for inner in (each.values if isinstance(each, ast.BoolOp) and isinstance(each.op, same) else [each])
        ]
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        in_list = [isinstance(op, ast.In | ast.NotIn) for op in node.ops]
        node.left = self._number(node.left)
        node.comparators = [
            self._listed(right) if listed else self._number(right)
            for listed, right in zip(in_list, node.comparators, strict=True)
        ]
        if any(type(op) not in _COMPARISONS for op in node.ops):
            self._fail_at(node, "`is` does not compare numbers; write `==`, or isnan(column)")
        if any(in_list) and len(in_list) > 1:
            self._fail_at(node, "`in` cannot be chained with other comparisons; join them with `and`")
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        match node:
            case ast.Call(func=ast.Name(id="column"), args=[ast.Constant(value=str(name))], keywords=[]) if name:
                return self._column(node, name)
            case ast.Call(func=ast.Name(id="max" | "min"), args=[_, _, *_], keywords=[]):
                node.args = [self._number(argument) for argument in node.args]
            case ast.Call(func=ast.Name(id="max" | "min" as name)):
                self._fail_at(node, f"{name}() compares two or more numbers of one sample, not a whole column")
            case ast.Call(func=ast.Name(id=name), args=[_], keywords=[]) if name in _FUNCTIONS:
                node.args = [self._number(node.args[0])]
            case ast.Call(func=ast.Name(id="column")):
                self._fail_at(node, "column() takes the name of a column in quotation marks")
            case ast.Call(func=ast.Name(id=name)) if name in _FUNCTIONS:
                self._fail_at(node, f"{name}() takes one number")
            case _:
                self.generic_visit(node)
        return node

    def _listed(self, node: ast.expr) -> ast.expr:
        if not isinstance(node, ast.List | ast.Tuple | ast.Set) or not node.elts:
            self._fail_at(node, "`in` needs a list of numbers, such as [1, 2, 3]")
        for element in node.elts:
            number = element
            if isinstance(element, ast.UnaryOp) and isinstance(element.op, ast.USub | ast.UAdd):
                number = element.operand
            if not isinstance(number, ast.Constant):
                self._fail_at(element, "`in` needs a list of numbers, such as [1, 2, 3]")
            self.visit_Constant(number)
        return ast.copy_location(ast.List(node.elts), node)

    def _column(self, node: ast.expr, name: str) -> ast.expr:
        self.names.add(name)
        return ast.copy_location(ast.Name(name), node)

    def _dotted(self, node: ast.expr) -> str:
        parts: list[str] = []
        inner = node
        while isinstance(inner, ast.Attribute):
            parts.append(inner.attr)
            inner = inner.value
        if not isinstance(inner, ast.Name):
            self._fail_at(node, 'a dot only joins the names of a column; write column("...") for others')
        return ".".join([inner.id, *reversed(parts)])

    def _fail_at(self, node: ast.expr, rule: str) -> NoReturn:
        before = self._bytes[: self._lead + node.col_offset].decode("utf-8", "surrogatepass")
        self._fail(len(before), rule)

    def _fail(self, at: int, rule: str) -> NoReturn:
        found = self._text[at : at + 40].rstrip()
        place = f"character {at + 1} ({found!r})" if found else "at its end"
        raise ConfigError(f"{self._where}: the expression {self._quoted()}, {place}: {rule}") from None

    def _quoted(self) -> str:
        return repr(self._text if len(self._text) <= 400 else self._text[:397] + "...")


class _Written(ast.NodeTransformer):
    """Writes names of columns: plainly if Python can parse them, otherwise with `column`."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if all(part.isascii() and part.isidentifier() and not keyword.iskeyword(part) for part in node.id.split(".")):
            return node
        return ast.Call(ast.Name("column"), [ast.Constant(node.id)], [])

    def visit_Call(self, node: ast.Call) -> ast.expr:
        return ast.Call(node.func, [self.visit(argument) for argument in node.args], [])


def _text(node: ast.expr, inside: bool = False) -> str:
    """The node as text, with only the necessary parentheses; may change the node."""
    match node:
        case ast.BoolOp():
            joined = f" {'and' if isinstance(node.op, ast.And) else 'or'} ".join(_text(v, True) for v in node.values)
            return f"({joined})" if inside else joined
        case ast.UnaryOp(op=ast.Not()):
            return f"not {_text(node.operand, True)}"
        case _:
            return ast.unparse(_Written().visit(node))


@lru_cache(maxsize=256)
def _tree(text: str) -> ast.expr:
    return _Reader(text, "expression").read()


def _parsed(text: str) -> ast.expr:
    """Python's syntax tree of a text. CPython 3.11 counts the depth over all threads, and may raise falsely."""
    for _ in range(_MISCOUNTS):
        with suppress(SystemError):
            return ast.parse(text, mode="eval").body
    return ast.parse(text, mode="eval").body


def _is_condition(node: ast.expr) -> bool:
    match node:
        case ast.Compare() | ast.BoolOp() | ast.UnaryOp(op=ast.Not()) | ast.Call(func=ast.Name(id="isnan")):
            return True
        case _:
            return False


def _condition(node: ast.expr, values: dict[str, _Array], wanted: bool) -> npt.NDArray[np.bool_]:
    """Where the node, or its negation if not `wanted`, is true."""
    match node:
        case ast.UnaryOp(op=ast.Not()):
            return _condition(node.operand, values, not wanted)
        case ast.BoolOp():
            join = _JOINS[isinstance(node.op, ast.And) is wanted]
            return _folded(join, (_condition(value, values, wanted) for value in node.values))
        case ast.Compare():
            sides = [node.left, *node.comparators]
            pairs = zip(node.ops, sides[:-1], sides[1:], strict=True)
            return _folded(_JOINS[wanted], (_compared(*pair, values, wanted) for pair in pairs))
        case ast.Call(func=ast.Name(id="isnan")):
            missing = np.isnan(_value(node.args[0], values))
            return missing if wanted else ~missing
        case _:
            value = _value(node, values)
            return ((value != 0) & (value == value)) if wanted else value == 0


def _compared(
    op: ast.cmpop, left: ast.expr, right: ast.expr, values: dict[str, _Array], wanted: bool
) -> npt.NDArray[np.bool_]:
    kind = type(op) if wanted else _COMPARISONS[type(op)][1]
    value = _value(left, values)
    against: Any = _Listed.of(right, value.dtype.kind == "i") if isinstance(right, ast.List) else _value(right, values)
    out = _COMPARISONS[kind][0](value, against)
    if kind in (ast.NotEq, ast.NotIn):  # for numpy NaN differs from everything; here the result is missing
        out = out & (value == value) & (True if kind is ast.NotIn else against == against)
    return out


def _value(node: ast.expr, values: dict[str, _Array]) -> _Array:
    match node:
        case ast.Constant(value=value):
            return np.asarray(value)
        case ast.Name(id=name):
            return values[name]
        case ast.UnaryOp(op=op, operand=operand):
            value = _value(operand, values)
            return _signed(node, operator.neg, value) if isinstance(op, ast.USub) else value
        case ast.BinOp(left=left, op=op, right=right):
            return _computed(node, _ARITHMETIC[type(op)], _value(left, values), _value(right, values))
        case ast.Call(func=ast.Name(id=name), args=arguments):
            return _called(node, name, [_value(argument, values) for argument in arguments])
        case _:
            raise AssertionError(ast.dump(node))


def _called(node: ast.expr, name: str, arguments: list[_Array]) -> _Array:
    if name in ("max", "min"):
        return _folded(_FUNCTIONS[name], iter(arguments))
    (value,) = arguments
    if name in ("ceil", "floor") and value.dtype.kind == "i":
        return value
    if name == "abs":
        return _signed(node, np.abs, value)
    return _finite(np.asarray(_FUNCTIONS[name](value)))


def _computed(node: ast.BinOp, compute: Callable[[Any, Any], Any], left: _Array, right: _Array) -> _Array:
    """The operation on int64 or float64 arrays. Integer results where the module docstring says so, else float64."""
    if not _stays_whole(node.op, left, right):
        return _finite(np.asarray(compute(left.astype(np.float64), right.astype(np.float64))))
    if isinstance(node.op, ast.Mod):
        return left - left // right * right  # numpy divides by one number four times as fast as it computes `%`
    if _bound(node.op, left, right) < _MAX_VALUE:
        return np.asarray(compute(left, right))
    about = np.abs(np.asarray(compute(left.astype(np.float64), right.astype(np.float64))))
    if about.max(initial=0) >= _MAX_VALUE + _NEAR:
        _refuse_size(node, float(about.max()))
    exact = np.asarray(compute(left, right))  # does not overflow: it is far below 2**63
    if np.abs(exact).max(initial=0) >= _MAX_VALUE:
        _refuse_size(node, float(np.abs(exact).max()))
    return exact


def _stays_whole(op: ast.operator, left: _Array, right: _Array) -> bool:
    """Whether the operation on these arrays has integer results, by the rules of the module docstring."""
    if not left.dtype.kind == right.dtype.kind == "i" or isinstance(op, ast.Div):
        return False
    if isinstance(op, ast.Add | ast.Sub | ast.Mult):
        return True
    return right.ndim == 0 and bool(right >= 0 if isinstance(op, ast.Pow) else right != 0)


def _signed(node: ast.expr, compute: Callable[[Any], Any], value: _Array) -> _Array:
    """`-` or `abs`: only the smallest 64-bit number has no negation."""
    if value.dtype.kind == "i" and value.min(initial=0) == np.iinfo(np.int64).min:
        _refuse_size(node, 2.0**63)
    return _finite(np.asarray(compute(value)))


def _refuse_size(node: ast.expr, reached: float) -> NoReturn:
    raise ConfigError(
        f"expression: {_text(deepcopy(node))} reaches {reached:.3g}; integers must be below 2**62. Write `1.0 *` "
        "before its operands to compute in floats"
    )


def _bound(op: ast.operator, left: _Array, right: _Array) -> int:
    """Upper limit on the magnitude of integer results. Most operations need no exact check, which takes longer."""
    most, other = (max(abs(int(each.min(initial=0))), abs(int(each.max(initial=0)))) for each in (left, right))
    match op:
        case ast.Add() | ast.Sub():
            return most + other
        case ast.Mult():
            return most * other
        case ast.Pow():
            return max(most, 1) ** other if other < 64 else _MAX_VALUE
        case _:
            return most + 1


def _finite(value: _Array) -> _Array:
    """The value, with NaN for infinity."""
    if value.dtype.kind == "f" and not (finite := np.isfinite(value)).all():
        return np.where(finite, value, np.nan)
    return value


def _folded(join: Callable[[Any, Any], Any], arrays: Iterator[_Array]) -> _Array:
    out = next(arrays)
    for array in arrays:
        out = join(out, array)
    return out


def _number(column: _Array, text: str) -> _Array:
    """A column as int64 or float64, with NaN for missing values."""
    if column.dtype.kind == "f":
        return _finite(column.astype(np.float64, copy=False))
    assert column.dtype.kind in "iub", column.dtype
    if column.dtype == np.uint64 and column.max(initial=0) >= 2**63:
        raise ConfigError(f"expression {text!r}: a column holds {column.max()}; integers must be below 2**62")
    return column.astype(np.int64, copy=False)
