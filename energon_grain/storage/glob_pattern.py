"""Shell patterns over relative paths with slashes."""

from __future__ import annotations

import re


def glob_to_regex(glob: str) -> str:
    """Translate one shell pattern; `*`, `?` and `[…]` stay inside a folder, `**/` stands for any number of folders."""
    return "".join(regex for regex, _ in _signs(glob))


def folders_of_glob(glob: str) -> str:
    """A regular expression for the folders, each with a slash behind it, in which something may match a pattern.

    >>> folders_of_glob("sub/*/x.tar")
    'sub/|sub/[^/]*/'
    """
    signs = _signs(glob)
    return "|".join("".join(regex for regex, _ in signs[: at + 1]) for at, (_, slash) in enumerate(signs) if slash)


def _signs(glob: str) -> list[tuple[str, bool]]:
    """What each sign of a pattern means as a regular expression, and whether that can match a slash."""
    out: list[tuple[str, bool]] = []
    place = 0
    while place < len(glob):
        if glob.startswith("**/", place):
            out.append(("(?:[^/]+/)*", True))
            place += 3
        elif glob.startswith("**", place):
            out.append((".*", True))
            place += 2
        elif glob[place] in "*?":
            out.append(("[^/]*" if glob[place] == "*" else "[^/]", False))
            place += 1
        elif glob[place] == "[" and (end := glob.find("]", place + 2 + glob.startswith(("!", "^"), place + 1))) > 0:
            choice = glob[place + 1 : end]
            inverted = choice[0] in "!^"
            letters = "".join(letter if letter == "-" else re.escape(letter) for letter in choice[inverted:])
            out.append((f"(?!/)[^{letters}]", False) if inverted else (f"[{letters}]", True))
            place = end + 1
        else:
            out.append((re.escape(glob[place]), glob[place] == "/"))
            place += 1
    return out
