# SPDX-License-Identifier: Apache-2.0
"""The kinds of data: what each can do, and how the kind at a path is found.

`kind_at` decides once, in this order: by the text of the path, without any access; by a marker file; by the files below
the folder. Our own kinds (`energon_grain.kinds`) decide first. Kinds of other packages, entry points of the group
`energon_grain.kinds`, are looked up only for paths that none of ours recognises: the lookup takes 0.2 s, and no package
can take over a path of ours.
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
    """Opened data that need no preparation.

    Attributes:
        rows: All samples.
        source: The same samples as a source.
        part_names: Names of all parts.
        has_lists: Whether entries of lists are parts too, so that more names are valid.
        endings: Parts that are decoded by another ending than their own, by name.
        decoded: When parts are decoded: "as asked" when the program asks for it, "always", or "never".
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
    """A report about data: a dataclass, which is also the output of `--json`."""

    def lines(self) -> list[str]:
        """The report as text."""
        ...


class Indexed(Described, Protocol):
    """A report about data that were indexed."""

    @property
    def samples(self) -> int:
        """Number of samples."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class LintOptions:
    """Options of a check of data.

    Attributes:
        trusted_modules: Modules whose column functions may be called.
        allow_pickle: Whether pickles are decoded too.
        progress: Called from time to time with (done, total, problems found, unit); the unit is "samples", or empty for
            bytes.
    """

    trusted_modules: tuple[str, ...]
    allow_pickle: bool
    progress: Callable[[int, int, int, str], None]


LintAsk = LintOptions
"""The former name of `LintOptions`. Deprecated."""

StreamedRun: TypeAlias = tuple[int, Callable[[], Iterator[Mapping[str, Any]]]]
"""Bytes of the file read for this run, and a function that yields its samples: parts, and the key as `__key__`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Streamed:
    """Files that a conversion reads once, from front to back, even where samples cannot be read individually.

    Attributes:
        endings: File name endings.
        runs: Yields the samples of a file in runs. Called with the file and the number of samples per run.
    """

    endings: tuple[str, ...]
    runs: Callable[[str, int], Iterator[StreamedRun]]


IndexProgress: TypeAlias = Callable[[int, int, int], None]
"""Called with (bytes read, total bytes, samples found)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Kind:
    """One kind of data. An ability that is None or empty is not supported.

    A kind is pickled by its name. A package registers its own by an entry point of the group `energon_grain.kinds`.

    Attributes:
        name: Its name.
        described: How messages describe it: "a JSONL file".
        open: Opens all samples, with some of their parts; None: the data are shards, or do not exist.
        endings: Endings of its files.
        named: Whether the text of a path identifies this kind, for paths that are no local folder; default: it has one
            of the endings. Must not access a store.
        marked: Whether a marker file identifies this kind.
        holds: Whether the files at or below a path identify this kind. A path that two kinds claim is refused.
        files: How messages call its files: "Parquet files".
        pattern: A glob pattern that selects its files, relative to their folder.
        shards: Operations on shards, see `energon_grain.prepare.containers.Shards`; None: it has no shards.
        opener: Opens leaves in its own way, see `energon_grain.datasets.leaf.Opener`; None: leaves use `open`.
        is_configured: Whether a `dataset.yaml` and a split file beside the data configure how they are read.
        store: Opens single parts by key.
        file_store: Opens the files below a folder by name, for folders without samples.
        takes_no_columns: Why columns cannot be measured. Completes the sentence "is a …".
        joined_by: The metadataset key that joins it, if that is not `path`.
        rows: Opens the data that this key names: samples with one unnamed part, found by number or by keys in a file.
        summary: Describes the data; None: a general summary.
        lint: Checks the data; None: every sample is read and decoded.
        index: Indexes the data; None: they need no preparation.
        index_plan: Reports what `index` would do, without writing anything.
        hint: Advice for messages about a path that is not a dataset. Called with the path and the names of the files
            directly below it (empty: it is a file, or they are unknown). Returns None without advice.
        has_plain_bytes: Whether its files contain the bytes of samples as they are read.
        read_field: Reads a field of a local file, to attach to samples. Called with the path, the field and the prefix
            of error messages; returns keys (None if it has none) and values.
        streamed: Files that a conversion reads as a stream; None: the conversion opens them.
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
    lint: Callable[[str, LintOptions], Any] | None = None
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
        """Whether the text of a path identifies this kind."""
        return location.endswith(self.endings) if self.named is None else self.named(location)


class Listing:
    """The files at a path or URL. Each property is looked up once, when a kind first requests it.

    Args:
        location: The path or URL.
        endings: Endings of the files that any kind looks for.

    Attributes:
        is_url: Whether it is in a store.
    """

    def __init__(self, location: str, endings: tuple[str, ...]) -> None:
        self.location, self._endings = location, endings
        self.is_url = is_url(location)
        self._known: dict[Callable[[str], Any], Any] = {}

    def once(self, look: Callable[[str], T]) -> T:
        """The result of a function of the location. It is called once, for all kinds."""
        if look not in self._known:
            self._known[look] = look(self.location)
        return self._known[look]

    @cached_property
    def is_file(self) -> bool:
        """Whether it is a local file."""
        return not self.is_url and isfile(self.location)

    @cached_property
    def is_folder(self) -> bool:
        """Whether it is a local folder."""
        return not self.is_url and isdir(self.location)

    @cached_property
    def names(self) -> frozenset[str]:
        """Names of files at or below it with one of the endings, without hidden ones. Raises ReadError."""
        return frozenset(names_at(self.location, self._endings))

    def has(self, endings: tuple[str, ...]) -> bool:
        """Whether one of `names` has one of these endings."""
        return any(name.endswith(endings) for name in self.names)


