"""Expressions over columns against an oracle that computes one sample at a time, in Python's own numbers.

The rule that both follow is in docs/how-to/columns.md: whatever is not finite is missing, what is computed with a
missing number is missing, and a comparison with it is neither true nor false.
"""

from __future__ import annotations

import ast
import math
import operator
import os
import random
from collections.abc import Callable
from typing import Any

import numpy as np

from energon_grain.errors import ConfigError
from energon_grain.samplers.expression import Expression

EXPRESSIONS = int(os.environ.get("EXPRESSIONS", "1000"))
INF, NAN = math.inf, math.nan
LARGEST = 2**62
COLUMNS: dict[str, np.ndarray[Any, Any]] = {
    "wide": np.array(
        [-(2**63), 2**63 - 1, 2**62, 2**62 - 1, 1 - 2**62, -(2**62), 2**53 + 1, -(2**53) - 1, 2**31, -1, 0, 1], np.int64
    ),
    "id": np.array([2**63 - 1, 2**62 - 200, 2**61, 2**61 + 1, 3, 2, 1, 0, 10**18, 7, 12, 2**53], np.uint64),
    "small": np.array([0, 255, 1, 7, 16, 2, 3, 64, 100, 5, 128, 9], np.uint8),
    "flag": np.array([0, 1] * 6, np.bool_),
    "score": np.array([INF, -INF, NAN, 0.5, -0.0, 0.0, 1.0, 2.0**62, 1e308, -5e-324, 3.0, 2.0**53]),
    "part.ratio": np.array([1.0, INF, 0.25, NAN, -1.5, 1e30, -INF, 0.0, 2.0, 16.0, -8.0, 3.4e38], np.float32),
}
ROWS = len(COLUMNS["wide"])
LITERALS = ("0", "1", "2", "3", "7", "10", "0.5", "1.0", "2.5", "1e308", "2.0", str(2**53), str(2**62 - 1))
Number = int | float | None
"""None: it is missing."""


class TooLarge(Exception):
    """A whole result that is refused."""


def finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def whole(number: int) -> int:
    if abs(number) >= LARGEST:
        raise TooLarge
    return number


def power(base: float, exponent: float, literal: bool) -> float:
    """By products and roots where the module promises the same bits everywhere."""
    halves = 2 * abs(exponent)
    if not literal or not 0 < halves <= 128 or not halves.is_integer():
        return float(np.power(np.array([base]), np.array([exponent]))[0])
    factors, root = divmod(int(halves), 2)
    result = (math.sqrt(base) if base >= 0 else NAN) if root else 1.0
    while factors:
        result, base, factors = result * base if factors % 2 else result, base * base, factors // 2
    return 1 / result if exponent < 0 else result


INTEGERS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod, ast.Pow: operator.pow,
}  # fmt: skip
FLOATS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip
COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}  # fmt: skip
FUNCTIONS: dict[str, Callable[[float], float]] = {
    "ceil": lambda x: float(np.ceil(x)),
    "floor": lambda x: float(np.floor(x)),
    "sqrt": lambda x: math.sqrt(x) if x >= 0 else NAN,
    "log": lambda x: float(np.log(np.array([x]))[0]) if x > 0 else NAN,
}


