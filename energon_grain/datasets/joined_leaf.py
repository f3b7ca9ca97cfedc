"""Datasets that are joined by the keys of their samples: how they stand in a configuration, and a sample of a row."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
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
from energon_grain.prepare.measure import opened_samples
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
        fields = [member.field for member in members if isinstance(member, ResolvedArray)]
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
        return _merge(made, fields, where)

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


def is_default_merge(from_joined: Any) -> bool:
    """Whether it is `Sample`'s, which no subclass has replaced."""
    return getattr(from_joined, "__func__", from_joined) is getattr(Sample.from_joined, "__func__", None)


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
            is_array = isinstance(found, ResolvedArray)
            prefix = f"{member.argument}." if named and number and not is_array else ""
            parts = [found.field] if is_array else [prefix + name for name in found.source.part_names]
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
