# SPDX-License-Identifier: Apache-2.0
"""The kinds of data: what each can do, and which of them is at a path.

`kind_at` decides once, in this order: by the text of the path, without looking; by a marker file; by the files below
the folder. Our own kinds (`energon_grain.kinds`) decide first. Those of other packages, entry points of the group
`energon_grain.kinds`, are looked up only where none of ours does: the lookup takes 0.2 s, and no package can take a
path away from us.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib import import_module
from itertools import chain
from os.path import isdir, isfile
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

from energon_grain.errors import ConfigError
from energon_grain.sources.file_store import FileStore
from energon_grain.sources.rows import Rows, SelectedSource, selected
from energon_grain.sources.source import PartFilter, Source
from energon_grain.storage.data_names import names_at
from energon_grain.storage.location import is_file_of, is_url, join

T = TypeVar("T")
_OWN = "energon_grain.kinds.own"
_ENTRY_POINTS = "energon_grain.kinds"


@dataclass(frozen=True, kw_only=True, slots=True)
class Opened:
    """Data that are read as they are, opened.

    Attributes:
        rows: All samples.
        source: The same as a source.
        part_names: Names of all parts.
        has_lists: Whether parts are also entries of lists, so that more names mean something.
        endings: Which ends of names decode parts that are not decoded by their own.
        decoded: Whether parts are decoded: if the program asks for it; also if it asks for nothing; never.
    """

    rows: Rows
    source: SelectedSource = field(init=False)
    part_names: tuple[str, ...]
    has_lists: bool = False
    endings: Mapping[str, str] = field(default_factory=dict[str, str])
    decoded: Literal["as asked", "always", "never"] = "as asked"

    def __post_init__(self) -> None:
        object.__setattr__(self, "source", selected(self.rows))


class Described(Protocol):
    """An answer about data: a dataclass, which is also what `--json` prints."""

    def lines(self) -> list[str]:
        """What people read."""
        ...


class Indexed(Described, Protocol):
    """An answer about data that were indexed."""

    @property
    def samples(self) -> int:
        """How many there are."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class LintAsk:
    """What a check of data is asked for.

    Attributes:
        trusted_modules: Modules whose functions of columns may be called.
        allow_pickle: Whether pickles are decoded too.
        progress: Called now and then with what was done, of how much, how many problems were found, and what is counted
            ("samples"; empty: bytes).
    """

    trusted_modules: tuple[str, ...]
    allow_pickle: bool
    progress: Callable[[int, int, int, str], None]


