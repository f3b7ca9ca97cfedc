"""Writes docs/reference/energon-names.md: each public name of Megatron-Energon, ours, and how the two differ.

    python tests/write_energon_names.py

The names and Energon's signatures are fixtures, our signatures are read from the two packages, and the tests of
Energon that fail are those of `interop/energon_suite.json`. The notes and reasons are in
`fixtures/energon_notes.toml`: a difference without a reason is an error, and so is a reason without a difference.
`docs/test_energon_names.py` compares the page.
"""

from __future__ import annotations

import json
import sys
import tomllib
from collections import defaultdict
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[1]
sys.path[:0] = [str(REPOSITORY / folder) for folder in ("", "adapters", "tests")]
from energon_signatures import BACKENDS, FIXTURES, Tokens, all_differences, energon_names  # noqa: E402

PAGE = REPOSITORY / "docs" / "reference" / "energon-names.md"
NOTES = FIXTURES / "energon_notes.toml"
SUITE = REPOSITORY / "tests" / "interop" / "energon_suite.json"
TESTS_OF_ENERGON = 138

OPENING = """\
<!-- Written by `python tests/write_energon_names.py` from tests/fixtures/energon_notes.toml. -->

# Names of Energon

All public names of Energon 7.4.1, and the differences of their signatures.
[Coming from Energon](../coming-from-energon.md) explains how to move a program.

## Every name

*The same* means the same name in `energon_grain` and in `energon_grain_torch`.

| Energon | energon-grain | note |
|---|---|---|
"""
SIGNATURES = """
## Every signature

A call with Energon's arguments works unchanged, except for these differences. `-name` is an argument, method or
attribute of Energon that is missing, `+name` an extra argument, `name=…` another default, `name?` an argument that only
Energon requires, `name!` one that only energon-grain requires, and `name@` one to pass by name. A subclass inherits the
differences of its base class. Names that start with an underscore are not compared.

| name | difference | reason |
|---|---|---|
"""
TESTS = """
## Energon's own tests

Of the {all} tests of Energon, run unchanged against energon-grain, {passed} pass. These fail:

| tests | reason |
|---|---|
"""


def page() -> str:
    """Return the text of the page. Raises KeyError for a difference that has no reason."""
    notes = tomllib.loads(NOTES.read_text(encoding="utf-8"))
    here, said = _replacements(notes["name"])
    same = energon_names() - here.keys()
    rows = [
        f"| `{name}` | {here.get(name, 'the same')} | {'; '.join(said[name])} |".replace("|  |", "| |")
        for name in sorted(energon_names())
    ]
    found: dict[str, set[str]] = defaultdict(set)
    for backend in BACKENDS:
        for name, tokens in all_differences(backend, same).items():
            found[name] |= tokens
    failing = [each for tests in json.loads(SUITE.read_text(encoding="utf-8")).values() for each in tests.items()]
    return "\n".join(
        [
            OPENING + "\n".join(rows),
            SIGNATURES + "\n".join(_signatures(found, notes["signature"])),
            TESTS.format(all=TESTS_OF_ENERGON, passed=TESTS_OF_ENERGON - len(failing))
            + "\n".join(f"| {_code(tests)} | {reason} |" for reason, tests in _by_reason(failing).items()),
            "",
        ]
    )


def _replacements(rows: list[dict[str, Any]]) -> tuple[dict[str, str], Tokens]:
    """The replacements of names that we lack, and the notes of each name."""
    here: dict[str, str] = {}
    said: Tokens = defaultdict(list)
    for row in rows:
        for name in row["names"]:
            if name not in energon_names():
                raise KeyError(f"{NOTES.name}: Energon has no {name!r}")
            if "here" in row:
                here[name] = row["here"] if row["here"] == "—" else f"`{row['here'].replace('*', name)}`"
            if "note" in row:
                said[name].append(row["note"])
    return here, said


def _signatures(found: dict[str, set[str]], rows: list[dict[str, Any]]) -> list[str]:
    """One row for each name and reason."""
    given = {
        (name, token): (place, row["reason"])
        for place, row in enumerate(rows)
        for name in row["names"]
        for token in row["differences"].split()
    }
    different = {(name, token) for name, tokens in found.items() for token in tokens}
    if given.keys() != different:
        raise KeyError(
            f"{NOTES.name}: differences without a reason: {sorted(different - given.keys())}; "
            f"reasons without a difference: {sorted(given.keys() - different)}"
        )
    grouped: dict[tuple[str, int, str], list[str]] = defaultdict(list)
    for name, token in given:
        grouped[(name, *given[name, token])].append(token)
    return [f"| `{name}` | {_code(tokens, ' ')} | {reason} |" for (name, _, reason), tokens in sorted(grouped.items())]


def _by_reason(tests: list[tuple[str, str]]) -> Tokens:
    grouped: Tokens = defaultdict(list)
    for test, reason in sorted(tests):
        grouped[reason].append(test)
    return grouped


def _code(names: list[str], separator: str = ", ") -> str:
    return separator.join(f"`{name}`" for name in names)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
