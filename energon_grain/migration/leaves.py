"""What the datasets of a metadataset come to, with all that outer levels say, that matters for a move."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from energon_grain.errors import DatasetNotFoundError, EnergonGrainError
from energon_grain.formats.data_folder import kind_at, open_folder
from energon_grain.formats.dataset_config import DEFAULT_DATASET_CONFIG, read_dataset_config
from energon_grain.formats.jsonl_file import open_jsonl
from energon_grain.formats.jsonl_index import check_jsonl_size, jsonl_index_path, read_jsonl_index
from energon_grain.formats.nv_meta import DatasetKind, read_info
from energon_grain.formats.splits import read_split_config, select_shards
from energon_grain.metadataset.subset import Subset
from energon_grain.metadataset.tree import LeafReference
from energon_grain.migration.finding import Finding, refusal
from energon_grain.storage.location import is_url
from energon_grain.storage.read_whole import read_beginning


def leaf_findings(leaf: LeafReference) -> Iterator[Finding]:
    """Look at one dataset as the metadataset names it; what is in its folder is for `dataset_findings`."""
    place = leaf.place.at("path")
    if leaf.kind is DatasetKind.JSONL:
        yield from jsonl_findings(str(place), leaf.path)
        return
    for name, aux in leaf.aux.items():
        if aux.kind == "filesystem" and not is_url(aux.path) and not Path(aux.path).is_dir():
            where = str(leaf.place.at("aux", name))
            yield Finding(severity="error", where=where, what=f"{aux.path} is no folder.", here="refused")
    try:
        if kind_at(leaf.path) is not DatasetKind.WEBDATASET:
            return
        root = open_folder(leaf.path).local
        config = read_dataset_config(root, leaf.dataset_config or DEFAULT_DATASET_CONFIG)
        info = read_info(root)
        splits = read_split_config(root, leaf.split_config or config.split_config, shards=info.shard_counts)
    except EnergonGrainError:
        return  # said of the dataset itself
    if leaf.aux and config.kind != "crude":
        yield Finding(
            severity="error",
            where=str(leaf.place.at("aux")),
            what="Auxiliary stores of a dataset that is not crude.",
            here="refused, as in Energon: they are for cookers",
        )
    try:
        selected = select_shards(splits, config.split_part or leaf.split_part, info)
    except EnergonGrainError as error:
        yield refusal(leaf.place, error, energon="refused too")
        return
    if leaf.subset is not None:
        total = sum(info.shard_counts[shard] for shard in selected.shards)
        yield from _subset(leaf, leaf.subset, total)


def jsonl_findings(where: str, path: str) -> Iterator[Finding]:
    """Look at the index of a JSONL file, if it has one; its lines are for `energon-grain lint`."""
    try:
        if not is_url(path):
            check_jsonl_size(path, read_jsonl_index(jsonl_index_path(path)), Path(path).stat().st_size)
        elif read_beginning(f"{path}.idx", 1):
            open_jsonl(path)
        elif not read_beginning(path, 1):
            raise DatasetNotFoundError(f"{path}: no such object")
    except DatasetNotFoundError as error:
        yield refusal(where, error, energon="refused too")
    except FileNotFoundError:
        return  # made when it is first opened
    except EnergonGrainError as error:
        yield refusal(where, error, energon="refused too")


def repeated_findings(leaves: Sequence[LeafReference]) -> Iterator[Finding]:
    """Look for datasets that one split lists twice."""
    first: dict[tuple[str, str, Subset | None], LeafReference] = {}
    for leaf in leaves:
        identity = leaf.path, leaf.split_part, leaf.subset
        if identity in first:
            yield Finding(
                severity="better",
                where=str(leaf.place),
                what=f"The same dataset as at {first[identity].place}.",
                energon="gives both the same order: a worker's random generators all start alike",
                here="each has an order of its own",
            )
        first.setdefault(identity, leaf)


def _subset(leaf: LeafReference, subset: Subset, total: int) -> Iterator[Finding]:
    place = str(leaf.place.at("subset"))
    try:
        ours = subset.resolve(total)
    except EnergonGrainError as error:
        yield refusal(place, error, energon="refused too")
        return
    theirs = _energon_range(subset, total)
    if ours != theirs:
        yield Finding(
            severity="differs",
            where=place,
            what=f"{subset} of {total:,} samples.",
            energon=f"cuts with floats: samples {theirs[0]:,} to {theirs[1]:,}, the last not included",
            here=f"cuts exactly: {ours[0]:,} to {ours[1]:,}",
            advice="where the cut must be the same, write sample numbers instead of percentages",
        )
    yield Finding(
        severity="better",
        where=place,
        what=f"{ours[1] - ours[0]:,} of {total:,} samples.",
        energon="len() and the shares of epochized blends count all of them",
        here="the subset counts",
    )


def _energon_range(subset: Subset, total: int) -> tuple[int, int]:
    first, last = (0, total) if subset.absolute is None else subset.absolute
    last = total if last is None else last
    start, stop = (int((last - first) * float(bound)) for bound in subset.share)
    return first + start, first + stop
