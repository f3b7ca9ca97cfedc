"""What metadataset files say that matters for a move: each file by itself, and those that it refers to."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

import yaml

from energon_grain.errors import ConfigError, ReadError
from energon_grain.formats.file_ending import METADATASET_ENDINGS
from energon_grain.formats.yaml_dialect import parse_yaml
from energon_grain.metadataset.blends import MetadatasetBlend, MetadatasetBlendEpochized, MetadatasetConcat, Node
from energon_grain.metadataset.documents import Metadataset, parse_document
from energon_grain.metadataset.joins import MetadatasetJoin, meaningless_keys
from energon_grain.metadataset.keys import place_of
from energon_grain.metadataset.place import Place
from energon_grain.metadataset.references import DatasetReference
from energon_grain.migration.finding import Finding, merge_alike, refusal
from energon_grain.storage.location import absolute, folder_of
from energon_grain.storage.read_whole import read_beginning, read_whole


def file_findings(path: str, done: set[str]) -> Iterator[Finding]:
    """Look at a metadataset file and, once each, at those that it refers to.

    Args:
        path: The file, a path or URL.
        done: Absolute locations of the files that were looked at; this one and the others are added.
    """
    location = absolute(path, os.getcwd())
    if location in done:
        return
    done.add(location)
    try:
        data = read_whole(path)
        content = parse_yaml(data, where=path)
    except (OSError, ConfigError) as error:
        yield refusal(path, error)
        return
    yield from _aliases(path, data)
    ignored = list(_ignored_keys(content, Place(path)))
    yield from ignored
    try:
        document = parse_document(content, file=path)
    except ConfigError as error:
        if not any(str(error).startswith(f"{finding.where}: ") for finding in ignored):
            yield refusal(path, error)
        return
    if isinstance(document, Metadataset):
        yield Finding(
            severity="note",
            where=path,
            what="Names no class, or `Metadataset`: the older form.",
            here="read as it is; `MetadatasetV2` can do more: epochized blends, joins, subsets, auxiliary stores",
        )
    nodes = [node for split in document.splits for node in _nodes(document.node(split))]
    yield from merge_alike(finding for node in nodes for finding in _node_findings(node))
    for node in nodes:
        if isinstance(node, DatasetReference) and node.path.endswith(METADATASET_ENDINGS):
            nested = absolute(node.path, folder_of(location))
            if _is_there(nested):
                yield from file_findings(nested, done)


def _is_there(location: str) -> bool:
    """Whether there is a file, or why it cannot be read is to be said of it; one that is missing is refused anyway."""
    try:
        return bool(read_beginning(location, 1))
    except (ReadError, ConfigError):
        return True


def _aliases(path: str, data: bytes) -> Iterator[Finding]:
    names = {event.anchor for event in yaml.parse(data) if isinstance(event, yaml.AliasEvent)}
    if names:
        yield Finding(
            severity="differs",
            where=path,
            what=f"Uses YAML aliases: {', '.join(f'*{name}' for name in sorted(names))}.",
            energon=f"takes the text '*{min(names)}' for the value",
            here="the value that the anchor stands for",
        )


def _ignored_keys(content: Any, place: Place) -> Iterator[Finding]:
    """Keys of joined datasets that Energon reads and forgets."""
    if isinstance(content, Mapping):
        for name, value in content.items():
            yield from _ignored_keys(value, place.at(str(name)))
        joined = content.get("join")
        members = joined.items() if isinstance(joined, Mapping) else enumerate(joined or ()) if _is_list(joined) else ()
        for number, member in members:
            for key, reason in meaningless_keys(member) if isinstance(member, Mapping) else ():
                yield Finding(
                    severity="error",
                    where=str(place.at("join", number, key)),
                    what=f"`{key}` at one dataset of a join.",
                    energon="ignores it without a word",
                    here=f"refused: {reason}",
                    advice="remove it to get what Energon does",
                )
    elif _is_list(content):
        for number, value in enumerate(content):
            yield from _ignored_keys(value, place.at(number))


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _nodes(node: Node) -> Iterator[Node]:
    """A node and all below it in the same file."""
    yield node
    if isinstance(node, MetadatasetConcat):
        children = node.concat
    elif isinstance(node, MetadatasetBlend):
        children = tuple(entry.node for entry in node.blend)
    elif isinstance(node, MetadatasetBlendEpochized):
        children = tuple(entry.node for entry in node.blend_epochized)
    else:
        return
    for child in children:
        yield from _nodes(child)


def _node_findings(node: Node) -> Iterator[Finding]:
    place = place_of(node)
    if isinstance(node, MetadatasetBlend):
        yield Finding(
            severity="better",
            where=str(place),
            what="Datasets are blended by weights.",
            energon="each worker draws by chance; a dataset smaller than the number of workers is missing on some",
            here="shares are exact after any prefix of the stream, on any number of workers",
        )
    elif isinstance(node, MetadatasetBlendEpochized):
        for number, entry in enumerate(node.blend_epochized):
            yield from _repetitions(entry.repetitions, entry.node, place.at("blend_epochized", number))
    elif isinstance(node, MetadatasetJoin):
        if node.shuffle_over_epochs_multiplier != 1:
            yield Finding(
                severity="differs",
                where=str(place.at("shuffle_over_epochs_multiplier")),
                what="Said of a join.",
                energon="ignores it without a word",
                here="obeyed: the rows of so many passes are shuffled as one",
                advice="remove it to get what Energon does",
            )
    elif isinstance(node, DatasetReference):
        yield from _passes(node.shuffle_over_epochs_multiplier, place.at("shuffle_over_epochs_multiplier"))


def _repetitions(repetitions: Fraction, node: Node, place: Place) -> Iterator[Finding]:
    passes = getattr(node, "shuffle_over_epochs_multiplier", 1)
    if passes not in (None, 1, -1) and not isinstance(node, MetadatasetJoin):
        yield Finding(
            severity="differs",
            where=str(place),
            what="Has repetitions and a shuffle_over_epochs_multiplier.",
            energon="multiplies them: an epoch has so many times more of the dataset, while len() says otherwise",
            here="an epoch has the repetitions; the multiplier is about shuffling alone",
            advice="multiply the repetitions yourself if you want Energon's share",
        )
    if repetitions.denominator != 1:
        yield Finding(
            severity="better",
            where=str(place.at("repetitions")),
            what="A fraction of a pass.",
            energon="is off, and differently in each epoch: 0.7 of 55 samples are 38, then 17, then 38",
            here="exact over epochs, 38 or 39 in each, and each sample as often as the others",
        )


def _passes(passes: int | None, place: Place) -> Iterator[Finding]:
    if passes == -1:
        yield Finding(
            severity="differs",
            where=str(place),
            what="-1: drawing with replacement.",
            energon="draws slices with replacement, and reads each in order",
            here="draws blocks with replacement where max_samples_per_sequence is set, else single samples",
        )
    elif passes is None:
        yield Finding(
            severity="better",
            where=str(place),
            what="null: no shuffling.",
            energon="fails unless parallel_shard_iters=1 is passed too",
            here="the samples come in the order of the shards",
        )
