"""Numbers of things in messages and answers."""

from __future__ import annotations


def plural(what: str) -> str:
    """Return the plural of a noun, or of the first one in `row of cells`.

    >>> plural("row group"), plural("record batch"), plural("run of samples"), plural("entry")
    ('row groups', 'record batches', 'runs of samples', 'entries')
    """
    noun, of, rest = what.partition(" of ")
    if noun.endswith(("s", "x", "z", "ch", "sh")):
        noun += "es"
    elif noun.endswith("y") and noun[-2:-1] not in ("a", "e", "o", "u"):
        noun = f"{noun[:-1]}ies"
    else:
        noun += "s"
    return f"{noun}{of}{rest}"


def counted(number: int, what: str) -> str:
    """Write a number of things.

    >>> counted(1, "record batch"), counted(12_000, "record batch")
    ('1 record batch', '12,000 record batches')
    """
    return f"{number:,} {what if number == 1 else plural(what)}"
