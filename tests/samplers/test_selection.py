"""Which samples are taken: conditions over columns against Python itself, and subsets against plain lists."""

from __future__ import annotations

import ast
import gc
import itertools
import math
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st

from energon_grain.errors import ConfigError, EmptyDatasetError
from energon_grain.samplers.expression import Expression, combine_expressions
from energon_grain.samplers.subset import Selection, Subset

NAN = float("nan")
COLUMNS: dict[str, np.ndarray[Any, Any]] = {
    "tokens": np.array([0, 7, 16, 300, 4096], np.uint16),
    "width": np.array([1, 640, 65_535, 10, 3], np.uint16),
    "score": np.array([0.5, NAN, 0.1, NAN, -1.0], np.float32),
    "bytes.jpg": np.array([2**31, 5, 6, 7, 8], np.int64),
    "hash": np.array([2**61 + 1, 2**61 + 2, 3, 4, 5], np.uint64),
    "bytes.0.jpg": np.array([1, 2, 3, 4, 5], np.int8),
}


def of(text: str) -> np.ndarray[Any, Any]:
    return Expression.parse(text, where="here").of(COLUMNS.__getitem__)


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("tokens >= 16 and width * width > 65536", [2]),  # uint16 would wrap around
        ("1 <= tokens < 300", [1, 2]),
        ("not 1 <= tokens < 300", [0, 3, 4]),
        ("tokens in [7, -1, 300.0]", [1, 3]),
        ("tokens not in (7, 300)", [0, 2, 4]),
        ("score > 0.3", [0]),
        ("not score > 0.3", [2, 4]),  # what is missing is neither
        ("score != 0.5", [2, 4]),
        ("not (score != 0.5)", [0]),
        ("score not in [0.5]", [2, 4]),
        ("not score in [0.5]", [2, 4]),
        ("isnan(score)", [1, 3]),
        ("not isnan(score) or tokens == 7", [0, 1, 2, 4]),
        ("not (score > 0.3 and tokens > 0)", [0, 2, 4]),  # row 3: missing and true is missing
        ("tokens", [1, 2, 3, 4]),
        ("not tokens", [0]),
        ("not score", []),
        ("score", [0, 2, 4]),
        ("1 / tokens > 0", [1, 2, 3, 4]),
        ("not 1 / tokens > 0", []),
        ("tokens % tokens == 0", [1, 2, 3, 4]),
        ("log(tokens) < 0 or isnan(log(tokens))", [0]),
        ("sqrt(score) > 0", [0, 2]),
        ("hash % 10 == 3", [0, 2]),  # a float of 2**61 + 1 has lost the last digits (2305843009213693953)
        ("hash == 2305843009213693953", [0]),
        ("bytes.jpg > 2 * 10**9", [0]),
        ('column("bytes.0.jpg") >= 4', [3, 4]),
        ("min(tokens, width, 5) == 5", [1, 2, 3]),
        ("max(score, 0) >= 0", [0, 2, 4]),
        ("ceil(width / 14) * 14 - width == 4", [1, 3]),
        ("abs(-tokens) // 2 ** 3 == 2", [2]),
        ("2 ** score > 1", [0, 2]),
        (" tokens\n  >= 16\n", [2, 3, 4]),
    ],
)
def test_holds_where_it_is_true(text: str, rows: list[int]) -> None:
    assert np.flatnonzero(Expression.parse(text, where="here").holds(COLUMNS.__getitem__)).tolist() == rows


def test_numbers_stay_whole_where_they_can() -> None:
    np.testing.assert_array_equal(of("tokens * width")[:3], [0, 4480, 16 * 65535])
    assert of("tokens ** 2 + 1 - width // 7 % 5").dtype == np.int64
    assert of("tokens + 0.0001 * tokens ** 2").dtype == np.float64
    assert of("tokens / 1").dtype == of("tokens // width").dtype == of("tokens ** width").dtype == np.float64
    assert of("tokens > 1").dtype == np.bool_
    assert np.isnan(of("score ** 0.5")[[1, 3, 4]]).all()


