"""Texts of the data, as terminals and pages may have them."""

from __future__ import annotations


def visible(text: str, *, lines: bool = False) -> str:
    r"""A text with nothing in it that acts on a terminal or on the order of letters: such characters are written out.

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
