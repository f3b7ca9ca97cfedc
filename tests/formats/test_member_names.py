from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from energon_grain.formats.tar.names import Hidden, part_dot, part_dots, split_member_name

NAMES = st.text(st.sampled_from("a_./.b\n"), min_size=1, max_size=12)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.jpg", ("a", "jpg")),
        ("a.b.jpg", ("a", "b.jpg")),
        ("d.x/a.b.c", ("d.x/a", "b.c")),
        ("./d/a.jpg", ("./d/a", "jpg")),
        ("a.", ("a", "")),
        ("/a.txt", ("/a", "txt")),
        ("ü/日本.jpg", ("ü/日本", "jpg")),
        ("\udcff.jpg", ("\udcff", "jpg")),
        ("noext", None),
        ("d/noext", None),
        (".hidden.jpg", None),
        ("d.x/.hidden.jpg", None),
        ("d/.hidden.jpg", None),
        ("__meta__/x.txt", None),
        ("__x__", None),
        ("____/x.txt", None),
        ("__x__.json", ("__x__", "json")),
        ("___/x.txt", ("___/x", "txt")),
        ("d/__meta__/x.txt", ("d/__meta__/x", "txt")),
        ("_x__/x.txt", ("_x__/x", "txt")),
    ],
)
def test_splits_names(name: str, expected: tuple[str, str] | None) -> None:
    assert split_member_name(name) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("d/.hidden.jpg", ("d/", "hidden.jpg")),
        ("x/y/.h.jpg", ("x/y/", "h.jpg")),
        ("x.z/y/.h.jpg", ("x.z/y/", "h.jpg")),
        ("a//.h.jpg", ("a//", "h.jpg")),
        (".hidden.jpg", None),
        ("d.x/.hidden.jpg", None),
        ("y/x.z/.h.jpg", None),
        ("./.h.jpg", None),
    ],
)
def test_keeps_hidden_files_as_energon_does(name: str, expected: tuple[str, str] | None) -> None:
    assert split_member_name(name, hidden="keep") == expected
    assert split_member_name(name, hidden="skip") is None


def energon_split(name: str) -> tuple[str, str] | None:
    """Energon's rule by brute force: a folder prefix on the first line, a stem without dots, a dot, no more slashes."""
    first, slash, _ = name.partition("/")
    for end in ("", "\n") if not slash else ("",):
        if first.endswith("__" + end) and first.startswith("__") and len(first) - len(end) >= 4:
            return None
    for dot in (i for i, letter in enumerate(name) if letter == "." and "/" not in name[i:]):
        for start in (i for i in range(dot) if i == 0 or (name[i - 1] == "/" and "\n" not in name[:i])):
            if "." not in name[start:dot]:
                return name[:dot], name[dot + 1 :]
    return None


@given(NAMES)
def test_keep_is_energons_rule_and_skip_is_it_without_hidden_files(name: str) -> None:
    kept = energon_split(name)
    hidden = name.rpartition("/")[2].startswith(".")
    assert split_member_name(name, hidden="keep") == kept
    assert split_member_name(name, hidden="skip") == (None if hidden else kept)


@given(st.lists(NAMES, min_size=1, max_size=20), st.sampled_from(["skip", "keep"]))
def test_many_names_at_once_are_split_as_one(names: list[str], hidden: Hidden) -> None:
    raw = [name.encode() for name in names]
    padded = np.zeros((len(raw), 16), np.uint8)
    for row, name in enumerate(raw):
        padded[row, : len(name)] = np.frombuffer(name, np.uint8)
    assert part_dots(padded, hidden).tolist() == [part_dot(name, hidden) for name in raw]