def test_only_results_that_are_too_large_are_refused() -> None:
    def found(text: str, *values: int) -> list[int]:
        return Expression.parse(text, where="here").of(lambda _: np.array(values, np.int64)).tolist()

    most = 2**62 - 1
    assert found("a + 1 - 1", most - 1, 1 - most) == [most - 1, 1 - most]
    assert found("a * 1", most, -most) == [most, -most]
    assert found("a ** 1 + 0", most, 3) == [most, 3]
    assert found("a % 10", 2**63 - 1, -(2**63)) == [7, 2]
    for text, value in (("a + 1", most), ("a - 1", -most), ("a * -1", 2**62), ("a // 1", 2**63 - 1), ("-a", -(2**63))):
        with pytest.raises(ConfigError, match=r"integers must be below 2\*\*62"):
            found(text, value)


@pytest.mark.parametrize("exponent", ["2", "3.0", "-2", "0.5", "-1.5", "7", "63.5", "0"])
def test_powers_by_halves_are_products_and_roots(exponent: str) -> None:
    values = np.array([1.5, 2.0, 4.0, 0.25, 1.0])
    found = Expression.parse(f"x ** {exponent}", where="here").of(lambda _: values)
    np.testing.assert_allclose(found, values ** float(exponent), rtol=1e-14)
    assert Expression.parse("x ** 3", where="here").of(lambda _: values)[0] == 3.375
    assert np.isnan(Expression.parse("x ** -0.5", where="here").of(lambda _: np.array([0.0, -1.0]))).all()


@pytest.mark.parametrize("text", ["a % 7 in [1, 2, 3] and a * b > 5", "a / b - 2", f"b not in {list(range(0, 99, 3))}"])
def test_many_rows_are_as_few(text: str) -> None:
    columns = {"a": np.arange(-20_000, 20_000, dtype=np.int32), "b": np.arange(40_000, dtype=np.float32) % 101}
    expression = Expression.parse(text, where="here")
    whole = expression.of(columns.__getitem__)
    cuts = [slice(at, at + 999) for at in range(0, 40_000, 999)]
    pieces = [expression.of(lambda name, cut=cut: columns[name][cut]) for cut in cuts]
    np.testing.assert_array_equal(whole, np.concatenate(pieces))
    if "%" in text:
        assert whole[:9].tolist() == [
            a % 7 in (1, 2, 3) and a * b > 5 for a, b in zip(range(-20_000, -19_991), range(9), strict=True)
        ]
    if "not in" in text:
        assert np.flatnonzero(~whole[:101]).tolist() == list(range(0, 99, 3))


@pytest.mark.parametrize(
    "listed",
    [
        [*range(100, 130), -5],
        [*range(0, 80, 2)],
        [n * 2**40 + 1 for n in range(-9, 40)],
        [n / 2 for n in range(50)],
        [-(2**61), *range(30), 2**61 + 1],
        [2**60 + 1, 0.5, 3.0],
        [0.5],
    ],
)
def test_a_number_is_in_a_list_as_python_says(listed: list[float]) -> None:
    near = [int(number) + step for number in listed for step in (-1, 0, 1)]
    rows = np.array([*near, 0, 99, 130, -(2**63), 2**63 - 1])
    expression = Expression.parse(f"a in {listed}", where="here")
    assert expression.holds(lambda _: rows).tolist() == [int(row) in listed for row in rows]
    floats = np.array([*map(float, near), 0.5, 99.25, 1e300, -1e300, 2.0**63, -(2.0**63), NAN])
    as_floats = list(map(float, listed))
    assert expression.holds(lambda _: floats).tolist() == [float(row) in as_floats for row in floats]
    others = Expression.parse(f"a not in {listed}", where="here").holds(lambda _: floats)
    assert others.tolist() == [float(row) not in as_floats and row == row for row in floats]