class Oracle:
    """One sample: whole columns are ints, others floats."""

    def __init__(self, row: int) -> None:
        self._row = row

    def number(self, node: ast.expr) -> Number:
        match node:
            case ast.Constant(value=value):
                return value  # type: ignore[return-value]
            case ast.Name() | ast.Attribute():
                value = COLUMNS[ast.unparse(node)][self._row].item()
                return finite(value) if isinstance(value, float) else int(value)
            case ast.UnaryOp(op=op, operand=operand):
                return self._signed(operand, operator.neg if isinstance(op, ast.USub) else operator.pos)
            case ast.BinOp(left=left, op=op, right=right):
                literal = not any(map(ast.unparse(right).__contains__, COLUMNS))
                return self._operation(op, self.number(left), self.number(right), literal)
            case ast.Call(func=ast.Name(id="abs"), args=[operand]):
                return self._signed(operand, abs)
            case ast.Call(func=ast.Name(id="max" | "min" as name), args=operands):
                return self._extreme(max if name == "max" else min, [self.number(each) for each in operands])
            case ast.Call(func=ast.Name(id=name), args=[operand]):
                value = self.number(operand)
                if value is None or (isinstance(value, int) and name in ("ceil", "floor")):
                    return value
                return finite(FUNCTIONS[name](float(value)))
            case _:
                raise AssertionError(ast.dump(node))

    def _signed(self, operand: ast.expr, of: Callable[[Any], Any]) -> Number:
        value = self.number(operand)
        if isinstance(value, int) and value == -(2**63) and of is not operator.pos:
            raise TooLarge
        return None if value is None else of(value)

    @staticmethod
    def _operation(op: ast.operator, left: Number, right: Number, literal: bool) -> Number:
        if left is None or right is None:
            return None
        if isinstance(left, int) and isinstance(right, int) and not isinstance(op, ast.Div):
            fits = isinstance(op, ast.Add | ast.Sub | ast.Mult) or (
                literal and (right >= 0 if isinstance(op, ast.Pow) else right != 0)
            )
            if fits:
                return whole(INTEGERS[type(op)](left, right))
        try:
            if isinstance(op, ast.Pow):
                return finite(power(float(left), float(right), literal))
            return finite(FLOATS[type(op)](float(left), float(right)))
        except (ZeroDivisionError, OverflowError):
            return None

    @staticmethod
    def _extreme(of: Callable[[Any], Any], values: list[Number]) -> Number:
        known = [value for value in values if value is not None]
        if len(known) < len(values):
            return None
        return of(known) if all(isinstance(value, int) for value in known) else of(map(float, known))

    def holds(self, node: ast.expr) -> bool | None:
        """Kleene's logic; None: not known."""
        match node:
            case ast.UnaryOp(op=ast.Not()):
                inner = self.holds(node.operand)
                return None if inner is None else not inner
            case ast.BoolOp(op=op, values=values):
                return self._joined([self.holds(each) for each in values], isinstance(op, ast.Or))
            case ast.Compare(left=left, ops=ops, comparators=others):
                sides = [left, *others]
                pairs = zip(ops, sides[:-1], others, strict=True)
                return self._joined([self._compared(op, one, other) for op, one, other in pairs], False)
            case ast.Call(func=ast.Name(id="isnan"), args=[operand]):
                return self.number(operand) is None
            case _:
                value = self.number(node)
                return None if value is None else value != 0

    @staticmethod
    def _joined(values: list[bool | None], decides: bool) -> bool | None:
        return decides if decides in values else None if None in values else not decides

    def _compared(self, op: ast.cmpop, left: ast.expr, right: ast.expr) -> bool | None:
        value = self.number(left)
        if isinstance(right, ast.List):
            listed = [ast.literal_eval(each) for each in right.elts]
            found = value in listed if isinstance(value, int) else value in map(float, listed)
            return None if value is None else found is isinstance(op, ast.In)
        other = self.number(right)
        if value is None or other is None:
            return None
        if isinstance(value, float) or isinstance(other, float):
            value, other = float(value), float(other)
        return COMPARISONS[type(op)](value, other)


class Writer:
    """Writes random expressions."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def number(self, depth: int) -> str:
        pick = self._random.random()
        if depth == 0 or pick < 0.25:
            return self._random.choice([*COLUMNS, *COLUMNS, *LITERALS])
        inner = self.number(depth - 1)
        if pick < 0.6:
            return f"({inner} {self._random.choice(('+', '-', '*', '/', '//', '%'))} {self.number(depth - 1)})"
        if pick < 0.7:
            return f"({inner} ** {self._random.choice(('0', '1', '2', '3', '0.5', '-1', '-1.5', '0.3', 'small'))})"
        if pick < 0.8:
            return f"{self._random.choice(('max', 'min'))}({inner}, {self.number(depth - 1)})"
        if pick < 0.9:
            return f"{self._random.choice(('abs', 'ceil', 'floor', 'log', 'sqrt'))}({inner})"
        return f"(-{inner})"

    def condition(self, depth: int) -> str:
        pick = self._random.random()
        if depth and pick < 0.25:
            return f"({self.condition(depth - 1)} {self._random.choice(('and', 'or'))} {self.condition(depth - 1)})"
        if depth and pick < 0.35:
            return f"(not {self.condition(depth - 1)})"
        value = self.number(depth)
        if pick < 0.4:
            return value
        if pick < 0.5:
            return f"isnan({value})"
        if pick < 0.6:
            listed = ", ".join(self._random.sample([*LITERALS, "-1", "16", "-0.0"], self._random.choice((1, 3, 15))))
            return f"{value} {self._random.choice(('in', 'not in'))} [{listed}]"
        signs = [self._random.choice(("<", "<=", ">", ">=", "==", "!=")) for _ in range(1 + (pick > 0.9))]
        return value + "".join(f" {sign} {self.number(depth - 1 if depth else 0)}" for sign in signs)


def by_oracle(text: str) -> list[bool] | None:
    """For which samples it is true; None: it is refused."""
    tree = ast.parse(text, mode="eval").body
    try:
        return [Oracle(row).holds(tree) is True for row in range(ROWS)]
    except TooLarge:
        return None


def by_library(expression: Expression) -> list[bool] | None:
    try:
        return expression.holds(COLUMNS.__getitem__).tolist()
    except ConfigError as error:
        if "integers must be below 2**62" not in str(error):
            raise
        return None


def test_conditions_hold_where_the_oracle_says() -> None:
    writer = Writer(seed=0)
    refused = checked = 0
    with np.errstate(all="ignore"):
        while checked < EXPRESSIONS:
            text = writer.condition(3)
            if any(map(text.__contains__, COLUMNS)):
                ours = by_library(Expression.parse(text, where="here"))
                assert ours == by_oracle(text), text
                checked, refused = checked + 1, refused + (ours is None)
    assert 0 < refused < checked / 2
