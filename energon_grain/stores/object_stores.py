# SPDX-License-Identifier: Apache-2.0
"""Objects through obstore: one request per call, no retries, and errors with advice.

obstore's threads do not survive a fork, and a forked process that uses it hangs forever. Therefore a process that was
forked after its parent used a store is refused; the message names other ways to start it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from energon_grain.errors import WorkerError
from energon_grain.storage.remote import UNVERSIONED, Fetched
from energon_grain.storage.settings import StorageSettings
from energon_grain.storage.store import opener_of
from energon_grain.storage.urls import with_revisions
from energon_grain.stores.added_store import AddedStore
from energon_grain.stores.addresses import Address, address_of, open_store
from energon_grain.stores.hub import HubStore
from energon_grain.stores.object_error import HTTP_STATUS, ObjectError, as_object_errors, is_no_bucket, require_list

NOT_NEEDED = "its result is no longer needed"
"""Reason of a request that ends because the program or the reader does."""


class Pieces(Protocol):
    """Receives the bytes of a response, in order, as they arrive; for example, a list."""

    def append(self, piece: bytes, /) -> None:
        """Take the next bytes."""
        ...


Begin = Callable[[bytes, int], Pieces]
"""Called with the generation and size of an object before its first byte; returns the receiver for this one response. A
retried request starts with a new receiver, and an abandoned one may continue for a while. May raise, to read
nothing."""


def in_list(generation: bytes, size_bytes: int) -> Pieces:
    """A `Begin` that receives the bytes in a list."""
    del generation, size_bytes
    return []


_PIECE_BYTES = 1 << 18
"""Size of pieces that arrive together from the network and are passed on unchanged. Larger pieces are assembled in
memory newly allocated from the system, and are cold in the CPU cache when they are hashed and written; each smaller one
wakes a thread."""


_LISTED_AT_ONCE = 10
"""Names per chunk of a listing; obstore collects them over as many requests as needed before it returns them."""
_WHOLE_BYTES = 16 << 20
"""Maximum size of objects that may be returned whole for a range request."""
_NO_TOTAL = re.compile(r'CONTENT_RANGE header: "bytes \d+-\d+/\*"')


class LateResponseError(Exception):
    """Another request for the same range was answered first."""


OnFirstByte = Callable[[], object]
"""Called on the first byte of a response. Raises LateAnswerError."""


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class _Place:
    """An object or folder in an open store."""

    address: Address
    store: Any
    mark: bytes
    timeout_s: float

    @property
    def key(self) -> str:
        return self.address.key

    def generation(self, metadata: Mapping[str, Any]) -> bytes:
        tag = metadata.get("e_tag")
        if tag is None:
            return UNVERSIONED
        if self.address.kind == "azure" and not tag.endswith('"'):
            tag = f'"{tag}"'  # as in its responses; lists omit the quotes
        return self.mark + tag.encode()

    def failures(self) -> contextlib.AbstractContextManager[None]:
        """Convert obstore's errors to ObjectErrors, except for missing objects."""
        return as_object_errors(self.address, self.timeout_s)


