"""What a metadataset comes to: a tree of leaves with everything inherited already merged into them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, TypeAlias

from energon_grain.formats.nv_meta import DatasetKind
from energon_grain.metadataset.blends import check_schedule
from energon_grain.metadataset.joins import Joiner, Nonmatch
from energon_grain.metadataset.place import Place, wrong
from energon_grain.metadataset.references import AuxReference
from energon_grain.metadataset.subset import Subset


@dataclass(frozen=True, kw_only=True, slots=True)
class LeafReference:
    """One split part of one dataset.

    Attributes:
        written: The path as the file has it.
        through: Paths of the nested metadatasets that lead here, as written, outermost first.
        path: Absolute path, or a URL.
        kind: WEBDATASET, ARRAY_RECORD, JSONL or ARRAY; INVALID where nothing is there, which only `require_data=False`
            lets pass.
        split_part: The part to read.
        subflavors: Tags, without those of the dataset's own `dataset.yaml`, which give way to these.
        shuffle_over_epochs_multiplier: Passes shuffled as one; -1: with replacement; None: no shuffling.
        dataset_config: Name of another `dataset.yaml`.
        split_config: Name of another `split.yaml`.
        subset: Samples to take, all levels composed; None: all.
        aux: Auxiliary stores by name, with absolute paths.
        name: The leaf's identity in the random order; None: made of `written`, split part and subset.
        place: Where the reference stands.
    """

    written: str
    through: tuple[str, ...] = ()
    path: str
    kind: DatasetKind = DatasetKind.WEBDATASET
    split_part: str
    subflavors: Mapping[str, Any] = field(default_factory=dict[str, Any])
    shuffle_over_epochs_multiplier: int | None = 1
    dataset_config: str | None = None
    split_config: str | None = None
    subset: Subset | None = None
    aux: Mapping[str, AuxReference] = field(default_factory=dict[str, AuxReference])
    name: str | None = None
    place: Place = field(default=Place("LeafReference"), compare=False, repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class ArrayReference:
    """An array whose rows belong to the samples of a join.

    Attributes:
        written: The path as the file has it.
        through: As of a leaf.
        path: Absolute path of its folder, or a URL.
        keys: Absolute path, or URL, of the file with the keys of its rows; None: a row has the number of the primary's
            sample.
        field: What the default merge calls it.
        place: Where the reference stands.
    """

    written: str
    through: tuple[str, ...] = ()
    path: str
    keys: str | None = None
    field: str
    place: Place = dataclasses.field(default=Place("ArrayReference"), compare=False, repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class JoinMember:
    """One dataset or array of a join.

    Attributes:
        leaf: The dataset, whose order and subset are those of the join; or the array.
        nonmatch: What happens to a row whose key this dataset lacks.
        argument: Under which name the joiner gets its sample; None: by position.
    """

    leaf: LeafReference | ArrayReference
    nonmatch: Nonmatch = "error"
    argument: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Join:
    """Datasets whose samples are joined by key: one leaf with a row for each key of the first, the primary.

    Attributes:
        members: The primary, which is a dataset, then the others.
        joiner: What makes a sample of a row; None: the fields of all samples, merged.
        split_part: The part that members read which name none themselves.
        shuffle_over_epochs_multiplier: As of a leaf, for the rows.
        subset: Rows to take.
        name: As of a leaf.
        metadataset: The file that the join stands in, whose `.cache` folder has the join index; None: not in a file.
        through: As of a leaf.
        place: Where the join stands.
    """

    members: tuple[JoinMember, ...]
    joiner: Joiner | None = None
    split_part: str
    shuffle_over_epochs_multiplier: int | None = 1
    subset: Subset | None = None
    name: str | None = None
    metadataset: str | None = None
    through: tuple[str, ...] = ()
    place: Place = field(default=Place("Join"), compare=False, repr=False)

    @property
    def primary(self) -> LeafReference:
        """The first dataset."""
        return self.datasets[0]

    @property
    def datasets(self) -> tuple[LeafReference, ...]:
        """All members that are datasets."""
        return tuple(member.leaf for member in self.members if isinstance(member.leaf, LeafReference))


@dataclass(frozen=True, kw_only=True, slots=True)
class Blend:
    """An endless mixture by weights.

    Attributes:
        children: At least one.
        schedule: (from_position, a weight for each child) of each segment, the first from 0. Positions count along the
            outermost blend. Weights are exact, as written, not normalised; 0 only where there are several segments.
        place: Where the blend stands.
    """

    children: tuple[TreeNode, ...]
    schedule: tuple[tuple[int, tuple[Fraction, ...]], ...]
    place: Place = field(default=Place("Blend"), compare=False, repr=False)

    def __post_init__(self) -> None:
        check_schedule(self.schedule, len(self.children), self.place.at("schedule"))


@dataclass(frozen=True, kw_only=True, slots=True)
class BlendEpochized:
    """A finite mixture by repetitions.

    Attributes:
        children: At least one.
        repetitions: How often an epoch has each sample of each child, exact, above 0.
        place: Where the blend stands.
    """

    children: tuple[TreeNode, ...]
    repetitions: tuple[Fraction, ...]
    place: Place = field(default=Place("BlendEpochized"), compare=False, repr=False)

    def __post_init__(self) -> None:
        if len(self.repetitions) != len(self.children) or not all(number > 0 for number in self.repetitions):
            raise wrong(self.place, f"needs repetitions above 0 for each of its {len(self.children)} children")


@dataclass(frozen=True, kw_only=True, slots=True)
class Concat:
    """Children one after the other.

    Attributes:
        children: At least one.
        place: Where the concat stands.
    """

    children: tuple[TreeNode, ...]
    place: Place = field(default=Place("Concat"), compare=False, repr=False)


TreeLeaf: TypeAlias = LeafReference | Join
TreeNode: TypeAlias = TreeLeaf | Blend | BlendEpochized | Concat
