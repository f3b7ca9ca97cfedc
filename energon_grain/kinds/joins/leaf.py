# SPDX-License-Identifier: Apache-2.0
"""Datasets joined by sample key, as nodes of a configuration."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from energon_grain.cooking.aux_stores import AuxReference
from energon_grain.cooking.cooker import cooking
from energon_grain.datasets.dataset import SavableDataset
from energon_grain.datasets.hooks import SampleMaker
from energon_grain.datasets.leaf import LeafDataset, open_leaf
from energon_grain.datasets.lowering import Lowering, Part
from energon_grain.errors import ConfigError
from energon_grain.formats.class_ref import ClassRef, resolve_class, resolve_function
from energon_grain.forms import Place, errors_at
from energon_grain.kinds.joins import members as joining
from energon_grain.kinds.joins.members import JoinedArray, JoinedDataset, JoinedFiles, Keys, Nonmatch, array_rows
from energon_grain.kinds.joins.merge import MergeParts, check_merge, is_default_merge
from energon_grain.kinds.joins.opening import open_join
from energon_grain.kinds.joins.rows import JoinRow, ResolvedArray, ResolvedJoin
from energon_grain.kinds.joins.source import JoinedSource
from energon_grain.prepare.samples import opened_samples
from energon_grain.samplers.expression import Expression
from energon_grain.samplers.subset import Subset, part_of
from energon_grain.sources.cache_pool import CachePool
from energon_grain.sources.source import Source
from energon_grain.storage.epath import EPath
from energon_grain.stream.hooks import HookSpec
from energon_grain.stream.spec import Resolved, ResolvedLeaf


@dataclass(frozen=True, kw_only=True, slots=True)
class ArrayDataset:
    """An array whose rows belong to the samples of a join.

    Attributes:
        path: Its folder, or a URL.
        keys: File or URL with the keys of its rows; None: row i belongs to sample i of the primary.
        field: Its name in the default merge.
        written: The path as written in the configuration.
        through: As for a leaf.
    """

    path: str
    keys: str | None = None
    field: str
    written: str
    through: tuple[str, ...] = ()

    def resolve(self) -> ResolvedArray:
        """Open the array. Raises as `ArraySource`."""
        return ResolvedArray(source=array_rows(self.path), field=self.field)

    def joined(self, nonmatch: Nonmatch) -> JoinedArray:
        """The array as a member of a join. Raises as `JoinedArray`."""
        return JoinedArray(self.path, self.keys, nonmatch=nonmatch, written=self.written)


@dataclass(frozen=True, kw_only=True, slots=True)
class JoinMember:
    """One dataset or array of a join.

    Attributes:
        leaf: The dataset, whose order and subset are ignored; or the array.
        nonmatch: Treatment of rows whose key this dataset lacks.
        argument: Keyword by which the joiner gets its sample; None: by position.
        keys: How samples of an unprepared dataset are found.
    """

    leaf: LeafDataset | ArrayDataset
    nonmatch: Nonmatch = "error"
    argument: str | None = None
    keys: Keys | None = None

    def opened(self) -> joining.JoinMember:
        """The dataset or array as a member of a join. Raises as `JoinedDataset`, `JoinedFiles` or `JoinedArray`."""
        leaf, keys = self.leaf, self.keys or Keys()
        if isinstance(leaf, ArrayDataset):
            return leaf.joined(self.nonmatch)
        if leaf.split_ratio is not None:
            raise ConfigError(
                f"{leaf.path}: a joined dataset does not support split_ratio, since all of it is searched; use "
                "`subset` of the join, or `where` with a column that contains the part of each sample"
            )
        if leaf.kind_there.open is not None:
            source = open_leaf(leaf, True).source
            return JoinedFiles(source, keys, nonmatch=self.nonmatch, written=leaf.written)
        if keys != Keys():
            raise ConfigError(f"{leaf.path}: its samples are joined by their own keys; remove `by` and `keys`")
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
    """The function that makes one sample from the joined ones. Constructing it imports nothing.

    Attributes:
        ref: The class or function that a file names; None if the program passed `target` itself.
        is_function: Whether it is called directly; else it is a sample class whose `from_joined` is called.
        target: The class or function itself.
    """

    ref: ClassRef | None = None
    is_function: bool
    target: Callable[..., Any] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class JoinedLeafDataset(SavableDataset):
    """A leaf whose samples are rows of a join: one for each key of the first dataset, the primary.

    The settings of a program for leaves (the order, the task encoder, trusted modules) are those of the primary.

    Attributes:
        members: The primary, then the other datasets and arrays.
        joiner: Makes a sample from a row; None: the fields of all samples are merged.
        subset: Rows to take.
        where: Condition on columns that these rows must meet.
        name: As for a leaf.
        metadataset: The file with the join, whose `.cache` folder has the join index; None: not in a file.
        place: Location of the join in the file.
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
        """Identifies this leaf among others in a configuration, before occurrences are counted."""
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
        """The primary's split part."""
        return self.primary.split_part

    @property
    def paths(self) -> list[EPath]:
        """Paths of all its datasets."""
        return [EPath(dataset.path) for dataset in self.datasets]

    @property
    def tags(self) -> Mapping[str, Any]:
        """The primary's tags."""
        return self.primary.tags

    @property
    def subflavors(self) -> dict[str, Any]:
        """The primary's subflavors, with those of its own configuration."""
        return self.primary.subflavors

    @property
    def task_encoder(self) -> SampleMaker:
        """The primary's task encoder."""
        return self.primary.task_encoder

    @property
    def aux(self) -> Mapping[str, AuxReference]:
        """Empty: joined samples have no auxiliary stores."""
        return {}

    def lower(self, to: Lowering) -> Part:
        return to.leaf(self)

    def cook(self, leaf: Resolved, cache_pool: CachePool | None) -> HookSpec | None:
        """The hook that cooks crude samples of rows. Joined samples have no auxiliary stores."""
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
            StaleIndexError: The join index does not match the datasets.
            UntrustedCodeError: The joiner's module is not trusted by the program.
            ConfigError: The configuration is wrong in another way, or the joiner does not fit.
            EmptyDatasetError: The join has no rows.
        """
        with errors_at(self.place):
            index = open_join(self)
            start, stop = (0, len(index)) if self.subset is None else self.subset.resolve(len(index), of="the join")
        members = tuple(
            member.leaf.resolve(whole=True) if isinstance(member.leaf, LeafDataset) else member.leaf.resolve()
            for member in self.members
        )
        row = self._bind_joiner(members, where=str(self.place))
        with errors_at(self.place):
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
            ordering=self.primary.ordering(error_prefix=f"{self.place}: "),
        )

    def _bind_joiner(self, members: Sequence[ResolvedLeaf | ResolvedArray], *, where: str) -> JoinRow:
        """The function that makes the sample of a row: by default a merge into the primary's type, or crude."""
        types = [member.sample_type for member in members if not isinstance(member, ResolvedArray)]
        keywords = self._keywords
        function, made = self._named_joiner(where)
        if function is None:
            if not any(types):
                merge = MergeParts.of(self.members, members, named=keywords is not None, where=where)
                return JoinRow(merge, None, None, merges=True)
            made = types[0]
            if made is None:
                raise ConfigError(
                    f"{where}: the first dataset is crude and others are not, so the sample type is unknown; set a "
                    "`joiner`"
                )
            function = made.from_joined
        if not is_default_merge(function):
            return JoinRow(function, keywords, made or object)
        assert made is not None
        if keywords is not None and len(types) > 1:
            takes = f"takes {', '.join(keywords)}"
            raise ConfigError(
                f"{where}: the datasets are joined by name, and no `joiner` {takes}; set one, or list the datasets "
                "without names"
                if self.joiner is None
                else f"{where}: the datasets are joined by name, but {made.__name__} does not define a `from_joined` "
                f"that {takes}; write one, or list the datasets without names"
            )
        check_merge(made, [(each.leaf.path, found) for each, found in zip(self.members, members, strict=True)], where)
        return JoinRow(made.from_joined, None, made, merges=True)

    @property
    def _keywords(self) -> tuple[str, ...] | None:
        """Keywords by which a joiner gets samples; None: by position."""
        names = tuple(member.argument for member in self.members)
        return None if None in names else cast("tuple[str, ...]", names)

    def _named_joiner(self, where: str) -> tuple[Callable[..., Any] | None, type[Any] | None]:
        """The function named in the configuration, and the sample type whose `from_joined` it is."""
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
                f"{where}: {named.__name__} has no `from_joined`; a joiner is a sample type with a `from_joined`, or a "
                "function (`__function__`)"
            )
        return named.from_joined, named

    def rows(self) -> JoinedSource:
        """All rows with all parts, independent of the joiner. Raises as `resolve`."""
        with errors_at(self.place):
            index = open_join(self)
            return JoinedSource(index, [_whole(member.leaf) for member in self.members], names=self._names)

    @property
    def _names(self) -> list[str | None]:
        return [member.argument or getattr(member.leaf, "field", None) for member in self.members]

    def check(self) -> None:
        """Raise the errors of `resolve` that can be detected without an index."""
        for leaf in self.datasets:
            leaf.check(whole=True)


def _whole(leaf: LeafDataset | ArrayDataset) -> Source:
    """All samples of a dataset with all parts, or all rows."""
    return opened_samples(leaf.path, None) if isinstance(leaf, LeafDataset) else array_rows(leaf.path)