class ObjectStores:
    """Objects of this process. All methods raise ObjectError, and WorkerError after a fork."""

    def __init__(self, settings: StorageSettings) -> None:
        self._settings = settings
        self._stores: dict[Any, Any] = {}
        self._opening = threading.Lock()

    def read(
        self,
        url: str,
        start: int | None,
        stop: int | None,
        known: bytes | None,
        begin: Begin = in_list,
        on_first_byte: OnFirstByte = _nothing,
    ) -> Fetched | None:
        """Read bytes [start, stop) of an object, or all if both are None; returns None if it does not exist.

        Args:
            start: Negative: counted from the end (with `stop` None).
            stop: None: to the end.
            known: The caller's generation: if the object still has it, no bytes are returned.
            begin: Returns the receiver of the bytes.
        """
        from obstore.exceptions import GenericError, NotModifiedError

        place = self._place(url)
        with place.failures():
            try:
                found, skipped = _get(place, _options(place, start, stop, known))
                with _closing(found):
                    on_first_byte()
                    generation, size = place.generation(found.meta), found.meta["size"]
                    if generation == known and known != UNVERSIONED:  # some servers ignore If-None-Match
                        return Fetched(None, generation)
                    if stop is not None and stop > size:
                        raise ObjectError(f"it has {size} bytes", temporary=False, out_of_range=True)
                    return _received(found, skipped, begin(generation, size), generation)
            except FileNotFoundError as error:
                if is_no_bucket(str(error)):
                    raise
                return None
            except NotModifiedError:
                assert known is not None
                return Fetched(None, known)
            except GenericError as error:
                if start is None or not _may_be_behind_the_end(error, place.address.kind):
                    raise
                self._refuse_range(url)
                return None

    def _refuse_range(self, url: str) -> None:
        """Raise ObjectError with the size of an object, if it exists."""
        there = self.head(url)
        if there is not None and there.size_bytes is not None:
            raise ObjectError(f"it has {there.size_bytes} bytes", temporary=False, out_of_range=True) from None

    def head(self, url: str) -> Fetched | None:
        from obstore.exceptions import GenericError, NotSupportedError

        place = self._place(url)
        with place.failures():
            try:
                if place.address.kind != "http":
                    metadata = place.store.head(place.key)
                else:  # not all web servers support HEAD
                    try:
                        metadata = place.store.get(place.key, options={"range": (0, 1)}).meta
                    except (GenericError, NotSupportedError):  # an empty object has no first byte
                        metadata = place.store.get(place.key).meta
            except FileNotFoundError as error:
                if is_no_bucket(str(error)):
                    raise
                return None
        return Fetched(None, place.generation(metadata), metadata["size"], modified=metadata["last_modified"])

    def list(self, url: str) -> list[str]:
        return sorted(self.list_versions(url))

    def list_versions(self, url: str) -> dict[str, tuple[int, bytes]]:
        place = self._place(url)
        if place.address.kind == "http":
            raise ObjectError("a plain web server does not support listing", temporary=False)
        with place.failures():
            by_obstore = place.address.kind != "hub" and not place.address.added
            found = _list_of(place) if by_obstore else _listed(place)
            if not found and place.address.kind == "s3":
                require_list(place.address, place.timeout_s)
        folders = _folders_above(found)
        skipped = len(place.key) + 1 if place.key else 0
        # An empty object with others below it is a placeholder that some tools create for a folder.
        return {
            path[skipped:]: (metadata["size"], place.generation(metadata))
            for path, metadata in found.items()
            if metadata["size"] or path not in folders
        }

    def pinned(self, url: str) -> str:
        """A URL of the Hub with its revision resolved to a commit, once; other URLs unchanged."""
        return with_revisions(url, lambda dataset: self._place(dataset).store.commit)

    def write(self, url: str, data: bytes) -> bytes:
        place = self._place(url)
        with place.failures():
            return place.generation(place.store.put(place.key, data, use_multipart=False))

    def delete(self, url: str) -> None:
        place = self._place(url)
        with contextlib.suppress(FileNotFoundError), place.failures():
            place.store.delete(place.key)

    def refuse_fork(self, url: str) -> None:
        if is_forked():
            raise WorkerError(
                f"{url}: this process was forked from one that had used object stores, and their connections do not "
                "survive a fork; start processes with 'forkserver' or 'spawn' "
                "(`multiprocessing_context='forkserver'`), or use threads"
            )

    def _place(self, url: str) -> _Place:
        global _used
        address = address_of(url, self._settings)
        if address.kind == "hub":
            return self._place_in_hub(address)
        name = (address.kind, address.bucket, address.store, address.keys)
        if name not in self._stores:
            _used = True
            opener = opener_of(address.kind) if address.added else None
            self._stores[name] = (
                open_store(address, url, self._settings.timeout_s)
                if opener is None
                else AddedStore(opener(address.store))
            )
        mark = _mark_of_memory() if address.kind == "memory" else b""
        return _Place(address, self._stores[name], mark, self._settings.timeout_s)

    def _place_in_hub(self, address: Address) -> _Place:
        """The place in the store of its commit, for any revision that resolves to it."""
        global _used
        timeout_s = self._settings.timeout_s
        with self._opening:
            name: Any = (address.bucket, address.store)
            if name not in self._stores:
                _used = True
                found = HubStore(address, Path(self._settings.cache_folder, "hub"), timeout_s)
                repository = address.bucket.partition("@")[0]
                self._stores[name] = self._stores.setdefault((f"{repository}@{found.commit}", address.store), found)
        return _Place(address, self._stores[name], b"", timeout_s)


_FULL_PAGE = 1000
"""Maximum number of names in a page of an S3 list."""


def _list_of(place: _Place) -> dict[str, Mapping[str, Any]]:
    """All objects of a list, by path. A list that takes too long is cancelled: a server could continue it forever.

    A page of S3 has at most 1,000 names. After full pages, one more request is made: a list that was cut off without a
    continuation token, which obstore takes for the end, continues there.
    """
    found: dict[str, Mapping[str, Any]] = {}

    async def extend(behind: str | None) -> int:
        before = set(found)
        async for page in place.store.list(place.key or None, offset=behind, chunk_size=_LISTED_AT_ONCE):
            new = {each["path"]: each for each in page}
            if len(new) < len(page) or not before.issuperset(found.keys() & new.keys()):
                raise ObjectError("its list does not end: it repeats objects", temporary=False)
            found.update(new)
        return len(found) - len(before)

    async def all_of_it() -> None:
        async with asyncio.timeout(place.timeout_s):
            while (new := await extend(max(found, default=None))) and place.address.kind == "s3":
                if new % _FULL_PAGE:
                    return

    try:
        asyncio.run(all_of_it())
    except TimeoutError:
        raise ObjectError(f"no complete list within {place.timeout_s:g} s", temporary=True) from None
    return found


