"""Datasets that are joined by the keys of their samples: how they stand in a configuration, and a sample of a row."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from energon_grain.datasets.aux_stores import AuxReference
from energon_grain.datasets.cooker import SampleMaker, cooking
from energon_grain.datasets.dataset import SavableDataset
from energon_grain.datasets.leaf import LeafDataset
from energon_grain.datasets.lowering import Lowering, Part
from energon_grain.datasets.open_join import open_join
from energon_grain.errors import ConfigError
from energon_grain.formats.class_ref import ClassRef, resolve_class, resolve_function
from energon_grain.forms import Place, asked_at
from energon_grain.prepare import join_members as joining
from energon_grain.prepare.join_members import JoinedArray, Keys, Nonmatch
from energon_grain.prepare.samples import opened_samples
from energon_grain.samplers.expression import Expression
from energon_grain.samplers.subset import Subset, part_of
from energon_grain.samples.sample import Sample
from energon_grain.samples.types import CrudeSample
from energon_grain.sources.arrays import ArraySource
from energon_grain.sources.cache_pool import CachePool
from energon_grain.sources.joined import JoinedSource, MemberSource
from energon_grain.stream.hooks import HookSpec
from energon_grain.stream.spec import JoinRow, ResolvedArray, ResolvedJoin, ResolvedLeaf

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
        return ResolvedArray(source=ArraySource(self.path), field=self.field)

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
        """What a join is made of."""
        if isinstance(self.leaf, ArrayDataset):
            return self.leaf.joined(self.nonmatch)
        return self.leaf.joined(self.nonmatch, self.keys or Keys())


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
    def subflavors(self) -> Mapping[str, Any]:
        """The primary's."""
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

    def cook(self, leaf: ResolvedLeaf | ResolvedJoin, cache_pool: CachePool | None) -> HookSpec | None:
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
        row = bind_joiner(
            self.joiner,
            types=[member.sample_type for member in members if not isinstance(member, ResolvedArray)],
            fields=[member.field for member in members if isinstance(member, ResolvedArray)],
            names=[member.argument for member in self.members],
            trusted_modules=self.primary.trusted_modules,
            where=str(self.place),
        )
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

    def rows(self) -> JoinedSource:
        """All rows with all parts, however samples are made of them. Raises as `resolve`."""
        with asked_at(self.place):
            index = open_join(self)
            return JoinedSource(
                index,
                [
                    _whole(each.leaf.path) if isinstance(each.leaf, LeafDataset) else ArraySource(each.leaf.path)
                    for each in self.members
                ],
                names=self._names,
            )

    @property
    def _names(self) -> list[str | None]:
        return [member.argument or getattr(member.leaf, "field", None) for member in self.members]

    def check(self) -> None:
        """Raise what `resolve` would, as far as it can be told without an index."""
        for leaf in self.datasets:
            leaf.check(whole=True)


def _whole(path: str) -> MemberSource:
    """All samples of a dataset, with all parts."""
    source = opened_samples(path, None)
    assert not isinstance(source, JoinedSource)
    return source


def bind_joiner(
    joiner: Joiner | None,
    *,
    types: Sequence[type[Any] | None],
    fields: Sequence[str] = (),
    names: Sequence[str | None],
    trusted_modules: Collection[str],
    where: str,
) -> JoinRow:
    """What makes the sample of a row.

    Args:
        joiner: What the configuration names. None: the default merge, into the primary's own type, or of crude samples
            into one that has the parts of all.
        types: Sample type of each dataset; None for a crude one.
        fields: What the default merge calls the rows of each array.
        names: Under which keyword the joiner gets each dataset and array; None: by position.
        trusted_modules: Modules that may be imported for it.
        where: Place of the join, for messages.

    Raises:
        ConfigError: There is no such class or function, or it cannot join these datasets.
        UntrustedCodeError: Its module is neither ours nor trusted.
    """
    keywords = None if None in names else tuple(str(name) for name in names)
    if joiner is None:
        return _default(types, fields, keywords, where)
    function: Any = joiner.target
    if function is None:
        assert joiner.ref is not None
        resolve = resolve_function if joiner.is_function else resolve_class
        function = resolve(joiner.ref, trusted_modules=trusted_modules, where=f"{where}: the joiner")
    if joiner.is_function:
        return JoinRow(function, keywords, object)
    from_joined = getattr(function, "from_joined", None)
    if from_joined is None:
        raise ConfigError(
            f"{where}: {function.__name__} has no `from_joined`; a joiner is a sample type that has one, or a function "
            f"(`__function__`)"
        )
    if not is_default_merge(from_joined):
        return JoinRow(from_joined, keywords, function)
    if keywords is not None and len(types) > 1:
        raise ConfigError(
            f"{where}: the datasets are joined by name, but {function.__name__} has no `from_joined` of its own that "
            f"takes {', '.join(keywords)}; write one, or list the datasets without names"
        )
    return _merge(function, fields, where)


def is_default_merge(from_joined: Any) -> bool:
    """Whether it is `Sample`'s, which no subclass has replaced."""
    return getattr(from_joined, "__func__", from_joined) is getattr(Sample.from_joined, "__func__", None)


def _default(
    types: Sequence[type[Any] | None], fields: Sequence[str], keywords: tuple[str, ...] | None, where: str
) -> JoinRow:
    if keywords is not None and len(types) > 1:
        raise ConfigError(
            f"{where}: the datasets are joined by name, and no `joiner` takes {', '.join(keywords)}; name one, or list "
            f"the datasets without names"
        )
    primary = types[0]
    if primary is not None:
        if is_default_merge(primary.from_joined):
            return _merge(primary, fields, where)
        return JoinRow(primary.from_joined, keywords, primary)
    if any(each is not None for each in types):
        raise ConfigError(
            f"{where}: the first dataset is crude and others are not, so no type of sample is known; name a `joiner`"
        )
    return JoinRow(merge_crude, None, None, merges=True)


def _merge(sample_type: type[Any], fields: Sequence[str], where: str) -> JoinRow:
    """The default merge into a sample type."""
    known = {field.name for field in dataclasses.fields(sample_type)}
    for name in fields:
        if name not in known:
            raise ConfigError(
                f"{where}: {sample_type.__name__} has no field {name!r} for the rows of the array; say at the array "
                "which `field` they are, or name a `joiner`"
            )
    return JoinRow(sample_type.from_joined, None, sample_type, merges=True)


def merge_crude(*samples: CrudeSample | None) -> CrudeSample:
    """The parts of all crude samples in one; of parts with equal names the last counts. Key and tags are the first's.

    Raises:
        TypeError: The first sample is missing.
    """
    primary = samples[0]
    if primary is None:
        raise TypeError("the primary sample of a join must not be missing")
    merged = CrudeSample(primary)
    for sample in samples[1:]:
        if sample is not None:
            merged.update({name: value for name, value in sample.items() if name not in _METADATA})
    sources = [sample["__sources__"] for sample in samples if sample is not None and sample["__sources__"]]
    for more in sources[1:]:
        sources[0] = sources[0] + more
    merged["__sources__"] = sources[0] if sources else ()
    return merged
