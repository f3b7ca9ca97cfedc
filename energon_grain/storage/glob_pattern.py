"""Shell patterns over relative paths with slashes."""

from __future__ import annotations

import re


def glob_to_regex(glob: str) -> str:
    """Translate one shell pattern; `*`, `?` and `[…]` stay inside a folder, `**/` stands for any number of folders."""
    out: list[str] = []
    place = 0
    while place < len(glob):
        if glob.startswith("**/", place):
            out.append("(?:[^/]+/)*")
            place += 3
        elif glob.startswith("**", place):
            out.append(".*")
            place += 2
        elif glob[place] in "*?":
            out.append("[^/]*" if glob[place] == "*" else "[^/]")
            place += 1
        elif glob[place] == "[" and (end := glob.find("]", place + 2 + glob.startswith(("!", "^"), place + 1))) > 0:
            choice = glob[place + 1 : end]
            inverted = choice[0] in "!^"
            letters = "".join(letter if letter == "-" else re.escape(letter) for letter in choice[inverted:])
            out.append(f"(?!/)[^{letters}]" if inverted else f"[{letters}]")
            place = end + 1
        else:
            out.append(re.escape(glob[place]))
            place += 1
    return "".join(out)