def test_text_is_normalised_and_names_are_found() -> None:
    flat = "a > 1 and b and c and d > 1"
    for text in (flat, f"(({flat}))", "(a>1 and b) and (c and(d>1))"):
        assert Expression.parse(text, where="here").text == flat
    assert Expression.parse("a<" * 4000 + "a", where="here").holds(lambda _: np.arange(3)).tolist() == [False] * 3
    long = "a" + ".b" * 900
    assert Expression.parse(f"{long} > 1", where="here").names == (long,)
    text = "not (a and not b) or ((c or d > 1) and e)"
    assert Expression.parse(text, where="here").text == text
    one = Expression.parse("(tokens>=16)and( a.b.c<column('x') or column('bytes.0.jpg')>1 )", where="here")
    assert one.text == str(one) == "tokens >= 16 and (a.b.c < x or column('bytes.0.jpg') > 1)"
    assert one.names == ("a.b.c", "bytes.0.jpg", "tokens", "x")
    assert Expression.parse(one.text, where="there") == one == pickle.loads(pickle.dumps(one))


def test_threads_read_expressions_at_the_same_time() -> None:
    """CPython 3.11 finds its own count of depth amiss, now and then, where several threads parse."""

    class Cycle:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:  # Python code amid the parsing of another tree: where threads take turns
            for _ in range(3):
                self.me = None

    def read(_: int) -> set[str]:
        found = set[str]()
        for _ in range(800):
            Cycle()
            found.add(Expression.parse("a > 1 and b < 2 or c in (1, 2, 3) and (d + 1) * 3 > 4", where="test").text)
        return found

    interval, thresholds = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(1e-6)
    gc.set_threshold(5)
    try:
        with ThreadPoolExecutor(4) as threads:
            assert len(set[str]().union(*threads.map(read, range(4)))) == 1
    finally:
        sys.setswitchinterval(interval)
        gc.set_threshold(*thresholds)


def test_combine_joins_by_and() -> None:
    one, other = (Expression.parse(text, where="here") for text in ("a > 1 or b > 1", "c == 2"))
    both = combine_expressions(one, other)
    assert both is not None
    assert both.text == "(a > 1 or b > 1) and c == 2"
    assert combine_expressions(None, one) == combine_expressions(one, None) == combine_expressions(one, one) == one
    assert combine_expressions(None, None) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tokens >> 3", r"character 1 .*not supported in an expression"),
        ("tokens > 3 and __import__('os').system('x')", r"character 16 \(\"__import__"),
        ("a.__class__.f()", "not supported"),
        ("(lambda: 1)() > tokens", "not supported"),
        ("[x for x in y]", "not supported"),
        ("f'{tokens}'", "not supported"),
        ("tokens > 3j", "not supported"),
        ("(a + b).c > 1", "a dot only joins"),
        ("tokens = 3", r"character 8.*=="),
        ("tokens > 3 &", "invalid syntax"),
        ("(a > 1) & (b > 1)", "write `and`"),
        ("tokens is 3", "write `==`"),
        ("tokens > 'x'", "columns hold numbers"),
        ("tokens > None", "columns hold numbers"),
        ("tokens > True", "columns hold numbers"),
        ("(tokens > 3) + 1", r"character 2.*expected a number, found a condition"),
        ("abs(tokens > 3)", "expected a number, found a condition"),
        ("tokens in 3", "list of numbers"),
        ("tokens in []", "list of numbers"),
        ("tokens in [width]", "list of numbers"),
        ("tokens in [not 1]", "list of numbers"),
        ("1 < tokens in [3]", "cannot be chained"),
        ("[1] < tokens", "only allowed after `in`"),
        ("max(tokens) > 1", "not a whole column"),
        ("abs(tokens, 2)", "takes one number"),
        ("abs(x=tokens)", "takes one number"),
        ("column(tokens)", "in quotation marks"),
        ("eval(tokens)", "not supported"),
        ("tokens > 1e999", "too large"),
        (f"tokens > {2**62}", "too large"),
        ("3 > 2", "uses no column"),
        ("   \n", "is empty"),
        ("tokens > 3 # and more\n and tokens < 5", "a comment hides"),
        ("a +" * 200 + "a", "nested deeper than 100"),
        ("-" * 9000 + "a", "nested"),
        ("(" * 300 + "a" + ")" * 300, "nested"),
        ("a + " * 3000 + "a", "the maximum is 10,000"),
        ("tokens\0", "null bytes"),
        ("tokens \ud800", "cannot be read"),
        (b"tokens", "expected the text"),
        (True, "expected the text"),
    ],
)
def test_refuses_what_is_no_expression(text: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"(?s)^where of /data.*{message}"):
        Expression.parse(text, where="where of /data")


