# SPDX-License-Identifier: Apache-2.0
"""Tar members with the same name in the same sample; only the last one is read."""

from __future__ import annotations

import numpy as np

from energon_grain.formats.columnar import ColumnarIndex
from energon_grain.formats.scan import ShardScan, parts_not_read
from energon_grain.prepare.listing import printable


class RepeatedMembers:
    """Number of tar members that are not read because a later one in the same sample has the same name, and an example.

    This is not an error, unlike a key that occurs again after another one: `tar --append` and `--update` write new
    versions of files this way, and `tar`, Energon and this library all take the last one.
    """

    def __init__(self) -> None:
        self.count = 0
        self._example = ""

    @classmethod
    def of_index(cls, index: ColumnarIndex) -> RepeatedMembers:
        """Those of all shards of a dataset with a verified index."""
        found = cls()
        first = index.shard_first.tolist()
        for number, shard in enumerate(index.shards):
            starts = np.asarray(index.part_start[first[number] : first[number + 1] + 1])
            if len(parts_not_read(starts - starts[0], index.part_name[starts[0] : starts[-1]])):
                found.add(shard, index.scan(number))
        return found

    def add(self, shard: str, scan: ShardScan) -> None:
        """Count those of a shard."""
        rows = parts_not_read(scan.part_start, scan.part_name)
        self.count += len(rows)
        if len(rows) and not self._example:
            sample = int(np.searchsorted(scan.part_start, rows[0], side="right")) - 1
            own = scan.part_name[scan.part_start[sample] : scan.part_start[sample + 1]]
            times = np.count_nonzero(own == scan.part_name[rows[0]])
            member = printable(f"{scan.key(sample)}.{scan.part_names[scan.part_name[rows[0]]]}")
            self._example = f"{member}, {times} times in {shard}"

    def __str__(self) -> str:
        counted = "1 member of a tar is" if self.count == 1 else f"{self.count:,} members of tars are"
        return (
            f"{counted} not read, because a later member of the same sample has the same name, such as "
            f"{self._example}: the last one is used, as in `tar` and Energon. Write the tar again without the others, "
            f"or rename them if they should be separate samples"
        )