def _folders_above(paths: Iterable[str]) -> set[str]:
    return {path[:at] for path in paths for at, sign in enumerate(path) if sign == "/"}


def _listed(place: _Place) -> dict[str, Mapping[str, Any]]:
    return {each["path"]: each for page in place.store.list(place.key or None) for each in page}


_Span = tuple[int, int]


def _options(place: _Place, start: int | None, stop: int | None, known: bytes | None) -> dict[str, Any]:
    """The requested range, and the known generation, as obstore's options."""
    options: dict[str, Any] = {}
    if known is not None and known != UNVERSIONED and known.startswith(place.mark):
        options["if_none_match"] = known[len(place.mark) :].decode()
    if start is not None:
        options["range"] = {"suffix": -start} if start < 0 else {"offset": start} if stop is None else (start, stop)
    return options


def _closing(found: Any) -> contextlib.AbstractContextManager[object]:
    """Close a response, even if nothing of it was read; obstore's responses need no closing."""
    return contextlib.closing(found) if hasattr(found, "close") else contextlib.nullcontext()


def _received(found: Any, skipped: _Span | None, pieces: Pieces, generation: bytes) -> Fetched:
    first, last = skipped or found.range
    for piece in _checked(found.stream(min_chunk_size=_PIECE_BYTES), first, last, whole=skipped is not None):
        pieces.append(piece)
    return Fetched(pieces, generation, found.meta["size"], last - first)


def _get(place: _Place, options: dict[str, Any]) -> tuple[Any, _Span | None]:
    """The store's response; with the requested range if the response contains more than that."""
    from obstore.exceptions import GenericError, NotSupportedError

    try:
        return place.store.get(place.key, options=options), None
    except NotSupportedError:  # a web server without range requests
        found = place.store.get(place.key)
        if options.get("range") != (0, found.meta["size"]):
            raise
        return found, None
    except GenericError as error:
        # `bytes 0-9/*` is valid HTTP for an unknown size, but an error in obstore 0.12.
        if "range" not in options or not _NO_TOTAL.search(str(error)):
            raise
    return _whole_for_part(place, options)


def _whole_for_part(place: _Place, options: dict[str, Any]) -> tuple[Any, _Span]:
    """A whole small object, and the requested range of it."""
    wanted: Any = options["range"]
    found = place.store.get(place.key, options={name: given for name, given in options.items() if name != "range"})
    size: int = found.meta["size"]
    if size > _WHOLE_BYTES:
        raise ObjectError(
            "the server sends ranges without the total size (Content-Range: bytes …/*)",
            temporary=False,
            advice=f"files above {_WHOLE_BYTES >> 20} MiB need it: configure the server to send the size",
        )
    if isinstance(wanted, dict):
        wanted = (max(0, size - wanted["suffix"]) if "suffix" in wanted else wanted["offset"], size)
    if wanted[0] >= size:
        raise ObjectError(f"it has {size} bytes", temporary=False, out_of_range=True)
    return found, wanted


def _checked(pieces: Iterable[bytes], first: int, last: int, *, whole: bool) -> Iterator[bytes]:
    """Yield bytes [first, last) of an object; `whole`: the pieces start at its first byte, and go on after the range.

    Raises ObjectError if there are fewer or more bytes; further bytes are not passed on.
    """
    left, skip = last - first, first if whole else 0
    for piece in pieces:
        part = piece[skip : skip + left] if whole else piece
        skip = max(0, skip - len(piece))
        left -= len(part)
        if left < 0:
            raise ObjectError(f"received more than the announced {last - first} bytes", temporary=True)
        if part:
            yield part
        if whole and not left:
            return
    if left:
        raise ObjectError(f"received {last - first - left} bytes instead of {last - first}", temporary=True)


def _may_be_behind_the_end(error: Exception, kind: str) -> bool:
    """Whether a refusal may mean that a range begins after the end; each store reports this differently."""
    answer = HTTP_STATUS.search(str(error))
    if answer is not None:
        return answer[1] == "416"
    # For an empty object, Azure's emulator returns an invalid range.
    return kind == "memory" or "CONTENT_RANGE" in str(error)


@functools.cache
def _mark_of_memory() -> bytes:
    """Distinguishes the generations of `memory://` from those of other processes, which use the same counters."""
    return os.urandom(8)


_forked = False
_used = False


def is_forked() -> bool:
    """Whether this process was forked from one that had used a store."""
    return _forked


def _after_fork() -> None:
    global _forked
    _forked = _forked or _used


os.register_at_fork(after_in_child=_after_fork)
