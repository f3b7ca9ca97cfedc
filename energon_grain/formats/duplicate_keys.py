"""Refusing datasets in which two samples have the same key."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from energon_grain.errors import DuplicateKeyError

_LISTED = 5


class DuplicateKeys:
    """Samples that have the key of another one: how many, and the first few. Takes no memory for the others."""

    def __init__(self) -> None:
        self._count = 0
        self._listed: list[str] = []

    def add(self, count: int, examples: Iterable[tuple[bytes, str, str]]) -> None:
        """Note some of them.

        Args:
            count: How many.
            examples: Key and the names of both shards, of each; only as many are taken as are still to be listed.
        """
        self._count += count
        for key, one, other in islice(examples, _LISTED - len(self._listed)):
            places = f"{one} twice" if one == other else f"{one} and in {other}"
            self._listed.append(f"{key.decode('utf-8', 'backslashreplace')!r} in {places}")

    def refuse(self) -> None:
        """Do nothing if there are none.

        Raises:
            DuplicateKeyError: There are; lists a few of them with their shards.
        """
        if not self._count:
            return
        more = f" and {self._count - len(self._listed)} more" if self._count > len(self._listed) else ""
        raise DuplicateKeyError(
            f"{self._count} samples have the key of another one: {'; '.join(self._listed)}{more}. A key (the name of a "
            f"tar member up to the first dot of its last component) may occur once in a dataset, in adjacent members; "
            f"rename them, or let fix_duplicates (--fix-duplicates) put the path of its tar before the name of each"
        )