@pytest.mark.parametrize("text", ["hash * hash", "10 ** 10 ** 10 > tokens", "bytes.jpg ** 3", "hash + hash + hash"])
def test_whole_numbers_never_wrap_around(text: str) -> None:
    with pytest.raises(ConfigError, match=r"integers must be below 2\*\*62.*1\.0"):
        of(text)
    if "hash" not in text:
        return
    assert (of(f"1.0 * {text.replace('* hash', '* 1.0 * hash').replace('+ hash', '+ 1.0 * hash')}") > 0).all()


@pytest.mark.parametrize("text", ["-n", "abs(n)", "1 - n"])
def test_the_least_number_has_no_opposite(text: str) -> None:
    least = np.array([5, -(2**63)])
    with pytest.raises(ConfigError, match=r"n\)? reaches 9\.22e\+18; integers must be below 2\*\*62"):
        Expression.parse(text, where="where").of(lambda name: least)
    assert (Expression.parse(f"{text} >= -5", where="where").of(lambda name: least[:1])).all()


# Random expressions against Python: three truth values there, NaN here.

_ARITHMETIC = ["+", "-", "*", "/", "//", "%"]
_SIGNS = ["<", "<=", ">", ">=", "==", "!="]
_numbers = st.deferred(
    lambda: st.one_of(
        st.sampled_from(["a", "b", "c.d"]),
        st.integers(-5, 20).map(str),
        st.sampled_from(["0.5", "2.25"]),
        st.tuples(_numbers, st.sampled_from(_ARITHMETIC), _numbers).map(lambda t: f"({' '.join(t)})"),
        st.tuples(st.sampled_from(["abs", "ceil", "floor", "-"]), _numbers).map(lambda t: f"{t[0]}({t[1]})"),
        st.tuples(st.sampled_from(["min", "max"]), _numbers, _numbers).map(lambda t: f"{t[0]}({t[1]}, {t[2]})"),
    )
)
_conditions = st.deferred(
    lambda: st.one_of(
        st.tuples(_numbers, st.sampled_from(_SIGNS), _numbers).map(lambda t: f"({' '.join(t)})"),
        st.tuples(_numbers, st.sampled_from(["in", "not in"])).map(lambda t: f"({t[0]} {t[1]} [1, 2, 0.5])"),
        _numbers.map(lambda n: f"isnan({n})"),
        st.tuples(_conditions, st.sampled_from(["and", "or"]), _conditions).map(lambda t: f"({' '.join(t)})"),
        _conditions.map(lambda c: f"(not {c})"),
    )
)
_values = st.one_of(st.integers(-3, 40).map(float), st.sampled_from([0.5, 1.25, NAN]))


def _python(text: str, row: dict[str, float]) -> bool | float | None:
    """True, False, None (missing) or a number: Kleene's logic, written down plainly."""

    def run(node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                return None if math.isnan(row[name]) else row[name]
            case ast.Attribute(attr=attr):
                return None if math.isnan(row[f"c.{attr}"]) else row[f"c.{attr}"]
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return None if (value := run(operand)) is None else -value
            case ast.UnaryOp(operand=operand):
                return None if (value := run(operand)) is None else not value
            case ast.BinOp(left=left, op=op, right=right):
                x, y = run(left), run(right)
                if x is None or y is None or (y == 0 and isinstance(op, ast.Div | ast.FloorDiv | ast.Mod)):
                    return None
                sign = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%"}
                return eval(f"x {sign[type(op)]} y")
            case ast.Call(func=ast.Name(id="isnan"), args=[argument]):
                return run(argument) is None
            case ast.Call(func=ast.Name(id=name), args=arguments):
                values = [run(argument) for argument in arguments]
                known = {"abs": abs, "ceil": math.ceil, "floor": math.floor, "min": min, "max": max}
                return None if None in values else known[name](*values)
            case ast.Compare(left=left, ops=[ast.In() | ast.NotIn() as op]):
                value = run(left)
                return None if value is None else (value in [1, 2, 0.5]) is isinstance(op, ast.In)
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                x, y = run(left), run(right)
                signs = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}
                return None if x is None or y is None else eval(f"x {signs[type(op)]} y")
            case ast.BoolOp(op=op, values=nodes):
                values = [run(value) for value in nodes]
                decides = isinstance(op, ast.Or)
                return decides if decides in values else None if None in values else not decides
            case _:
                raise AssertionError(ast.dump(node))

    return run(ast.parse(text, mode="eval").body)


