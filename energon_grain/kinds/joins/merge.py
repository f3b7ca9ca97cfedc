# SPDX-License-Identifier: Apache-2.0
"""The default joiner: merges the fields, or the parts, of the samples of all members."""

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
    """Whether it is `Sample`'s own, not replaced by a subclass."""
    return getattr(from_joined, "__func__", from_joined) is getattr(Sample.from_joined, "__func__", None)


def check_merge(made: type[Any], members: Sequence[tuple[str, ResolvedLeaf | ResolvedArray]], where: str) -> None:
    """Check that the fields of all members make a sample. Raises ConfigError with a suggestion."""
    given = _merged_fields(made, members, where)
    taken = inspect.signature(made).parameters.values()
    if given is None or any(each.kind is each.VAR_KEYWORD for each in taken):
        return
    unknown = next((name for name in given if name not in {each.name for each in taken}), None)
    lacking = next((each.name for each in taken if each.default is each.empty and each.name not in given), None)
    if unknown is not None:
        why = f"has no field {unknown!r} of {given[unknown]}"
    elif lacking is not None:
        why = f"requires {lacking!r}, a field that no dataset has"
    else:
        return
    fields = ", ".join(name for name in given if name not in {*BASE_FIELDS, "__valid__"})
    raise ConfigError(
        f"{where}: the fields of all datasets ({fields}) are merged into {made.__name__}, which {why}. Set a "
        f"`joiner`: a sample type with these fields, or one whose own `from_joined` takes a sample of each dataset"
    )


def _merged_fields(
    made: type[Any], members: Sequence[tuple[str, ResolvedLeaf | ResolvedArray]], where: str
) -> dict[str, str] | None:
    """The fields to merge, with the last member that has each; None: only the samples determine them."""
    given: dict[str, str] = dict.fromkeys(BASE_FIELDS, "")
    known = {field.name for field in dataclasses.fields(made)}
    for path, member in members:
        if isinstance(member, ResolvedArray):
            if member.field not in known:
                raise ConfigError(
                    f"{where}: {made.__name__} has no field {member.field!r} for the rows of the array; set the "
                    "`field` of the array, or set a `joiner`"
                )
            given[member.field] = path
        elif member.load is not None and not isinstance(member.load, LoadSample):
            return None
        elif member.sample_type is None:
            raise ConfigError(
                f"{where}: {path} is crude, so its samples have no fields to merge into {made.__name__}; give it a "
                "sample type, or set a `joiner`"
            )
        elif not dataclasses.is_dataclass(member.sample_type):
            return None
        else:
            given.update(dict.fromkeys((field.name for field in dataclasses.fields(member.sample_type)), path))
    return given


@dataclass(frozen=True, slots=True)
class MergeParts:
    """Merges the crude samples of a row into one, with the parts of all. Key and tags are the primary's.

    Attributes:
        before: Prefix of the part names of each member.
        left_out: The part of each member that only repeats the key of the row; None without one.
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
        """For members joined by name, the parts of all but the primary get the member's name and a dot as prefix.

        Raises:
            ConfigError: Two members have a part of the same name.
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
                        f"{where}: {owners[part]} and {path} both have a part {part!r}, but part names of the joined "
                        "sample must be unique. Name the datasets (`join: {first: {path: …}, second: {path: …}}`), so "
                        f"the second part becomes 'second.{part}'; or set a `joiner`, which gets both samples"
                    )
                owners.setdefault(part, path)
            before.append(prefix)
            left_out.append(repeats)
        return cls(tuple(before), tuple(left_out))

    def __call__(self, *samples: CrudeSample | None) -> CrudeSample:
        """The sample of a row. The primary is never None."""
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
