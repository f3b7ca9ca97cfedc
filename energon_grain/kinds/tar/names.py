# SPDX-License-Identifier: Apache-2.0
"""Determines which tar members are parts of samples, and splits their names into key and part.

A member `d.x/000.seg.png` is part `seg.png` of the sample with the key `d.x/000`: the last path component is split at
its first dot. Members that do not match are ignored, like everything in a root folder such as `__meta__/`.

| name                               | key, part                                                          |
|------------------------------------|--------------------------------------------------------------------|
| `a.b.jpg`                          | `a`, `b.jpg`                                                       |
| `./d/a.jpg`                        | `./d/a`, `jpg` (paths are not normalised)                          |
| `a.`                               | `a`, the empty part                                                |
| `noext`, `.h.jpg`, `d.x/.h.jpg`    | ignored                                                            |
| `__meta__/x.txt`, `__x__`          | ignored; `__x__.json` and `d/__meta__/x.txt` are parts             |
| `d/.h.jpg`                         | ignored with `hidden="skip"`; `d/`, `h.jpg` with `hidden="keep"`   |

The last line is a quirk of Energon's rule, implemented only to match indices that Energon wrote.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

Hidden = Literal["skip", "keep"]

_DOT, _SLASH, _NEWLINE, _UNDERSCORE = b"./\n_"


def split_member_name(name: str, *, hidden: Hidden = "skip") -> tuple[str, str] | None:
    """Split the name of a regular tar member into key and part; None if the member is not a part of a sample.

    The table in this module's docstring shows the effect of `hidden` on files such as `d/.h.jpg`.
    """
    raw = name.encode("utf-8", "surrogateescape")
    dot = part_dot(raw, hidden)
    if dot < 0:
        return None
    return raw[:dot].decode("utf-8", "surrogateescape"), raw[dot + 1 :].decode("utf-8", "surrogateescape")


def part_dot(name: bytes, hidden: Hidden) -> int:
    """Return the position of the dot between key and part, or -1 if the member is not a part of a sample."""
    if name.startswith(b"__") and _in_reserved_folder(name):
        return -1
    stem = name.rfind(b"/") + 1
    dot = name.find(b".", stem)
    if dot < 0 or (dot == stem and hidden == "skip"):
        return -1
    if dot > stem and _NEWLINE not in name:
        return dot
    # Energon's complete rule: the key is a folder prefix on the first line of the name (may be empty, may contain
    # dots), then at least one byte without a dot. Only hidden files and line breaks distinguish it from the simple one.
    previous_dot = name.rfind(b".", 0, dot)
    first_line_end = name.find(b"\n")
    folders_end = first_line_end if first_line_end >= 0 else dot
    if previous_dot < 0:
        return dot if dot > 0 else -1
    slash = name.find(b"/", previous_dot, folders_end)
    return dot if 0 <= slash < dot - 1 else -1


def part_dots(names: npt.NDArray[np.uint8], hidden: Hidden) -> npt.NDArray[np.int64]:
    """(n,) position of the dot that `part_dot` finds, for many names at once; -1 for members that are not parts.

    Names are (n, w) bytes, each padded with zeros; the last column is all zeros.
    """
    rows, raw = np.arange(len(names)), names.tobytes()
    is_dot = names == _DOT
    stem = np.zeros(len(names), np.int64)
    if b"/" in raw:
        is_slash = names == _SLASH
        has_slash = is_slash.any(axis=1)
        stem = np.where(has_slash, names.shape[1] - is_slash[:, ::-1].argmax(axis=1), 0)
        is_dot &= np.arange(names.shape[1]) >= stem[:, None]
    dots = is_dot.argmax(axis=1)
    odd = is_dot[rows, stem]  # hidden files
    odd |= (names[:, 0] == _UNDERSCORE) & (names[:, 1] == _UNDERSCORE)
    if b"\n" in raw:
        odd |= (names == _NEWLINE).any(axis=1)
    dots[~is_dot[rows, dots]] = -1
    for row in np.flatnonzero(odd):
        dots[row] = part_dot(names[row].tobytes().rstrip(b"\0"), hidden)
    return dots


def _in_reserved_folder(name: bytes) -> bool:
    """Whether the first path component has the form `__…__`."""
    first, slash, _ = name.partition(b"/")
    if not slash and first.endswith(b"\n"):  # Energon's pattern allows one line break at the end
        first = first[:-1] if first[:-1].endswith(b"__") else first
    return len(first) >= 4 and first.endswith(b"__")
