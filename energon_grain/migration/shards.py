"""What the tar files of a dataset hold that matters for a move. Only headers are read, of some of the shards."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from energon_grain.errors import FormatError, StaleIndexError, TarError
from energon_grain.formats.columnar_build import scan_checked
from energon_grain.formats.data_folder import DataFolder
from energon_grain.formats.nv_meta import DatasetInfo
from energon_grain.formats.shard_scan import ShardScan
from energon_grain.formats.tar_index import tar_index_path
from energon_grain.migration.finding import Finding, merge_alike, refusal
from energon_grain.migration.options import CheckOptions
from energon_grain.prepare.shard_listing import COMPRESSED_SUFFIXES
from energon_grain.storage.read_whole import read_beginning

_COMPARED_KEYS = 1_000_000
"""Keys that are held to find repeated ones, about 150 MB. Those after them are compared with these only."""

_ENERGON_READS = {
    "a hard link": "passes over the link: the sample lacks that part, without a word",
    "a sparse member": "reads it in training; an auxiliary store gives the stored pieces in place of the file",
    "data after the end-of-archive marker": "ends at the marker: what follows is lost without a word",
    "the end-of-archive marker is missing": "reads up to the end of the file, whether or not members were lost",
    "the file is compressed": "indexes the shard, and cannot read it later",
    "the file is truncated": "fails in the middle of an epoch, when it comes to that sample",
}
"""What Energon makes of a shard that we refuse, by what our message says."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardsLook:
    """What was seen in the tars.

    Attributes:
        findings: In the order of the shards, those alike merged.
        part_names: Distinct names of parts in the shards that were read.
        looked_at: Number of these.
    """

    findings: tuple[Finding, ...]
    part_names: frozenset[str]
    looked_at: int


def look_at_shards(folder: DataFolder, info: DatasetInfo, options: CheckOptions, *, unique_keys: bool) -> ShardsLook:
    """Read the headers of some shards, and compare them with `.info.json` and `.tar.idx` as opening the dataset does.

    Args:
        folder: Where the dataset lies.
        info: Its `.info.json`.
        options: How many.
        unique_keys: Keys are known to be unique; they are not compared.
    """
    shards = list(info.shard_counts)
    findings: list[Finding] = []
    part_names: set[str] = set()
    seen: dict[str, str] | None = None if unique_keys else {}
    looked_at = 0
    for number in options.choose(len(shards)):
        shard = shards[number]
        scan = _scan(folder, shard, info.shard_counts[shard], findings)
        looked_at += 1
        if scan is not None:
            part_names.update(scan.part_names)
            findings += _in_shard(folder, shard, scan, seen)
    return ShardsLook(findings=tuple(merge_alike(findings)), part_names=frozenset(part_names), looked_at=looked_at)


def _scan(folder: DataFolder, shard: str, samples: int, findings: list[Finding]) -> ShardScan | None:
    path = folder.shard(shard)
    try:
        return scan_checked(folder, shard, samples)
    except StaleIndexError as error:
        energon = "reads whatever lies where the old index points"
        findings.append(refusal(path, error, energon=energon))
    except TarError as error:
        energon = next((reads for said, reads in _ENERGON_READS.items() if said in str(error)), "")
        advice = ""
        if shard.endswith(tuple(COMPRESSED_SUFFIXES)):
            advice = "decompress the shards, and prepare the dataset again"
        findings.append(refusal(path, error, energon=energon, advice=advice))
    except (FormatError, OSError) as error:
        findings.append(refusal(path, error))
    return None


def _in_shard(folder: DataFolder, shard: str, scan: ShardScan, seen: dict[str, str] | None) -> Iterator[Finding]:
    path, index_path = folder.shard(shard), tar_index_path(shard)
    if not read_beginning(folder.shard(index_path.as_posix()), 1):
        yield Finding(
            severity="better",
            where=path,
            what=f"has no {index_path.suffix} beside it.",
            energon="cannot iterate over the dataset",
            here="reads without it",
        )
    keys = scan.keys()
    if any(key.endswith("/") for key in keys):
        yield Finding(
            severity="differs",
            where=path,
            what="Hidden files in folders of the tar (`folder/.name.part`).",
            energon="makes samples of them, with keys such as `folder/`",
            here="keeps these samples while Energon's index is in use; `energon-grain prepare` leaves them out",
            advice=f"to be rid of them, `energon-grain prepare {folder.location} --force-overwrite`; keep copies of "
            "split.yaml and dataset.yaml, which it writes anew",
        )
    if seen is None:
        return
    repeated = 0
    example = ""
    for key in keys:
        if key in seen:
            repeated += 1
            example = example or f"{key!r}, also in {seen[key]}"
        elif len(seen) < _COMPARED_KEYS:
            seen[key] = shard
    if repeated:
        yield Finding(
            severity="differs",
            where=path,
            what=f"{repeated:,} samples have the key of another one, such as {example}.",
            energon="up to 7.2 takes them with a warning, since 7.3 `prepare` refuses them",
            here="training reads them all; joins and `prepare` refuse the dataset, and of an auxiliary dataset the "
            "first sample with a key is found",
            advice="give each sample a key of its own (`energon prepare --fix-duplicates` renames them in place)",
        )
