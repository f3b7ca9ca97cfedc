"""Which version of each object a reader reads: its size and its generation.

The first time that an object is asked for, its version is learnt. From then on every answer must be of that version.
"""

from __future__ import annotations

from dataclasses import dataclass

from energon_grain.errors import MissingObjectError, RangeError, StaleIndexError
from energon_grain.storage.object_client import ObjectClient, ObjectRange
from energon_grain.storage.object_stores import Fetched

_ADVICE = "begin anew, and let nothing write to a dataset that is being read"


@dataclass(frozen=True, slots=True)
class Version:
    """What is known of an object.

    Attributes:
        size_bytes: Of the object.
        generation: Changes whenever the object does.
    """

    size_bytes: int
    generation: bytes


class ObjectVersions:
    """The versions of the objects that a reader reads.

    Args:
        client: Asks for them.
    """

    def __init__(self, client: ObjectClient) -> None:
        self._client = client
        self._known: dict[str, Version] = {}

    def read(self, path: str, version: Version, start: int, stop: int) -> bytes:
        """Read bytes [start, stop) of a version, past the cache.

        Raises:
            MissingObjectError: It is gone.
            RangeError: It ends before.
            ReadError: It cannot be read.
            StaleIndexError: It was replaced.
        """
        try:
            fetched = _there(path, self._client.read(ObjectRange(path, start, stop)))
        except RangeError as error:
            if stop > version.size_bytes:
                raise
            raise StaleIndexError(f"{error}; it was replaced by a shorter one while it was read; {_ADVICE}") from error
        if fetched.generation != version.generation:
            raise _changed(path, version.generation, fetched.generation)
        return b"" if fetched.data is None else fetched.data

    def known(self, path: str) -> Version | None:
        """What was learnt of an object."""
        return self._known.get(path)

    def of(self, path: str) -> Version:
        """Size and generation of an object, learnt once. Raises ReadError when there is none."""
        known = self._known.get(path)
        return self._learn(path, self._measured(path)) if known is None else known

    def expect(self, path: str, size_bytes: int, generation: bytes) -> None:
        """Read an object in this version only, which somebody else learnt: nothing is asked.

        Raises:
            StaleIndexError: It has been read in another version.
        """
        self._learn(path, Version(size_bytes, generation))

    def _learn(self, path: str, version: Version) -> Version:
        known = self._known.setdefault(path, version)
        if known != version:
            raise _changed(path, known.generation, version.generation)
        return known

    def _measured(self, path: str) -> Version:
        found = _there(path, self._client.look(path))
        assert found.size_bytes is not None
        return Version(found.size_bytes, found.generation)

    def tail(self, path: str, start: int) -> bytes:
        """The bytes of an object from `start` to its end, in one request, from which its version is learnt."""
        if start == 0:
            fetched = _there(path, self._client.read(ObjectRange(path)))
        else:
            # From one byte before: a range that begins where the object ends is refused.
            fetched = _there(path, self._client.read(ObjectRange(path, start - 1)))
        data = b"" if fetched.data is None else fetched.data
        self._learn(path, Version(start - (start > 0) + len(data), fetched.generation))
        return data[1:] if start else data

    def forget(self) -> None:
        """Look at every object anew."""
        self._known.clear()


def _there(path: str, fetched: Fetched | None) -> Fetched:
    if fetched is None:
        raise MissingObjectError(f"{path}: there is no such object")
    return fetched


def _changed(path: str, old: bytes, new: bytes) -> StaleIndexError:
    return StaleIndexError(
        f"{path}: was replaced while it was read (version {_shown(old)} then, {_shown(new)} now); {_ADVICE}"
    )


def _shown(generation: bytes) -> str:
    return generation.strip(b"\0").decode("ascii", "backslashreplace")