@settings(max_examples=300, deadline=None)
@given(text=_conditions, rows=st.lists(st.tuples(_values, _values, _values), min_size=1, max_size=4))
def test_conditions_agree_with_three_valued_python(text: str, rows: list[tuple[float, float, float]]) -> None:
    text = f"{text} or a < -1000"
    columns = {name: np.array([row[i] for row in rows]) for i, name in enumerate(("a", "b", "c.d"))}
    expression = Expression.parse(text, where="here")
    expected = [_python(text, dict(zip(columns, row, strict=True))) is True for row in rows]
    assert expression.holds(columns.__getitem__).tolist() == expected
    assert Expression.parse(expression.text, where="here") == expression


@settings(max_examples=200, deadline=None)
@given(text=_numbers, rows=st.lists(st.tuples(_values, _values, _values), min_size=1, max_size=4))
def test_numbers_agree_with_python(text: str, rows: list[tuple[float, float, float]]) -> None:
    text = f"({text}) + 0 * d"
    columns = {name: np.array([row[i] for row in rows]) for i, name in enumerate(("a", "b", "c.d"))}
    columns["d"] = np.zeros(len(rows))
    given_rows = [dict(zip(columns, (*row, 0.0), strict=True)) for row in rows]
    found = Expression.parse(text, where="here").of(columns.__getitem__)
    expected = [value if (value := _python(text, row)) is not None else NAN for row in given_rows]
    np.testing.assert_allclose(found, np.array(expected, np.float64), rtol=1e-9, atol=1e-9)


@given(st.integers(1, 40), st.data())
def test_a_selection_is_the_list_of_kept_ranks(total: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, total))
    stop = data.draw(st.integers(start, total))
    excluded = data.draw(st.lists(st.integers(0, total - 1)))
    kept = [rank for rank in range(start, stop) if rank not in excluded]
    if not kept:
        with pytest.raises(EmptyDatasetError, match="is empty"):
            Selection(total, start=start, stop=stop, excluded=excluded)
        return
    check(Selection(total, start=start, stop=stop, excluded=excluded), kept)


def check(selection: Selection, kept: list[int]) -> None:
    """A selection, and its copy in another process, are the list of raw ranks."""
    for each in (selection, pickle.loads(pickle.dumps(selection))):
        assert len(each) == len(kept)
        assert each.to_raw(np.arange(len(kept))).tolist() == kept
        for first, stop in ((0, len(kept)), (len(kept) // 3, len(kept) // 2 + 1), (1, 0)):
            runs = each.raw_runs(first, stop)
            expected = kept[first:stop]
            assert bool(runs) or expected[-1] - expected[0] != len(expected) - 1
            assert not runs or expected == [number for run in runs for number in range(run.start, run.stop)]


@given(st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 600)), min_size=1, max_size=6), st.data())
def test_stretches_in_any_order(lengths: list[tuple[int, int]], data: st.DataObject) -> None:
    """Also those that overlap, are empty, or follow one another."""
    begin, length = (np.array(each, np.int64) for each in zip(*lengths, strict=True))
    numbers = [number for first, count in lengths for number in range(first, first + count)]
    start = data.draw(st.integers(0, len(numbers)))
    stop = data.draw(st.integers(start, len(numbers)))
    excluded = data.draw(st.sets(st.integers(0, len(numbers) - 1), max_size=3) if numbers else st.just(set[int]()))
    kept = [number for rank, number in enumerate(numbers) if start <= rank < stop and rank not in excluded]
    options: Any = {"start": start, "stop": stop, "excluded": [*excluded]}
    if not kept:
        with pytest.raises(EmptyDatasetError, match="is empty"):
            Selection.of_stretches(begin, begin + length, **options)
        return
    selection = Selection.of_stretches(begin, begin + length, **options)
    keep = np.array(kept) % 3 != 1
    for each, wanted in ((selection, kept), (selection.where(keep, {}), [n for n in kept if n % 3 != 1])):
        assert each.to_raw(np.arange(len(each))).tolist() == wanted
        assert pickle.loads(pickle.dumps(each)).to_raw(np.arange(len(each))).tolist() == wanted
        runs = each.raw_runs(0, len(each))
        assert not runs or [n for run in runs for n in range(run.start, run.stop)] == wanted


