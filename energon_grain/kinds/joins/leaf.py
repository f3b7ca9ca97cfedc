"""Datasets that are joined by the keys of their samples: how they stand in a configuration, and a sample of a row.

Its rows are those of the index that was prepared, here or beside a metadataset in a store, or that is made now. Indices
of metadatasets in object stores are made on this machine and kept beside the metadataset.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from energon_grain.datasets.aux_stores import AuxReference
from energon_grain.datasets.cooker import SampleMaker, cooking
from energon_grain.datasets.dataset import SavableDataset
from energon_grain.datasets.leaf import LeafDataset, LoadSample, open_leaf
from energon_grain.datasets.lowering import Lowering, Part
from energon_grain.errors import (
    ConfigError,
    DatasetNotFoundError,
    IndexFileError,
    MissingObjectError,
    RangeError,
    StaleIndexError,
)
from energon_grain.formats.class_ref import ClassRef, resolve_class, resolve_function
from energon_grain.forms import Place, asked_at
from energon_grain.kinds.joins import members as joining
from energon_grain.kinds.joins.build import build_join, energon_name_of, name_of, primary_of
from energon_grain.kinds.joins.index import (
    HEADER_NAME,
    JoinedMember,
    JoinHeader,
    JoinIndex,
    cache_folder,
    decode_join_header,
    join_file_sizes,
    join_folder,
    joins_in,
    open_join_index,
    stored_headers,
)
from energon_grain.kinds.joins.members import JoinedArray, JoinedDataset, JoinedFiles, Keys, Nonmatch, array_rows
from energon_grain.kinds.joins.rows import JoinRow, ResolvedArray, ResolvedJoin
from energon_grain.kinds.joins.source import JoinedSource
from energon_grain.prepare.samples import opened_samples
from energon_grain.samplers.expression import Expression
from energon_grain.samplers.subset import Subset, part_of
from energon_grain.samples.sample import BASE_FIELDS, Sample
from energon_grain.samples.types import CrudeSample
from energon_grain.sources.cache_pool import CachePool
from energon_grain.sources.source import Source
from energon_grain.storage.atomic import is_writable
from energon_grain.storage.epath import EPath
from energon_grain.storage.location import is_url
from energon_grain.storage.remote import Mirror, ObjectClient, ObjectRange, has_lists, mirror_of, shared_client
from energon_grain.storage.settings import storage_settings
from energon_grain.stream.hooks import HookSpec
from energon_grain.stream.spec import Resolved, ResolvedLeaf

_TAIL_BYTES = 64 << 10
JOINED_ON_USE = 1_000_000
"""Up to so many samples of the primary are joined when the join is first used: about a second."""


def open_join(join: JoinedLeafDataset, *, joined_on_use: int = JOINED_ON_USE) -> JoinIndex:
    """Open the index of a join.

    What `energon-grain prepare` wrote is mapped; else a join that is small, or that Energon prepared (whose index would
    take longer to check), is made now, and kept beside the metadataset if that is writable.

    Args:
        join: The join.
        joined_on_use: Samples of the primary up to which it is made now.

    Raises:
        DatasetNotFoundError: A dataset or array is missing, or the join is large and was not prepared.
        StaleIndexError: A dataset, array or split file changed since the join was prepared.
        IndexFileError: The index is damaged.
        ConfigError: A key is missing in a dataset, or a row in an array, and `nonmatch` does not allow that.
        DuplicateKeyError: A dataset has a key twice.
        EmptyDatasetError: The join has no row.
    """
    samples = join.inputs()
    primary = primary_of(samples)
    cache = None if join.metadataset is None else cache_folder(join.metadataset)
    mending = "write it into a metadataset file, and run `energon-grain prepare` on that"
    if cache is not None and join.metadataset is not None:
        mending = f"run `energon-grain prepare {join.metadataset}`"
        try:
            return _fetched(join.metadataset, join_folder(cache, name_of(samples)))
        except (FileNotFoundError, NotADirectoryError):
            pass
        except IndexFileError as error:
            told = str(error).replace(str(cache), f"{join.metadataset}.cache")  # not the mirror of one in a store
            raise IndexFileError(f"{told}: {mending}") from error
        _refuse_stale({**joins_in(cache), **stored_joins(join.metadataset)}.values(), samples, join, mending)
    energons = None if cache is None else energon_name_of(samples)
    is_prepared = cache is not None and energons is not None and (cache / energons).exists()
    if len(primary) > joined_on_use and not is_prepared:
        raise DatasetNotFoundError(
            f"{join.place}: {len(primary)} samples of {samples[0].written} are to be joined with other "
            f"datasets, which is done on first use for up to {joined_on_use} only; {mending}"
        )
    return build_join(samples, cache if cache is not None and is_writable(cache) else None)


def _fetched(metadataset: str, folder: Path) -> JoinIndex:
    """Open the index of a join; the copy of one in an object store is made anew where it is damaged."""
    url = f"{metadataset}.cache/{folder.name}" if is_url(metadataset) else None
    fetch_join(metadataset, folder)
    try:
        return open_join_index(folder, url=url)
    except IndexFileError:
        if url is None:
            raise
        shutil.rmtree(folder, ignore_errors=True)
    fetch_join(metadataset, folder)
    return open_join_index(folder, url=url)


def _refuse_stale(
    prepared: Iterable[JoinHeader], samples: Sequence[joining.JoinMember], join: JoinedLeafDataset, mending: str
) -> None:
    """Raise if the same datasets were joined when they or their split files were different."""
    now = [each.describe() for each in samples]
    for header in prepared:
        told = [[(each.path, each.split_part, each.nonmatch, each.array) for each in m] for m in (header.members, now)]
        if told[0] != told[1]:
            continue
        changes = [change for old, new in zip(header.members, now, strict=True) if (change := _change(old, new))]
        raise StaleIndexError(
            f"{join.place}: this join was prepared, but since then {' and '.join(changes)}; {mending}"
        )


def _change(old: JoinedMember, new: JoinedMember) -> str:
    if old.content_id != new.content_id and new.array is not None:
        return f"{new.path} or the keys of its rows were changed ({old.samples} rows then, {new.samples} now)"
    if old.content_id != new.content_id:
        return f"{new.path} was prepared with other samples ({old.samples} then, {new.samples} now)"
    if old.shards != new.shards or old.excludes != new.excludes:
        return f"the split part {new.split_part!r} of {new.path} was changed"
    return ""


def fetch_join(metadataset: str, folder: Path) -> None:
    """Copy the index of a join from beside a metadataset in an object store, where it is there and not yet here.

    Args:
        metadataset: Path or URL; of a path, nothing is done.
        folder: Of the index, in the mirror of the metadataset's cache folder. Its name tells what was joined, so that
            it never changes.

    Raises:
        ReadError: The store cannot be reached.
        IndexFileError: The index is damaged.
    """
    if not is_url(metadataset) or folder.is_dir():
        return
    mirror = mirror_of(f"{metadataset}.cache")
    client = shared_client(storage_settings())
    header = ObjectRange(f"{mirror.url}/{folder.name}/{HEADER_NAME}")
    found = client.read(header)
    if found is None or found.data is None:
        return
    try:
        sizes = join_file_sizes(found.data, header.url)
        with mirror.locked():
            mirror.copy_folder(folder.name, sizes)
    except (MissingObjectError, RangeError) as error:
        raise IndexFileError(f"{header.url}: {error}") from error


def can_hold_joins(metadataset: str) -> bool:
    """Whether indices can be put beside a metadataset and listed there: not on a web server."""
    return not is_url(metadataset) or has_lists(metadataset, storage_settings())


def stored_joins(metadataset: str) -> dict[str, JoinHeader]:
    """Read the headers of all joins beside a metadataset in an object store, by name. Damaged ones are passed over.

    Args:
        metadataset: Path or URL; of a path, and of one on a web server, which has no lists, there are none.

    Raises:
        ReadError: The store cannot be reached.
    """
    if not is_url(metadataset) or not can_hold_joins(metadataset):
        return {}
    client = shared_client(storage_settings())
    cache = mirror_of(f"{metadataset}.cache").url

    def read(name: str) -> JoinHeader | None:
        url = f"{cache}/{name}"
        found = client.read(ObjectRange(url))
        with contextlib.suppress(IndexFileError):
            return None if found is None or found.data is None else decode_join_header(found.data, url)

    names = stored_headers(client.list(cache))
    headers = client.map(read, list(names.values()))
    return {name: header for name, header in zip(names, headers, strict=True) if header is not None}


def store_joins(metadataset: str, joins: Collection[str], names: Iterable[str], *, only: bool) -> list[str]:
    """Put join indices beside a metadataset in an object store, headers last.

    What is there already stays, but for our own files that are damaged.

    Args:
        metadataset: URL.
        joins: Their names.
        names: Files and folders in the mirror of its cache folder.
        only: Remove other joins of ours, which no join needs any more.

    Returns:
        Names of joins that were removed.

    Raises:
        ReadError: The store cannot be written.
    """
    mirror = mirror_of(f"{metadataset}.cache")
    client = shared_client(storage_settings())
    there = client.list(mirror.url)
    files = [file for name in names for file in _files(mirror.folder / name)]
    wanted = [file.relative_to(mirror.folder).as_posix() for file in files]
    kept = [name for name in wanted if name in there]
    whole = dict(zip(kept, client.map(lambda name: _is_whole(client, mirror, name), kept), strict=True))
    new = [name for name in wanted if not whole.get(name)]
    client.map(
        lambda name: client.write(f"{mirror.url}/{name}", (mirror.folder / name).read_bytes()),
        sorted(name for name in new if not name.endswith(HEADER_NAME)),
    )
    for name in new:
        if name.endswith(HEADER_NAME):
            client.write(f"{mirror.url}/{name}", (mirror.folder / name).read_bytes())
    stale = [name for name in stored_headers(there) if only and name not in joins]
    old = [name for name in there if any(part in name for part in stale)]
    client.map(lambda name: client.delete(f"{mirror.url}/{name}"), old)
    return stale


def _is_whole(client: ObjectClient, mirror: Mirror, name: str) -> bool:
    """Whether a file in the store is as long and ends as it does here; Energon's form is left alone."""
    if "/" not in name:
        return True
    with open(mirror.folder / name, "rb") as file:
        start = max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES)
        file.seek(start)
        here = file.read()
    try:
        found = client.read(ObjectRange(f"{mirror.url}/{name}", start))
    except RangeError:
        return False
    return found is not None and found.data == here