NOTHING = Kind(name="invalid", described="no dataset", is_configured=True)
"""Data that do not exist, or of unknown kind. See `opener_of`."""
METADATASET = Kind(name="metadataset", described="a metadataset", is_configured=True)


@cache
def own_kinds() -> tuple[Kind, ...]:
    """The kinds that come with the library."""
    return import_module(_OWN).OWN


@cache
def _other_kinds() -> tuple[Kind, ...]:
    """The kinds of other packages."""
    from importlib.metadata import entry_points

    return tuple(point.load() for point in entry_points(group=_ENTRY_POINTS))


def all_kinds() -> Iterator[Kind]:
    """All kinds, our own first. Kinds of other packages are looked up only when iteration reaches them."""
    yield from own_kinds()
    yield from _other_kinds()


def kind_named(name: str) -> Kind:
    """The kind with a name. Raises LookupError if no installed package has it."""
    for kind in chain((NOTHING, METADATASET), all_kinds()):
        if kind.name == name:
            return kind
    raise LookupError(f"no installed package provides a kind of data named {name!r}; install the package that does")


def rows_joined_by(key: str, location: str) -> Any:
    """Open the rows that this metadataset key joins. Raises as the kind's `rows`."""
    for kind in all_kinds():
        if kind.joined_by == key and kind.rows is not None:
            return kind.rows(location)
    raise LookupError(f"no installed package provides a kind of data joined by {key!r}; install the package that does")


def opener_of(kind: Kind) -> Any:
    """The opener of leaves of a kind; None: leaves use `Kind.open`.

    Data that do not exist are opened as our first configured kind, whose error describes what is at the path.
    """
    if kind.open is not None or kind.opener is not None:
        return kind.opener
    return next(own.opener for own in own_kinds() if own.opener is not None and own.is_configured)


def store_of(kind: Kind) -> Callable[[str], FileStore[Any]] | None:
    """The function that opens samples of a kind by key; None: no keys. Missing data are handled as in `opener_of`."""
    if kind.open is not None or kind.store is not None:
        return kind.store
    return next(own.store for own in own_kinds() if own.store is not None and own.is_configured)


def files_below(folder: str) -> FileStore[bytes]:
    """The files below a local or remote folder, by name. Raises as `Kind.file_store` does."""
    return next(kind.file_store for kind in own_kinds() if kind.file_store is not None)(folder)


def kind_by_name(location: str) -> Kind | None:
    """The kind that the text of a path or URL identifies; None: the files decide. No store is accessed."""
    if location.endswith(".yaml") and (is_url(location) or isfile(location)):
        return METADATASET
    return None if _is_folder(location) else _named_by(location, own_kinds())


def streaming_kind(location: str) -> Kind | None:
    """Our own kind as which a conversion streams a file of this name; None: `kind_at` decides."""
    kinds = (kind for kind in own_kinds() if kind.streamed and is_file_of(location, kind.streamed.endings))
    return next(kinds, None)


def kind_at(location: str) -> Kind:
    """The kind of data at a path or URL; `NOTHING` if there are none.

    Raises:
        StaleIndexError: As in `open_folder`.
        ConfigError: The URL's store cannot be read, or a folder contains data of two kinds.
        ReadError: The store cannot be reached.
    """
    found = kind_by_name(location)
    if found is not None:
        return found
    found = _recognised(location, own_kinds())
    if found is None and (others := _other_kinds()):
        found = (None if _is_folder(location) else _named_by(location, others)) or _recognised(location, others)
    return found or NOTHING


def hint_at(location: str, names: Collection[str] = ()) -> str | None:
    """The first advice that a kind has for a path. See `Kind.hint`."""
    hints = (kind.hint(location, names) for kind in all_kinds() if kind.hint is not None)
    return next(filter(None, hints), None)


def holds_plain_bytes(file: str) -> bool:
    """Whether the name of a file belongs to a kind whose files contain the bytes of samples as they are read."""
    return any(kind.has_plain_bytes and file.endswith(kind.endings) for kind in all_kinds())


def _is_folder(location: str) -> bool:
    return not is_url(location) and isdir(location)


def _named_by(location: str, kinds: Iterable[Kind]) -> Kind | None:
    return next((kind for kind in kinds if kind.is_named_by(location)), None)


def kind_by_marker(location: str) -> Kind | None:
    """Our own kind that a marker file at a path or URL identifies; None: the files decide."""
    return _marked(Listing(location, ()), own_kinds())


def _marked(at: Listing, kinds: Iterable[Kind]) -> Kind | None:
    return next((kind for kind in kinds if kind.marked is not None and kind.marked(at)), None)


def _recognised(location: str, kinds: tuple[Kind, ...]) -> Kind | None:
    """The kind that marker files identify, or else the files below. Raises ConfigError where two kinds claim them."""
    at = Listing(location, tuple(ending for kind in kinds if kind.holds for ending in kind.endings))
    if (found := _marked(at, kinds)) is not None:
        return found
    held = [kind for kind in kinds if kind.holds is not None and kind.holds(at)]
    if len(held) > 1:
        patterns = [join(location, kind.pattern) for kind in held]
        what = " and ".join(kind.files for kind in held)
        raise ConfigError(f"{location}: contains {what}; name the files to read: {' or '.join(patterns)}")
    return held[0] if held else None