@given(st.integers(1, 700), st.integers(0, 100), st.data())
def test_a_bitmap_is_the_list_of_kept_ranks(total: int, percent: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, total - 1))
    stop = data.draw(st.integers(start + 1, total))
    excluded = data.draw(st.sets(st.integers(0, total - 1), max_size=3))
    ranks = [rank for rank in range(start, stop) if rank not in excluded]
    keep = np.random.default_rng(data.draw(st.integers(0, 99))).random(len(ranks)) * 100 < percent
    assume(keep.any())
    before = Selection(total, start=start, stop=stop, excluded=list(excluded))
    selection = before.where(keep, {"expression": "x"})
    check(selection, [rank for rank, kept in zip(ranks, keep.tolist(), strict=True) if kept])
    assert (selection.condition, before.condition) == ({"expression": "x"}, None)
    assert before.where(keep, {}).digest == selection.digest
    if not keep.all():
        assert before.where(~keep, {}).digest != selection.digest


def test_a_bitmap_holds_one_and_a_half_bits_a_sample() -> None:
    selection = Selection(10**6).where(np.arange(10**6) % 3 == 0, {})
    arrays = [getattr(selection, name) for name in Selection.__slots__]
    assert sum(each.nbytes for each in arrays if isinstance(each, np.ndarray)) * 8 <= 1.6 * 10**6
    assert len(pickle.dumps(selection)) * 8 <= 1.01 * 10**6


def test_the_whole_is_the_default() -> None:
    selection = Selection(5)
    assert len(selection) == 5
    assert selection.to_raw(np.array([[4, 0]])).tolist() == [[4, 0]]
    assert repr(selection) == "Selection(5, start=0, stop=5, samples=5)"


@pytest.mark.parametrize(
    ("start", "stop", "excluded"), [(-1, 3, []), (0, 6, []), (4, 3, []), (0, 5, [5]), (0, 5, [-1]), (0, 5, [2, 9])]
)
def test_what_does_not_exist_cannot_be_selected(start: int, stop: int, excluded: list[int]) -> None:
    with pytest.raises(ConfigError, match="5 samples"):
        Selection(5, start=start, stop=stop, excluded=excluded)


percents = st.tuples(st.integers(0, 1000), st.integers(0, 1000)).filter(lambda pair: pair[0] < pair[1])


def written(pair: tuple[int, int]) -> list[str]:
    return [f"{value / 10:.1f}%" for value in pair]


def test_ranges_compose_from_the_inside() -> None:
    assert Subset.parse(["20%", "80%"]).resolve(55) == (11, 44)
    leaf = Subset.parse({"range": [10, 30]})
    inside = leaf.within(Subset.parse(["20%", "80%"]))
    assert inside.resolve(55) == (14, 26)
    outer = Subset.parse(["25%", "75%"]).within(Subset.parse(["0%", "50%"]))
    assert leaf.within(Subset.parse(["20%", "80%"]).within(outer)).resolve(55) == (17, 20)
    assert Subset.parse([10, "end"]).resolve(55) == (10, 55)