StreamedRun: TypeAlias = tuple[int, Callable[[], Iterator[Mapping[str, Any]]]]
"""Bytes of the file that were read for it, and what gives its samples in a process: parts, and the key as `__key__`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Streamed:
    """Files that a conversion reads once, from front to back, also those of which no sample can be read by itself.

    Attributes:
        endings: Of their names.
        runs: Gives the samples of a file in runs of a number of them.
    """

    endings: tuple[str, ...]
    runs: Callable[[str, int], Iterator[StreamedRun]]


IndexProgress: TypeAlias = Callable[[int, int, int], None]
"""Called with (bytes read, of how many, samples found)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Kind:
    """One kind of data. An ability that is None or empty is one that it does not have.

    A kind is picklable by its name. A package registers its own by an entry point of the group `energon_grain.kinds`.

    Attributes:
        name: Its name.
        described: What messages call it: "a JSONL file".
        open: Opens all samples, with some of their parts; None: it is shards, or not there.
        endings: Of its files.
        named: Whether the text of a path says that it is of this kind, where that is no folder of this machine;
            default: it has one of the endings. It may not look into a store.
        marked: Whether a marker file says so.
        holds: Whether files at or below a path say so. Where two kinds do, the path is refused.
        files: What messages call these: "Parquet files".
        pattern: A pattern that names them, below their folder.
        shards: What operations on shards ask of it, see `energon_grain.prepare.containers.Shards`; None: it has none.
        opener: Opens leaves in a way of its own, see `energon_grain.datasets.leaf.Opener`; None: they take what `open`
            gives.
        is_configured: Whether a `dataset.yaml` and a split file beside the data say how they are read.
        store: Opens single parts by key.
        file_store: Opens the files below a folder by their names, where it is a kind of folders without samples.
        takes_no_columns: Why nothing can be measured of it, behind "is a …".
        joined_by: The key of a metadataset that joins it, if that is not `path`.
        rows: Opens what that key names: samples whose one part has no name, found by number or by keys in a file.
        summary: Describes it; None: in general words.
        lint: Checks it; None: every sample is read and decoded.
        index: Indexes it; None: there is nothing to prepare.
        index_plan: Says what `index` would do, without writing anything.
        hint: What messages say of a path that is no dataset as it is, given the names of files right below it (none: it
            is a file, or they are not known); None: nothing.
        has_plain_bytes: Whether its files hold the bytes of samples as they are read.
        read_field: Reads a field of a file of this machine, to be attached to samples: keys, if it has any, and values.
            Given the path, the field, and how errors begin.
        streamed: Files that a conversion reads as a stream; None: it opens them.
    """

    name: str
    described: str
    open: Callable[[str, PartFilter], Opened] | None = None
    endings: tuple[str, ...] = ()
    named: Callable[[str], bool] | None = None
    marked: Callable[[Listing], bool] | None = None
    holds: Callable[[Listing], bool] | None = None
    files: str = ""
    pattern: str = ""
    shards: Any = None
    opener: Any = None
    is_configured: bool = False
    store: Callable[[str], FileStore[Any]] | None = None
    file_store: Callable[[str], FileStore[bytes]] | None = None
    takes_no_columns: str = ""
    joined_by: str | None = None
    rows: Callable[[str], Source] | None = None
    summary: Callable[[str], Described] | None = None
    lint: Callable[[str, LintAsk], Any] | None = None
    index: Callable[[str, IndexProgress], Indexed] | None = None
    index_plan: Callable[[str], Described] | None = None
    hint: Callable[[str, Collection[str]], str | None] | None = None
    has_plain_bytes: bool = False
    read_field: Callable[[str, str, str], tuple[list[str] | None, Any]] | None = None
    streamed: Streamed | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return kind_named, (self.name,)

    def __repr__(self) -> str:
        return f"<Kind {self.name}>"

    def is_named_by(self, location: str) -> bool:
        """Whether the text of a path says that it is of this kind."""
        return location.endswith(self.endings) if self.named is None else self.named(location)


class Listing:
    """What is at a path or URL. Each thing is looked up once, and only if a kind asks for it.

    Args:
        location: The path or URL.
        endings: Of the files below that any kind asks for.

    Attributes:
        is_url: Whether it is in a store.
    """

    def __init__(self, location: str, endings: tuple[str, ...]) -> None:
        self.location, self._endings = location, endings
        self.is_url = is_url(location)
        self._known: dict[Callable[[str], Any], Any] = {}

    def once(self, look: Callable[[str], T]) -> T:
        """What a function says of the location; it is called once, whichever kinds ask."""
        if look not in self._known:
            self._known[look] = look(self.location)
        return self._known[look]

    @cached_property
    def is_file(self) -> bool:
        """Whether it is a file of this machine."""
        return not self.is_url and isfile(self.location)

    @cached_property
    def is_folder(self) -> bool:
        """Whether it is a folder of this machine."""
        return not self.is_url and isdir(self.location)

    @cached_property
    def names(self) -> frozenset[str]:
        """Names of files at or below it that have one of the endings; hidden ones are left out. Raises ReadError."""
        return frozenset(names_at(self.location, self._endings))

    def has(self, endings: tuple[str, ...]) -> bool:
        """Whether one of `names` has one of these endings."""
        return any(name.endswith(endings) for name in self.names)


NOTHING = Kind(name="invalid", described="no dataset", is_configured=True)
"""What is not there, or unknown. See `opener_of`."""
METADATASET = Kind(name="metadataset", described="a metadataset", is_configured=True)


@cache
def own_kinds() -> tuple[Kind, ...]:
    """Those that come with the library."""
    return import_module(_OWN).OWN


@cache
def _other_kinds() -> tuple[Kind, ...]:
    """Those of other packages."""
    from importlib.metadata import entry_points

    return tuple(point.load() for point in entry_points(group=_ENTRY_POINTS))


def all_kinds() -> Iterator[Kind]:
    """All kinds, our own first. Those of other packages are looked up only when they are asked for."""
    yield from own_kinds()
    yield from _other_kinds()


def kind_named(name: str) -> Kind:
    """The kind of a name. Raises LookupError if no installed package has it."""
    for kind in chain((NOTHING, METADATASET), all_kinds()):
        if kind.name == name:
            return kind
    raise LookupError(f"no installed package has a kind of data {name!r}")


