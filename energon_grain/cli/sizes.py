"""Numbers as people read them."""

from __future__ import annotations


def format_bytes(size_bytes: float) -> str:
    """Write a number of bytes with a decimal unit.

    >>> format_bytes(559_000_000)
    '559 MB'
    """
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size_bytes < 999.5 or unit == "TB":
            break
        size_bytes /= 1000
    return f"{size_bytes:.0f} {unit}" if size_bytes >= 99.5 or unit == "B" else f"{size_bytes:.3g} {unit}"


def counted(number: int, what: str) -> str:
    """Write a number of things.

    >>> counted(1, "shard"), counted(12_000, "shard")
    ('1 shard', '12,000 shards')
    """
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"
