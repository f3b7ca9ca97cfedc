# SPDX-License-Identifier: Apache-2.0
"""The default way of making a sample of a row: the fields, or the parts, of the samples of all members."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from energon_grain.datasets.leaf import LoadSample
from energon_grain.errors import ConfigError
from energon_grain.kinds.joins.rows import ResolvedArray
from energon_grain.samples.sample import BASE_FIELDS, Sample
from energon_grain.samples.types import CrudeSample
from energon_grain.stream.spec import ResolvedLeaf

if TYPE_CHECKING:
    from energon_grain.kinds.joins.leaf import JoinMember

_METADATA = ("__key__", "__restore_key__", "__subflavors__", "__sources__", "__shard__")


def is_default_merge(from_joined: Any) -> bool:
    """Whether it is `Sample`'s, which no subclass has replaced."""
    return getattr(from_joined, "__func__", from_joined) is getattr(Sample.from_joined, "__func__", None)


def check_merge(made: type[Any], members: Sequence[tuple[str, ResolvedLeaf | ResolvedArray]], where: str) -> None:
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
            prefix, parts = "", ()
            if isinstance(found, ResolvedArray):
                parts = (found.field,)
            else:
                prefix = f"{member.argument}." if named and number else ""
                parts = [prefix + name for name in cast("Any", found.source).part_names]
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
