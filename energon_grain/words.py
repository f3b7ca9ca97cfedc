# SPDX-License-Identifier: Apache-2.0
"""Formatting for messages and reports: counts, sizes, tables and untrusted text."""

from __future__ import annotations

from collections.abc import Sequence


def plural(what: str) -> str:
    """Return the plural of a noun, or of the first noun in `row of cells`.

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
    """Return a number with its noun.

    >>> counted(1, "record batch"), counted(12_000, "record batch")
    ('1 record batch', '12,000 record batches')
    """
    return f"{number:,} {what if number == 1 else plural(what)}"


def table(rows: Sequence[Sequence[str]], alignment: str) -> list[str]:
    """Format rows of equal length as indented lines. Columns are aligned by `<` or `>`; cells are made printable.

    >>> table([("jpg", "9"), ("caption", "10")], "<>")
    ['  jpg       9', '  caption  10']
    """
    rows = [[visible(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    columns = list(zip(alignment, widths, strict=False))
    cells = ([f"{text:{side}{width}}" for text, (side, width) in zip(row, columns, strict=True)] for row in rows)
    return [f"  {'  '.join(row)}".rstrip() for row in cells]


def format_bytes(size_bytes: float) -> str:
    """Format a number of bytes with a decimal unit.

    >>> format_bytes(559_000_000)
    '559 MB'
    """
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size_bytes < 999.5 or unit == "TB":
            break
        size_bytes /= 1000
    return f"{size_bytes:.0f} {unit}" if size_bytes >= 99.5 or unit == "B" else f"{size_bytes:.3g} {unit}"


def binary_bytes(size_bytes: int) -> str:
    """Format a power of two in bytes with a binary unit.

    >>> binary_bytes(512), binary_bytes(1024)
    ('512 B', '1 KiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size_bytes < 1024 or unit == "TiB":
            break
        size_bytes //= 1024
    return f"{size_bytes} {unit}"


def visible(text: str, *, lines: bool = False) -> str:
    r"""Escape the characters of a text that affect a terminal or the text direction.

    >>> visible("a\x1b[31mb\n\u202ec")
    'a␛[31mb␊\\u202ec'
    """
    if text.isprintable():
        return text
    return "".join(map(_visible, text)) if not lines else "".join(c if c in "\n\t" else _visible(c) for c in text)


def _visible(character: str) -> str:
    if character.isprintable():
        return character
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    if character.isspace() and code not in (0x85, 0x2028, 0x2029):
        return " "
    return "␡" if code == 0x7F else f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
