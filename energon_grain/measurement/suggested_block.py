"""How many samples to read together."""

from __future__ import annotations

import math

from energon_grain.measurement.figures import Figures

BLOCK_BYTES = 1 << 20
"""What a block should hold at least."""
MAX_BLOCK = 1000


def suggested_block(figures: Figures, block_bytes: int = BLOCK_BYTES) -> int:
    """Samples that hold a MiB, up to a round number; 1: no block is worth it.

    1000 at most, for the larger a block, the less samples mix; and no more than there are such blocks for all lanes,
    for others have no effect.
    """
    block = max(1, math.ceil(block_bytes / max(1.0, figures.sample_bytes)))
    if block > 10:
        step = 10 ** (len(str(block)) - 1)
        block = math.ceil(block / step) * step
    return max(1, min(block, MAX_BLOCK, figures.largest_block))