def _files(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]


_METADATA = ("__key__", "__restore_key__", "__subflavors__", "__sources__", "__shard__")


@dataclass(frozen=True, kw_only=True, slots=True)
class ArrayDataset:
    """An array whose rows belong to the samples of a join.

    Attributes:
        path: Its folder, or a URL.
        keys: The file with the keys of its rows, or its URL; None: a row has the number of the primary's sample.
        field: What the default merge calls it.
        written: The path as the configuration has it.
        through: As of a leaf.
    """

    path: str
    keys: str | None = None
    field: str
    written: str
    through: tuple[str, ...] = ()

    def resolve(self) -> ResolvedArray:
        """Read what it is. Raises as `ArraySource`."""
        return ResolvedArray(source=array_rows(self.path), field=self.field)

    def joined(self, nonmatch: Nonmatch) -> JoinedArray:
        """What a join is made of it. Raises as `JoinedArray`."""
        return JoinedArray(self.path, self.keys, nonmatch=nonmatch, written=self.written)


@dataclass(frozen=True, kw_only=True, slots=True)
class JoinMember:
    """One dataset or array of a join.

    Attributes:
        leaf: The dataset, whose order and subset have no meaning; or the array.
        nonmatch: What happens to a row whose key this dataset lacks.
        argument: Under which name the joiner gets its sample; None: by position.
        keys: How samples of a dataset are found where it is not prepared.
    """

    leaf: LeafDataset | ArrayDataset
    nonmatch: Nonmatch = "error"
    argument: str | None = None
    keys: Keys | None = None

    def opened(self) -> joining.JoinMember:
        """What a join is made of. Raises as `JoinedDataset`, `JoinedFiles` or `JoinedArray`."""
        leaf, keys = self.leaf, self.keys or Keys()
        if isinstance(leaf, ArrayDataset):
            return leaf.joined(self.nonmatch)
        if leaf.split_ratio is not None:
            raise ConfigError(
                f"{leaf.path}: a dataset that is joined takes no split_ratio, as its rows are found in all of it; "
                "take a `subset` of the join, or `where` with a column that says which part a sample is in"
            )
        if leaf.kind_there.open is not None:
            source = open_leaf(leaf, True).source
            return JoinedFiles(source, keys, nonmatch=self.nonmatch, written=leaf.written)
        if keys != Keys():
            raise ConfigError(f"{leaf.path}: its samples have keys, by which it is joined; leave `by` and `keys` out")
        return JoinedDataset(
            leaf.path,
            leaf.split_part,
            split_config=leaf.split_config,
            dataset_config=leaf.dataset_config,
            nonmatch=self.nonmatch,
            written=leaf.written,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Joiner:
    """What makes one sample of the joined ones. Making it imports nothing.

    Attributes:
        ref: The class or function that a file names; None where the program passed `target` itself.
        is_function: Whether it is called as it is; else it is a sample class whose `from_joined` is called.
        target: The class or function itself.
    """

    ref: ClassRef | None = None
    is_function: bool
    target: Callable[..., Any] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class JoinedLeafDataset(SavableDataset):
    """A leaf whose samples are rows of a join: one for each key of the first dataset, the primary.

    What the program says of leaves (the order, the task encoder, trusted modules) its primary has.

    Attributes:
        members: The primary, then the other datasets and arrays.
        joiner: What makes a sample of a row; None: the fields of all samples, merged.
        subset: Rows to take.
        where: Which of these to take, by their columns.
        name: As of a leaf.
        metadataset: The file that the join stands in, whose `.cache` folder has the join index; None: not in a file.
        place: Where the join stands.
    """

    members: tuple[JoinMember, ...]
    joiner: Joiner | None = None
    subset: Subset | None = None
    where: Expression | None = None
    name: str | None = None
    metadataset: str | None = None
    place: Place = dataclasses.field(default=Place("Join"), compare=False, repr=False)

    @property
    def primary(self) -> LeafDataset:
        """The first dataset."""
        return self.datasets[0]

    @property
    def datasets(self) -> tuple[LeafDataset, ...]:
        """All members that are datasets."""
        return tuple(member.leaf for member in self.members if isinstance(member.leaf, LeafDataset))

    @property
    def identity(self) -> tuple[str, ...]:
        """What distinguishes this leaf from others in a configuration, before occurrences are counted."""
        if self.name is not None:
            return ("name", self.name)
        written = [
            f"{leaf.label} {leaf.split_part}"
            if isinstance(leaf := member.leaf, LeafDataset)
            else f"array {'/'.join((*leaf.through, leaf.written))}"
            for member in self.members
        ]
        return ("join", *written, part_of(self.subset, self.where))

    @property
    def path(self) -> str:
        """The primary's folder, for messages."""
        return self.primary.path

    @property
    def split_part(self) -> str:
        """The primary's."""
        return self.primary.split_part

    @property
    def paths(self) -> list[EPath]:
        """Of all datasets in it."""
        return [EPath(dataset.path) for dataset in self.datasets]

    @property
    def tags(self) -> Mapping[str, Any]:
        """The primary's."""
        return self.primary.tags

    @property
    def subflavors(self) -> dict[str, Any]:
        """The primary's, with those of its own configuration."""
        return self.primary.subflavors

    @property
    def task_encoder(self) -> SampleMaker:
        """The primary's."""
        return self.primary.task_encoder

    @property
    def aux(self) -> Mapping[str, AuxReference]:
        """None: joined samples have no auxiliary stores."""
        return {}

    def lower(self, to: Lowering) -> Part:
        return to.leaf(self)

    def cook(self, leaf: Resolved, cache_pool: CachePool | None) -> HookSpec | None:
        """What turns crude samples of rows into samples. Joined samples have no auxiliary stores."""
        return cooking(self.task_encoder, leaf, {}, self.path, cache_pool)

    def inputs(self) -> tuple[joining.JoinMember, ...]:
        """Open the datasets and arrays that are joined.

        Raises:
            DatasetNotFoundError: A dataset is missing or not prepared.
            SplitError: A dataset has no such split part.
            EmptyDatasetError: A split part is empty.
        """
        return tuple(member.opened() for member in self.members)

    def resolve(self) -> ResolvedJoin:
        """Read the datasets' configurations and open the join index.

        Raises:
            DatasetNotFoundError: A dataset or array is missing, or the join is large and was not prepared.
            StaleIndexError: The join index does not fit the datasets.
            UntrustedCodeError: The joiner is of a module that the program did not declare.
            ConfigError: The configuration is wrong in another way, or the joiner does not fit.
            EmptyDatasetError: No row is left.
        """
        with asked_at(self.place):
            index = open_join(self)
            start, stop = (0, len(index)) if self.subset is None else self.subset.resolve(len(index), of="the join")
        members = tuple(
            member.leaf.resolve(whole=True) if isinstance(member.leaf, LeafDataset) else member.leaf.resolve()
            for member in self.members
        )
        row = self._bind_joiner(members, where=str(self.place))
        with asked_at(self.place):
            source = JoinedSource(
                index,
                [member.source for member in members],
                names=self._names,
                start=start,
                stop=stop,
                where=self.where,
            )
        return ResolvedJoin(
            source=source,
            members=members,
            row=row,
            ordering=self.primary.ordering(said_by=f"{self.place}: "),
        )

    def _bind_joiner(self, members: Sequence[ResolvedLeaf | ResolvedArray], *, where: str) -> JoinRow:
        """What makes the sample of a row: by default the primary's own type, of fields, or of crude samples one."""
        types = [member.sample_type for member in members if not isinstance(member, ResolvedArray)]
        names = [member.argument for member in self.members]
        keywords = None if None in names else tuple(str(name) for name in names)
        function, made = self._named_joiner(where)
        if function is None and not any(types):
            merge = MergeParts.of(self.members, members, named=keywords is not None, where=where)
            return JoinRow(merge, None, None, merges=True)
        if function is None and types[0] is None:
            raise ConfigError(
                f"{where}: the first dataset is crude and others are not, so no type of sample is known; name a "
                "`joiner`"
            )
        if function is None:
            made = types[0]
            assert made is not None
            function = made.from_joined
        if not is_default_merge(function):
            return JoinRow(function, keywords, made or object)
        assert made is not None
        if keywords is not None and len(types) > 1:
            takes = f"takes {', '.join(keywords)}"
            raise ConfigError(
                f"{where}: the datasets are joined by name, and no `joiner` {takes}; name one, or list the datasets "
                "without names"
                if self.joiner is None
                else f"{where}: the datasets are joined by name, but {made.__name__} has no `from_joined` of its own "
                f"that {takes}; write one, or list the datasets without names"
            )
        _check_merge(made, [(each.leaf.path, found) for each, found in zip(self.members, members, strict=True)], where)
        return JoinRow(made.from_joined, None, made, merges=True)

    def _named_joiner(self, where: str) -> tuple[Callable[..., Any] | None, type[Any] | None]:
        """The function that the configuration names, and the sample type that it is `from_joined` of."""
        joiner = self.joiner
        if joiner is None:
            return None, None
        named: Any = joiner.target
        if named is None:
            assert joiner.ref is not None
            resolve = resolve_function if joiner.is_function else resolve_class
            named = resolve(joiner.ref, trusted_modules=self.primary.trusted_modules, where=f"{where}: the joiner")
        if joiner.is_function:
            return named, None
        if not hasattr(named, "from_joined"):
            raise ConfigError(
                f"{where}: {named.__name__} has no `from_joined`; a joiner is a sample type that has one, or a "
                "function (`__function__`)"
            )
        return named.from_joined, named

    def rows(self) -> JoinedSource:
        """All rows with all parts, however samples are made of them. Raises as `resolve`."""
        with asked_at(self.place):
            index = open_join(self)
            return JoinedSource(
                index,
                [_whole(member.leaf) for member in self.members],
                names=self._names,
            )

    @property
    def _names(self) -> list[str | None]:
        return [member.argument or getattr(member.leaf, "field", None) for member in self.members]

    def check(self) -> None:
        """Raise what `resolve` would, as far as it can be told without an index."""
        for leaf in self.datasets:
            leaf.check(whole=True)


def _whole(leaf: LeafDataset | ArrayDataset) -> Source:
    """All samples of a dataset with all parts, or all rows."""
    return opened_samples(leaf.path, None) if isinstance(leaf, LeafDataset) else array_rows(leaf.path)


def is_default_merge(from_joined: Any) -> bool:
    """Whether it is `Sample`'s, which no subclass has replaced."""
    return getattr(from_joined, "__func__", from_joined) is getattr(Sample.from_joined, "__func__", None)


def _check_merge(made: type[Any], members: Sequence[tuple[str, ResolvedLeaf | ResolvedArray]], where: str) -> None:
    """Check that the fields of all members make a sample. Raises ConfigError, which says what to write."""
    given = _merged_fields(made, members, where)
    taken = inspect.signature(made).parameters.values()
    if given is None or any(each.kind is each.VAR_KEYWORD for each in taken):
        return
    unknown = next((name for name in given if name not in {each.name for each in taken}), None)
    lacking = next((each.name for each in taken if each.default is each.empty and each.name not in given), None)
    if unknown is not None:
        why = f"has no field {unknown!r}, which {given[unknown]} has"
    elif lacking is not None:
        why = f"needs {lacking!r}, and no dataset has that field"
    else:
        return
    fields = ", ".join(name for name in given if name not in {*BASE_FIELDS, "__valid__"})
    raise ConfigError(
        f"{where}: the fields of all datasets ({fields}) are merged into {made.__name__}, which {why}. Name a "
        f"`joiner`: a sample type with these fields, or one whose own `from_joined` takes a sample of each dataset"
    )


def _merged_fields(
    made: type[Any], members: Sequence[tuple[str, ResolvedLeaf | ResolvedArray]], where: str
) -> dict[str, str] | None:
    """The fields that are merged, and the last member that has each; None: only the samples themselves show them."""
    given: dict[str, str] = dict.fromkeys(BASE_FIELDS, "")
    known = {field.name for field in dataclasses.fields(made)}
    for path, member in members:
        if isinstance(member, ResolvedArray):
            if member.field not in known:
                raise ConfigError(
                    f"{where}: {made.__name__} has no field {member.field!r} for the rows of the array; say at the "
                    "array which `field` they are, or name a `joiner`"
                )
            given[member.field] = path
        elif member.load is not None and not isinstance(member.load, LoadSample):
            return None
        elif member.sample_type is None:
            raise ConfigError(
                f"{where}: {path} is crude, and its samples have no fields to merge into {made.__name__}; give it a "
                "sample type, or name a `joiner`"
            )
        elif not dataclasses.is_dataclass(member.sample_type):
            return None
        else:
            given.update(dict.fromkeys((field.name for field in dataclasses.fields(member.sample_type)), path))
    return given


@dataclass(frozen=True, slots=True)
class MergeParts:
    """Makes one crude sample of those of a row, with the parts of all. Key and tags are the primary's.

    Attributes:
        before: What is put before the names of the parts of each member.
        left_out: The part of each that only repeats the key of the row; None: there is none.
    """

    before: tuple[str, ...]
    left_out: tuple[str | None, ...]

    @classmethod
    def of(
        cls,
        members: Sequence[JoinMember],
        resolved: Sequence[ResolvedLeaf | ResolvedArray],
        *,
        named: bool,
        where: str,
    ) -> MergeParts:
        """Of members that are joined by name all but the primary have that name and a dot before their parts.

        Raises:
            ConfigError: A part of one member would stand in place of another's.
        """
        before, left_out = list[str](), list[str | None]()
        owners: dict[str, str] = {}
        for number, (member, found) in enumerate(zip(members, resolved, strict=True)):
            path = member.leaf.written or member.leaf.path
            alone = isinstance(found, ResolvedArray)
            prefix = f"{member.argument}." if named and number and not alone else ""
            parts = [found.field] if alone else [prefix + name for name in cast("Any", found.source).part_names]
            key = None if member.keys is None else member.keys.column
            repeats = key if key in owners and not prefix else None
            for part in parts:
                if part in owners and part != repeats:
                    raise ConfigError(
                        f"{where}: {owners[part]} and {path} both have a part {part!r}, and the joined sample has one "
                        "of that name. Name the datasets (`join: {first: {path: …}, second: {path: …}}`), so that the "
                        f"second's is 'second.{part}'; or name a `joiner`, which gets both samples"
                    )
                owners.setdefault(part, path)
            before.append(prefix)
            left_out.append(repeats)
        return cls(tuple(before), tuple(left_out))

    def __call__(self, *samples: CrudeSample | None) -> CrudeSample:
        """The sample of a row, whose primary is there."""
        primary = samples[0]
        assert primary is not None
        merged = CrudeSample(primary)
        sources = primary["__sources__"]
        for sample, before, left_out in zip(samples[1:], self.before[1:], self.left_out[1:], strict=True):
            if sample is not None:
                own = {before + name: sample[name] for name in sample if name not in _METADATA and name != left_out}
                merged.update(own)
                sources += sample["__sources__"]
        merged["__sources__"] = sources
        return merged
