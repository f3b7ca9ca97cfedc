"""Files looked up by their names: what a cooker reads beside its sample."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, Self, TypeVar

from energon_grain.samples.source_info import SourceInfo, add_source_info

T_co = TypeVar("T_co", covariant=True)


class FileStore(ABC, Generic[T_co]):
    """Random access by key: `store[key]`, or `store.get(key, sample)` inside a cooker.

    A store of your own has `get_path` and either `read`, which can sort and coalesce several keys, or `__getitem__` for
    one. Stores are thread-safe and picklable: a copy in another process opens its own files.
    """

    def __new__(cls, *_: Any, **__: Any) -> Self:
        """Check that a subclass says how values are read.

        Raises:
            TypeError: It does not.
        """
        if cls.read is FileStore.read and cls.__getitem__ is FileStore.__getitem__:
            raise TypeError(f"{cls.__name__} has neither `read` nor `__getitem__`, one of which gives a store's values")
        return super().__new__(cls)

    def read(self, keys: Sequence[str]) -> list[tuple[T_co, SourceInfo]]:
        """Read the values of several keys, in their order; repeated keys are fine.

        Raises:
            KeyNotFoundError: The store has nothing under one of the keys.
            ReadError: Bytes could not be read after retries.
        """
        return [self[key] for key in keys]

    def __contains__(self, key: object) -> bool:
        """Whether there is something under a key. Our own stores read no data for it; by default the value is read."""
        try:
            self[key]  # type: ignore[index]
        except KeyError:
            return False
        return True

    @abstractmethod
    def get_path(self) -> str:
        """Where the store lies."""

    def __getitem__(self, key: str) -> tuple[T_co, SourceInfo]:
        """The value of a key, and where it came from. Raises as `read` does."""
        return self.read((key,))[0]

    def get(self, key: str, sample: Any = None) -> T_co:
        """The value of a key.

        Args:
            key: Name of the file.
            sample: The sample (an object, or a crude sample) whose `__sources__` are to tell of this file.

        Raises:
            KeyNotFoundError: The store has nothing under the key.
            ReadError: Bytes could not be read after retries.
        """
        value, source = self[key]
        if sample is not None:
            add_source_info(sample, source)
        return value

    def stored(self, key: str) -> tuple[Any, SourceInfo]:
        """What lies under a key as it is stored, which `decoded` makes the value of. Raises as `read` does."""
        return self[key]

    def decoded(self, key: str, data: Any) -> T_co:
        """The value of a key, from what `stored` returned.

        Raises:
            DecodingError: It does not decode.
        """
        return data

    def close(self) -> None:
        """Release file handles; reading again opens them anew."""
