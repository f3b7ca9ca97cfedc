from __future__ import annotations

import logging
from typing import Any

import pytest

from energon_grain import TextSample, log_exception


@pytest.mark.parametrize(
    ("dropped", "said"),
    [
        ({"__key__": "a/1"}, "sample 'a/1' was dropped: ValueError: no (from here)"),
        (TextSample(__key__="2", __restore_key__=(), text=""), "sample '2' was dropped"),
        ([{"__key__": "3"}, {"__key__": "4"}], "what was made of 2 samples, the first '3', was dropped"),
        ([], "an empty group was dropped"),
        (17, "a value without a key (int) was dropped"),
    ],
)
def test_what_was_dropped_is_named(dropped: Any, said: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "energon_grain"):
        log_exception(ValueError("no"), dropped, ["here"])
    assert caplog.records[0].getMessage().startswith(said)