def rows_joined_by(key: str, location: str) -> Any:
    """Open the rows that this key of a metadataset joins. Raises as the kind's `rows`."""
    for kind in all_kinds():
        if kind.joined_by == key and kind.rows is not None:
            return kind.rows(location)
    raise LookupError(f"no installed package has a kind of data that is joined by {key!r}")


def opener_of(kind: Kind) -> Any:
    """What opens leaves of a kind in a way of its own; None: they take what `Kind.open` gives.

    What is not there is opened as our first kind that is configured, whose error says what is there instead.
    """
    if kind.open is not None or kind.opener is not None:
        return kind.opener
    return next(own.opener for own in own_kinds() if own.opener is not None and own.is_configured)


def store_of(kind: Kind) -> Callable[[str], FileStore[Any]] | None:
    """What opens samples of a kind by key; None: they have no keys. What is not there is opened as in `opener_of`."""
    if kind.open is not None or kind.store is not None:
        return kind.store
    return next(own.store for own in own_kinds() if own.store is not None and own.is_configured)


def files_below(folder: str) -> FileStore[bytes]:
    """The files below a folder, here or in a store, by their names. Raises as `Kind.file_store` does."""
    return next(kind.file_store for kind in own_kinds() if kind.file_store is not None)(folder)


def kind_by_name(location: str) -> Kind | None:
    """The kind that the text of a path or URL says; None: that has to be looked at. No store is asked."""
    if location.endswith(".yaml") and (is_url(location) or isfile(location)):
        return METADATASET
    return None if _is_folder(location) else _named_by(location, own_kinds())


def streaming_kind(location: str) -> Kind | None:
    """Our own kind that a conversion streams a file of this name as; None: `kind_at` says what it is."""
    kinds = (kind for kind in own_kinds() if kind.streamed and is_file_of(location, kind.streamed.endings))
    return next(kinds, None)


def kind_at(location: str) -> Kind:
    """Say what is at a path or URL; what is not there is `NOTHING`.

    Raises:
        StaleIndexError: As in `open_folder`.
        ConfigError: The URL is of no store that can be read, or a folder holds data of two kinds.
        ReadError: The store cannot be reached.
    """
    found = kind_by_name(location)
    if found is not None:
        return found
    found = _looked_at(location, own_kinds())
    if found is None and (others := _other_kinds()):
        found = (None if _is_folder(location) else _named_by(location, others)) or _looked_at(location, others)
    return found or NOTHING


def hint_at(location: str, names: Collection[str] = ()) -> str | None:
    """See `Kind.hint`: what the first kind says that says anything."""
    hints = (kind.hint(location, names) for kind in all_kinds() if kind.hint is not None)
    return next(filter(None, hints), None)


def holds_plain_bytes(file: str) -> bool:
    """Whether the name of a file is that of one which holds the bytes of samples as they are read."""
    return any(kind.has_plain_bytes and file.endswith(kind.endings) for kind in all_kinds())


def _is_folder(location: str) -> bool:
    return not is_url(location) and isdir(location)


def _named_by(location: str, kinds: Iterable[Kind]) -> Kind | None:
    return next((kind for kind in kinds if kind.is_named_by(location)), None)


def kind_by_marker(location: str) -> Kind | None:
    """Our own kind that a marker file at a path or URL says; None: what files there are has to be looked at."""
    return _marked(Listing(location, ()), own_kinds())


def _marked(at: Listing, kinds: Iterable[Kind]) -> Kind | None:
    return next((kind for kind in kinds if kind.marked is not None and kind.marked(at)), None)


def _looked_at(location: str, kinds: tuple[Kind, ...]) -> Kind | None:
    """The kind that marker files say, or else the files below. Raises ConfigError where these are of two kinds."""
    at = Listing(location, tuple(ending for kind in kinds if kind.holds for ending in kind.endings))
    if (found := _marked(at, kinds)) is not None:
        return found
    held = [kind for kind in kinds if kind.holds is not None and kind.holds(at)]
    if len(held) > 1:
        patterns = [join(location, kind.pattern) for kind in held]
        what = " and ".join(kind.files for kind in held)
        raise ConfigError(f"{location}: holds {what}; write which are meant, as {' or '.join(patterns)}")
    return held[0] if held else None
