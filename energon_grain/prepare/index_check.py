"""Compare shards with every index that describes them: `.info.json`, `.tar.idx`, the columnar index."""

from __future__ import annotations

from itertools import accumulate

import numpy as np

from energon_grain.errors import FormatError
from energon_grain.formats.array_record_encoding import RecordEncoding, read_records_file
from energon_grain.formats.array_record_scan import scan_records
from energon_grain.formats.columnar import ColumnarIndex
from energon_grain.formats.data_folder import DataFolder
from energon_grain.formats.nv_meta import DatasetInfo
from energon_grain.formats.tar.index import read_tar_index, tar_index_path
from energon_grain.formats.tar.scan import ShardScan, scan_tar
from energon_grain.prepare.lint_finding import LintFinding

PREPARE_AGAIN = "prepare again with --force-overwrite"
_INDEX_ANEW = "write it anew with --tar-index-only"


class ShardCheck:
    """Scans shards anew and says what does not fit.

    Args:
        folder: Where the dataset lies.
        info: Its shards, with the number of samples of each.
        index: The columnar index; None where it could not be opened.
    """

    def __init__(self, folder: DataFolder, info: DatasetInfo, index: ColumnarIndex | None) -> None:
        self._folder, self._info, self._index = folder, info, index
        self._records: RecordEncoding | None = read_records_file(folder.local)
        self._first = dict(zip(info.shard_counts, accumulate(info.shard_counts.values(), initial=0), strict=False))

    def __call__(self, shard: str) -> list[LintFinding]:
        """Look at one shard."""
        gone = LintFinding(where=shard, what="the file is gone, but .info.json lists it", way_out=PREPARE_AGAIN)
        if not self._folder.is_remote and not (self._folder.local / shard).is_file():
            return [gone]
        try:
            if self._records is None:
                scan, wrong = self._scan_tar(shard)
            else:
                scan, wrong = scan_records(self._folder.shard(shard), self._records, first=self._first[shard]), []
        except FileNotFoundError:
            return [gone]
        except (FormatError, OSError) as error:
            return [LintFinding(where=shard, what=str(error))]
        samples = self._info.shard_counts[shard]
        if len(scan) != samples:
            what = f"has {len(scan):,} samples, .info.json says {samples:,}; the shard was changed"
            wrong.insert(0, LintFinding(where=shard, what=what, way_out=PREPARE_AGAIN))
        if not wrong and self._index is not None and not _agrees(self._index, shard, scan):
            wrong.append(LintFinding(where=shard, what="the columnar index says otherwise", way_out=_INDEX_ANEW))
        return wrong

    def _scan_tar(self, shard: str) -> tuple[ShardScan, list[LintFinding]]:
        """The scan of a tar, and how its `.tar.idx` differs."""
        tar, index_path = self._folder.shard(shard), tar_index_path(shard)
        scan = scan_tar(tar)
        try:
            starts = read_tar_index(self._folder.shard(index_path.as_posix()))
        except FileNotFoundError:
            what, way_out = f"{index_path.name} is missing", "write it with --tar-index-only"
            return scan, [LintFinding(where=shard, what=what, way_out=way_out)]
        if len(scan) != self._info.shard_counts[shard] or not np.array_equal(scan.sample_start, starts):
            # Energon makes samples of dot files inside folders.
            scan = scan_tar(tar, hidden="keep")
        if np.array_equal(scan.sample_start, starts):
            return scan, []
        what = f"its {len(scan):,} samples do not lie where the {len(starts) - 1:,} entries of {index_path.name} say"
        return scan, [LintFinding(where=shard, what=what, way_out=_INDEX_ANEW)]


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