@given(st.integers(1, 10_000), st.lists(percents, min_size=1, max_size=4), st.data())
def test_composition_takes_shares_of_what_is_left(
    total: int, levels: list[tuple[int, int]], data: st.DataObject
) -> None:
    """Naively: cut an interval level by level, innermost first, and round at the end."""
    absolute = data.draw(st.none() | st.tuples(st.integers(0, total - 1), st.integers(1, total)))
    if absolute is not None and absolute[0] >= absolute[1]:
        absolute = (absolute[1] - 1, absolute[1])
    start, stop = map(Fraction, absolute or (0, total))
    first = start
    subset = Subset() if absolute is None else Subset.parse(list(absolute))
    for level in levels:
        length = stop - start
        start, stop = start + length * Fraction(level[0], 1000), start + length * Fraction(level[1], 1000)
    outer = Subset()
    for level in reversed(levels):
        outer = Subset.parse(written(level)).within(outer)
    combined = subset.within(outer)
    assert combined.resolve(total) == (first + int(start - first), first + int(stop - first))


@given(percents, percents, percents)
def test_composition_is_associative(a: tuple[int, int], b: tuple[int, int], c: tuple[int, int]) -> None:
    inner, middle, outer = (Subset.parse(written(pair)) for pair in (a, b, c))
    assert inner.within(middle).within(outer) == inner.within(middle.within(outer))


@given(st.integers(1, 100_000), st.lists(st.integers(1, 999), min_size=1, max_size=5, unique=True))
def test_neighbouring_shares_leave_no_gap(total: int, cuts: list[int]) -> None:
    bounds = [0, *sorted(cuts), 1000]
    ranges = [Subset.parse(written(pair)).resolve(total) for pair in itertools.pairwise(bounds)]
    assert ranges[0][0] == 0
    assert ranges[-1][1] == total
    assert all(left[1] == right[0] for left, right in itertools.pairwise(ranges))


@pytest.mark.parametrize(
    "value",
    [
        [0, "50%"],
        ["50%", "end"],
        ["50%", 10],
        [5],
        [1, 2, 3],
        "10%",
        5,
        None,
        {"rang": [1, 2]},
        {"range": [1, 2], "more": 1},
        [3, 3],
        [5, 2],
        [-1, 2],
        ["50%", "50%"],
        ["60%", "50%"],
        ["0%", "101%"],
        ["-1%", "50%"],
        ["1/3%", "50%"],
        ["x%", "50%"],
        [0.5, 1],
        [True, 2],
        ["end", "end"],
        [1, "last"],
    ],
)
def test_what_is_no_range_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match="subset"):
        Subset.parse(value)


def test_an_absolute_range_is_only_for_a_single_dataset() -> None:
    with pytest.raises(ConfigError, match="percentages"):
        Subset.parse(["0%", "50%"]).within(Subset.parse([0, 10]))


def test_a_range_beyond_the_end_is_refused() -> None:
    with pytest.raises(ConfigError, match="only 20 samples"):
        Subset.parse([10, 21]).resolve(20)
    with pytest.raises(ConfigError, match="only 20 samples"):
        Subset.parse([21, "end"]).resolve(20)


def test_shares_are_exact() -> None:
    assert Subset.parse(["0%", "29%"]).resolve(100) == (0, 29)


@given(percents, percents)
def test_different_subsets_read_differently(a: tuple[int, int], b: tuple[int, int]) -> None:
    inner, outer = Subset.parse(written(a)), Subset.parse(written(b))
    assert (str(inner) == str(outer)) == (inner == outer)
    assert (str(inner.within(outer)) == str(inner)) == (inner.within(outer) == inner)


def test_subsets_read_like_what_was_written() -> None:
    assert str(Subset.parse([10, "end"])) == "[10, end]"
    assert str(Subset.parse(["12.5%", "80%"])) == "[12.5%, 80%]"
    assert str(Subset.parse([10, 30]).within(Subset.parse(["20%", "80%"]))) == "[20%, 80%] of [10, 30]"
