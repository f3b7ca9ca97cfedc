"""What a JSONL file holds, from its index: the file is not read."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np

from energon_grain.prepare.dataset_summary import SizeBin, size_bins
from energon_grain.sources.jsonl import JsonlSource


@dataclass(frozen=True, kw_only=True, slots=True)
class JsonlSummary:
    """What a JSONL file holds.

    Attributes:
        path: The file.
        samples: Number of samples.
        size_bytes: Size of the file.
        content_id: Digest of where its samples lie.
        sizes: Histogram of the sizes of samples, line ends and blank lines counted, in powers of two.
    """

    path: str
    samples: int
    size_bytes: int
    content_id: str
    sizes: tuple[SizeBin, ...]


def summarize_jsonl(path: str | os.PathLike[str]) -> JsonlSummary:
    """Describe a JSONL file from its index, which is made if there is none. Raises as `JsonlSource` does."""
    source = JsonlSource(path)
    sizes = source.sizes(np.arange(len(source)))
    return JsonlSummary(
        path=str(path),
        samples=len(source),
        size_bytes=int(sizes.sum()),
        content_id=source.content_id,
        sizes=size_bins(sizes),
    )
