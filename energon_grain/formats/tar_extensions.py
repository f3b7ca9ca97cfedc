r"""Headers that describe the member after them: GNU long names and PAX records.

GNU: types `L` and `K` carry a name in their payload. PAX (POSIX.1-2017): types `x` and `g` carry records
`"<length> <keyword>=<value>\n"`. Of these only `path` and `size` matter here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from energon_grain.formats.tar_bytes import TarBytes
from energon_grain.formats.tar_header import (
    GNU_LONG_LINK,
    GNU_LONG_NAME,
    PAX_GLOBAL,
    PAX_MEMBER,
    PAX_SOLARIS,
)

EXTENSION_TYPES: Final = frozenset((GNU_LONG_NAME, GNU_LONG_LINK, PAX_MEMBER, PAX_SOLARIS, PAX_GLOBAL))
MAX_EXTENSION_BYTES: Final = 1 << 20
_MAX_CHAIN: Final = 64
_MAX_DIGITS: Final = 19


@dataclass(slots=True)
class Extension:
    """What the extension headers before one member say about it."""

    start: int  # offset of the first of them that belongs to the member
    headers: int = 0
    name: bytes | None = None
    link_name: bytes | None = None
    size: int | None = None
    sparse: bool = False

    def add(self, tar: TarBytes, offset: int, kind: int, payload: bytes) -> None:
        """Take in one extension header at `offset`. Where two say the same thing, the first counts, as in `tarfile`.

        Raises:
            TarError: The payload is not what its type demands, or a global header gives path or size of all members.
        """
        self.headers += 1
        if self.headers > _MAX_CHAIN:
            raise tar.error(offset, f"more than {_MAX_CHAIN} extension headers before one member", _RULE)
        if kind == GNU_LONG_NAME:
            self._name(tar, offset, payload.partition(b"\0")[0])
        elif kind == GNU_LONG_LINK:
            self.link_name = self.link_name or payload.partition(b"\0")[0]
        else:
            self._records(tar, offset, kind, payload)

    def _name(self, tar: TarBytes, offset: int, name: bytes) -> None:
        if not name or b"\0" in name:
            raise tar.error(offset, "an extension header gives an empty name, or one with a zero byte", _RULE)
        if self.name is None:
            self.name = name

    def _records(self, tar: TarBytes, offset: int, kind: int, payload: bytes) -> None:
        size: int | None = None
        path: bytes | None = None
        for keyword, value in _parse_records(tar, offset, payload):
            if keyword.startswith(b"GNU.sparse."):
                self.sparse = True
            elif keyword == b"path":
                path = value.rstrip(b"/")
            elif keyword == b"linkpath":
                self.link_name = self.link_name or value
            elif keyword == b"size":
                if not value.isdigit() or len(value) > _MAX_DIGITS:
                    raise tar.error(offset, f"a PAX header gives the size {value[:40]!r}", _RULE)
                size = int(value)
            else:
                continue
            if kind == PAX_GLOBAL:
                raise tar.error(
                    offset,
                    f"a global PAX header gives {keyword.decode('ascii', 'replace')!r} of all members",
                    "Only the PAX header of one member may do so: create the shard again.",
                )
        if path is not None:
            self._name(tar, offset, path)
        if size is not None and self.size is None:
            self.size = size


def _parse_records(tar: TarBytes, offset: int, payload: bytes) -> list[tuple[bytes, bytes]]:
    r"""Split a PAX payload into keywords and values.

    Example:
        `b"16 path=abc.jpg\n"` is 16 bytes long and gives `(b"path", b"abc.jpg")`.
    """
    records: list[tuple[bytes, bytes]] = []
    start = 0
    while start < len(payload):
        blank = payload.find(b" ", start, start + _MAX_DIGITS)
        digits = payload[start:blank] if blank > 0 else b""
        end = start + int(digits) if digits.isdigit() else 0
        keyword, equals, value = payload[blank + 1 : end - 1].partition(b"=")
        if not blank < end <= len(payload) or payload[end - 1 : end] != b"\n" or not (keyword and equals):
            raise tar.error(offset, f"byte {start} of a PAX header starts no record of '<length> <key>=<value>'", _RULE)
        records.append((keyword, value))
        start = end
    return records


_RULE: Final = "The shard is damaged: copy or create it again."
