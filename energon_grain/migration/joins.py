"""What the joins of a metadataset come to that matters for a move."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from energon_grain.errors import ConfigError, EnergonGrainError
from energon_grain.formats.class_ref import resolve_class, resolve_function
from energon_grain.formats.commit_journal import JOURNAL
from energon_grain.formats.join_index import cache_folder, energon_join_names, index_file_name
from energon_grain.formats.join_rows import joins_in
from energon_grain.formats.nv_meta import read_info, read_uuid
from energon_grain.metadataset.open_join import JOINED_ON_USE, join_inputs
from energon_grain.metadataset.tree import Join
from energon_grain.migration.finding import Finding, refusal
from energon_grain.migration.options import CheckOptions
from energon_grain.migration.trust import untrusted
from energon_grain.prepare.join_input import JoinInput


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckedJoin:
    """A join of one split, with what Energon calls its index."""

    join: Join
    inputs: tuple[JoinInput, ...]
    energon_names: frozenset[str]

    @property
    def cache(self) -> Path | None:
        """The folder for its index."""
        return None if self.join.metadataset is None else cache_folder(self.join.metadataset)


def join_findings(join: Join, options: CheckOptions) -> tuple[CheckedJoin | None, list[Finding]]:
    """Look at one join; what is in the folders of its datasets is for `dataset_findings`."""
    findings = list(_joiner(join, options))
    findings += [
        Finding(
            severity="better",
            where=str(member.leaf.place.at("nonmatch")),
            what="none: rows are kept without this dataset.",
            energon="writes such an index, and fails when it reads a row of it",
            here="the joiner gets None",
        )
        for member in join.members
        if member.nonmatch == "none"
    ]
    if len(join.datasets) < len(join.members):
        return None, findings  # Energon joins no arrays: nothing to compare with
    if any((Path(leaf.path) / JOURNAL).exists() for leaf in join.datasets):
        return None, findings  # whoever opens the dataset completes its preparation, which is not for us to do
    try:
        inputs = tuple(each for each in join_inputs(join) if isinstance(each, JoinInput))
    except EnergonGrainError as error:
        return None, [*findings, refusal(join.place, error)]
    uuids = [read_uuid(each.root) for each in inputs]
    described = [
        (uuid, each.energon_excludes, each.nonmatch)
        for uuid, each in zip(uuids, inputs, strict=True)
        if uuid is not None
    ]
    names = frozenset(energon_join_names(described)) if len(described) == len(inputs) else frozenset[str]()
    checked = CheckedJoin(join=join, inputs=inputs, energon_names=names)
    return checked, [*findings, *_excludes(checked), *_index(checked)]


def shared_index_findings(joins: Sequence[CheckedJoin]) -> Iterator[Finding]:
    """Look for joins of different splits of which Energon makes one index file."""
    for number, one in enumerate(joins):
        for other in joins[:number]:
            parts = [[each.split_part for each in join.inputs] for join in (other, one)]
            if one.cache is not None and one.cache == other.cache and parts[0] != parts[1]:
                if not one.energon_names & other.energon_names:
                    continue
                yield Finding(
                    severity="differs",
                    where=str(one.join.place),
                    what=f"The datasets of {other.join.place} in other split parts.",
                    energon="names the index of a join without its split parts: both read the file of one of them, and "
                    "the other has wrong samples",
                    here="each has an index of its own; Energon's file is used where all of its rows fit",
                )
                break


def _joiner(join: Join, options: CheckOptions) -> Iterator[Finding]:
    if join.joiner is None or join.joiner.ref is None:
        return
    ref, place = join.joiner.ref, str(join.place.at("joiner"))
    finding = untrusted(place, ref, options)
    if finding is not None:
        yield finding
    elif ref.is_ours:
        try:
            resolve_function(ref) if join.joiner.is_function else resolve_class(ref)
        except ConfigError as error:
            yield refusal(place, error)


def _excludes(checked: CheckedJoin) -> Iterator[Finding]:
    for member, each in zip(checked.join.members, checked.inputs, strict=True):
        kept = set(each.shards)
        joined_on = [shard for shard in each.listed if shard not in kept and "/" not in shard]
        if joined_on:
            yield Finding(
                severity="differs",
                where=str(member.leaf.place),
                what=f"{', '.join(dict.fromkeys(joined_on))} of {each.root} are excluded, and joined.",
                energon="forgets the exclusion of whole shards at the root of a dataset when it joins",
                here="they are excluded",
            )
        if len(each.energon_excludes) > 1:
            yield Finding(
                severity="better",
                where=str(member.leaf.place),
                what=f"{each.root} has {len(each.energon_excludes)} excludes.",
                energon="names the index by their order in a set: another process may not find it",
                here="found, whatever the order",
            )


def _index(checked: CheckedJoin) -> Iterator[Finding]:
    cache = checked.cache
    if cache is None:
        return
    place = str(checked.join.place)
    members = [(each.written, each.split_part, each.nonmatch) for each in checked.inputs]
    ours = (
        [(member.path, member.split_part, member.nonmatch) for member in header.members]
        for header in joins_in(cache).values()
    )
    if members in ours:
        return
    command = f"`energon-grain prepare {checked.join.metadataset}`"
    if any((cache / index_file_name(name)).exists() for name in checked.energon_names):
        yield Finding(
            severity="note",
            where=place,
            what="Energon's index of the join is there.",
            here="used if each of its rows fits, which takes about 2 µs a row at each start",
            advice=f"{command} writes ours, which is only opened",
        )
        return
    primary = checked.inputs[0]
    counts = read_info(primary.root).shard_counts
    samples = sum(counts[shard] for shard in primary.shards)
    if samples > JOINED_ON_USE:
        yield Finding(
            severity="error",
            where=place,
            what=f"The join of {samples:,} samples was not prepared.",
            energon="refused too",
            here=f"refused: up to {JOINED_ON_USE:,} samples are joined when they are first used, more are not",
            advice=command,
        )
    else:
        yield Finding(
            severity="better",
            where=place,
            what=f"The join of {samples:,} samples was not prepared.",
            energon="refused",
            here="joined on first use",
            advice=f"{command} does it before",
        )
