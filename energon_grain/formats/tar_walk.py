"""All headers of a tar, batch by batch, found in the way that suits the sizes of its members."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

from energon_grain.errors import TarError
from energon_grain.formats.tar_batch import HeaderBatch
from energon_grain.formats.tar_bytes import TarBytes
from energon_grain.formats.tar_grid import HeaderGrid
from energon_grain.formats.tar_header import BLOCK, first_bad_checksum
from energon_grain.formats.tar_hops import hop

Strategy = Literal["auto", "grid", "hops"]

_FIRST_HOPS: Final = 16
_HOPS: Final = 4096
_GOOD_RUN: Final = 1024  # headers
_TAIL_BYTES: Final = 1 << 20


class HeaderWalk:
    """Walks a whole tar once: iterate over it for the headers, then ask for `end`.

    Args:
        tar: The file.
        strategy: "auto" goes by the mean size of the members seen last. All strategies give the same headers.
    """

    def __init__(self, tar: TarBytes, strategy: Strategy = "auto") -> None:
        self._tar = tar
        self._strategy: Strategy = strategy
        self.end = -1  # offset of the first zero block, once the walk is over

    def __iter__(self) -> Iterator[HeaderBatch]:
        """Yield the headers in batches with checked chain and checksums.

        Raises:
            TarError: At the first defect in the order of the file, after everything before it.
        """
        tar, strategy, grid = self._tar, self._strategy, HeaderGrid(self._tar)
        offset, small, patience, hops_due = 0, False, _FIRST_HOPS, _FIRST_HOPS
        while self.end < 0:
            if strategy == "hops" or hops_due or not (small or strategy == "grid"):
                walked = hop(tar, offset, hops_due if hops_due and strategy != "hops" else _HOPS, window=small)
                hops_due = 0
            else:
                walked, stopped = grid.run(offset)
                if stopped:  # by something unusual: hop over it, and the further the more often this happens
                    patience = _FIRST_HOPS if len(walked.batch) >= _GOOD_RUN else min(2 * patience, _HOPS)
                    hops_due = patience
            yield from self._checked(walked.batch)
            if walked.error is not None:
                raise walked.error
            if len(walked.batch):
                small = (walked.next_offset - offset) < len(walked.batch) * tar.data.pass_over_bytes
            offset = walked.next_offset
            if walked.at_end:
                self._check_tail(offset)
                self.end = offset

    def _checked(self, batch: HeaderBatch) -> Iterator[HeaderBatch]:
        bad = first_bad_checksum(batch.headers)
        if bad is None:
            if len(batch):
                yield batch
            return
        if bad:
            yield batch.head(bad)
        raise self._tar.bad_checksum(int(batch.offset[bad]))

    def _check_tail(self, end: int) -> None:
        """Make sure that only zeros follow the end marker.

        Whatever else lies there would be lost without a word: the members of a second tar that was appended with `cat`,
        or all members after a header that a damaged disk has filled with zeros.
        """
        tar, offset = self._tar, end + BLOCK
        while offset < tar.size_bytes:
            data = tar.read(offset, min(_TAIL_BYTES, tar.size_bytes - offset))
            if data.count(0) != len(data):
                at = offset + len(data) - len(data.lstrip(b"\0"))
                raise _tail_error(tar, end, at)
            offset += len(data)


def _tail_error(tar: TarBytes, end: int, at: int) -> TarError:
    return tar.error(
        at,
        f"data after the end-of-archive marker at {end}",
        "Everything after it would be lost. If tars were joined with `cat`, use `tar --concatenate`; "
        "else the shard is damaged: copy or create it again.",
    )
