"""Compare shards with every index that describes them: `.info.json`, `.tar.idx`, the columnar index."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from energon_grain.errors import FormatError
from energon_grain.formats.columnar import ColumnarIndex
from energon_grain.formats.shard_scan import ShardScan, scan_tar
from energon_grain.formats.tar_index import read_tar_index, tar_index_path
from energon_grain.prepare.lint_finding import LintFinding


def check_shard(root: Path, shard: str, samples: int, index: ColumnarIndex | None) -> list[LintFinding]:
    """Scan a shard anew and say what does not fit.

    Args:
        root: The dataset.
        shard: The shard, relative to it.
        samples: Samples that it has by `.info.json`.
        index: The columnar index; None where it could not be opened.
    """
    tar = root / shard
    if not tar.is_file():
        return [_finding(shard, "the file is gone, but .info.json lists it; prepare again with --force-overwrite")]
    try:
        starts = read_tar_index(tar_index_path(tar))
        scan = scan_tar(tar)
        if len(scan) != samples or not np.array_equal(scan.sample_start, starts):
            # Energon makes samples of dot files inside folders.
            scan = scan_tar(tar, hidden="keep")
    except FileNotFoundError:
        return [_finding(shard, f"{tar_index_path(tar).name} is missing; write it with --tar-index-only")]
    except (FormatError, OSError) as error:
        return [_finding(shard, str(error))]
    wrong: list[str] = []
    if len(scan) != samples:
        wrong.append(
            f"has {len(scan):,} samples, .info.json says {samples:,}; the shard was changed: prepare again with "
            f"--force-overwrite"
        )
    if not np.array_equal(scan.sample_start, starts):
        wrong.append(
            f"its {len(scan):,} samples do not lie where the {len(starts) - 1:,} entries of "
            f"{tar_index_path(tar).name} say; write it anew with --tar-index-only"
        )
    if not wrong and index is not None and not _agrees(index, shard, scan):
        wrong.append("the columnar index says otherwise; write it anew with --tar-index-only")
    return [_finding(shard, reason) for reason in wrong]


def _finding(shard: str, reason: str) -> LintFinding:
    return LintFinding(shard=shard, key=None, reason=reason)


def _agrees(index: ColumnarIndex, shard: str, scan: ShardScan) -> bool:
    number = index.shards.index(shard)
    first, last = int(index.shard_first[number]), int(index.shard_first[number + 1])
    if last - first != len(scan) or int(index.shard_bytes[number]) != scan.size_bytes:
        return False
    parts = slice(int(index.part_start[first]), int(index.part_start[last]))
    keys = slice(int(index.key_start[first]), int(index.key_start[last]))
    names = np.array([*scan.part_names, ""], dtype=np.object_)
    known = np.array([*index.part_names, ""], dtype=np.object_)
    return (
        np.array_equal(index.shard_sample_start(number), scan.sample_start)
        and np.array_equal(index.part_start[first : last + 1] - parts.start, scan.part_start)
        and np.array_equal(index.part_offset[parts], scan.part_offset)
        and np.array_equal(index.part_size[parts], scan.part_size)
        and np.array_equal(known[index.part_name[parts]], names[scan.part_name])
        and np.array_equal(index.key_start[first : last + 1] - keys.start, scan.key_start)
        and np.array_equal(index.key_bytes[keys], scan.key_bytes)
    )
