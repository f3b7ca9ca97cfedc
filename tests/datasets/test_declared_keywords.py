from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from energon_grain import ConfigError
from energon_grain.datasets.declared_keywords import call_declared, declared_keywords


def some(first: int, second: int = 2, *, third: int = 3) -> tuple[int, int, int]:
    return first, second, third


def every(**keywords: int) -> dict[str, int]:
    return keywords


class Holder:
    def method(self, *, third: int) -> int:
        return third


GIVEN = {"second": 20, "third": 30, "fourth": 40}


def test_only_what_is_declared_is_passed() -> None:
    assert declared_keywords(some, GIVEN) == {"second": 20, "third": 30}
    assert declared_keywords(Holder().method, GIVEN) == {"third": 30}
    assert declared_keywords(every, GIVEN) == GIVEN
    assert declared_keywords(partial(some, third=1), GIVEN) == {"second": 20, "third": 30}
    assert call_declared(some, 1, **GIVEN) == (1, 20, 30)
    assert call_declared(lambda first: first, 1, **GIVEN) == 1


def test_what_must_not_be_lost() -> None:
    assert call_declared(some, 1, asked=["third"], **GIVEN) == (1, 20, 30)
    with pytest.raises(ConfigError, match=r"some does not take fourth=40, which was asked for; declare fourth there"):
        call_declared(some, 1, asked=["third", "fourth"], **GIVEN)

    def positional_only(first: Any, second: Any, /) -> None: ...

    with pytest.raises(ConfigError, match=r"second=20"):
        call_declared(positional_only, 1, asked=["second"], **GIVEN)
