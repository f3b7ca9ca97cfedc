from __future__ import annotations

from energon_grain.errors import ConfigError
from energon_grain.migration.finding import Finding, merge_alike, refusal


def test_those_alike_are_merged() -> None:
    def at(where: str, what: str = "It is old.") -> Finding:
        return Finding(severity="note", where=where, what=what, here="read")

    first, other = merge_alike([at("a"), at("b"), at("x", "It is new."), at("c"), at("d"), at("e")])
    assert (first.where, first.what) == ("a", "It is old. The same at 4 more: b, c, d, ….")
    assert other == at("x", "It is new.")


def test_messages_do_not_repeat_the_place() -> None:
    assert refusal("a.yaml", ConfigError("a.yaml: is wrong")).what == "is wrong"
