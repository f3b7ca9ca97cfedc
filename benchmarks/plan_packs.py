"""How full planned packs are, and how fast plans are made: `python -m benchmarks.plan_packs [SAMPLES]`.

Lengths of three laws, up to the capacity, are packed window by window; the packs are counted beside those that sorting
all samples at once makes (best fit decreasing). Printed are, for each law and window: the share of all packs' room that
is filled, packs of all at once over packs of windows, and microseconds of a core a pack and a sample. Then the same
with two costs and a number of samples, and with samples that are split.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from energon_grain.samplers.pack_plan import PATIENCE, Oversize, fill, plan_packs

CAPACITY = 4096
WINDOWS = (1_024, 4_096, 16_384, 65_536)
Costs = npt.NDArray[np.int64]
LAWS: dict[str, Callable[[np.random.Generator, int], Costs]] = {
    "Zipf 1.2": lambda r, n: np.minimum(r.zipf(1.2, n), 8 * CAPACITY).astype(np.int64),
    "log-normal": lambda r, n: np.clip(r.lognormal(6.2, 1.1, n), 16, 2 * CAPACITY).astype(np.int64),
    "uniform": lambda r, n: r.integers(1, CAPACITY + 1, n),
}


def planned(costs: Costs, capacities: tuple[int, ...], window: int, oversize: Oversize = "error") -> tuple[int, float]:
    """Packs of all samples, window by window, and the seconds of a core that planning them took."""
    positions, at, packs = np.empty(0, np.int64), 0, 0
    count = costs.shape[1]
    began = time.process_time()
    while at < count:
        stop = min(count, at + window - len(positions))
        positions = np.concatenate([positions, np.arange(at, stop)])
        patient = int(np.searchsorted(positions, stop - PATIENCE * window))
        last = stop == count
        plan = plan_packs(costs[:, positions], capacities, key=at, oversize=oversize, patient=patient, last=last)
        packs, positions, at = packs + len(plan), positions[plan.rest], stop
    return packs, time.process_time() - began


def main(samples: int = 2_000_000) -> None:
    """Print the tables."""
    random = np.random.default_rng(0)
    for law, draw in LAWS.items():
        lengths = draw(random, samples)
        short = np.minimum(lengths, CAPACITY)[None]
        began = time.process_time()
        _, together = fill(short, (CAPACITY,))
        took = time.process_time() - began
        full = int(short.sum()) / CAPACITY
        print(f"{law}: {samples:,} samples; all at once {together:,} packs, filled {full / together:.5f}, {took:.1f} s")
        for window in WINDOWS:
            packs, seconds = planned(short, (CAPACITY,), window)
            print(
                f"  window {window:6,}: filled {full / packs:.5f}, {together / packs:.5f} of all at once; "
                f"{1e6 * seconds / packs:.2f} us a pack, {1e6 * seconds / samples:.2f} us a sample"
            )
        packs, seconds = planned(lengths[None], (CAPACITY,), WINDOWS[2], "split")
        share = int(lengths.sum()) / CAPACITY / packs
        print(f"  split: {packs:,} packs, filled {share:.5f}; {1e6 * seconds / packs:.2f} us a pack")
        images = np.minimum(random.geometric(0.4, samples) - 1, 8)
        several = np.stack([short[0], images, np.ones(samples, np.int64)])
        packs, seconds = planned(several, (CAPACITY, 8, 64), WINDOWS[2])
        print(f"  8 images and 64 samples at most, too: {packs:,} packs; {1e6 * seconds / packs:.2f} us a pack")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
