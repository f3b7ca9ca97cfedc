"""shuffle: how random one pass is, in three numbers, over one dataset of 4,800 samples in 16 tars on one host.

With p_i the place of sample i in the pass, both from 0 to n - 1:

* `chi2`: χ² of the table that counts samples by sixteenth of the data and sixteenth of the pass (256 cells, n / 256
  expected in each), divided by its 225 degrees of freedom. A random permutation has 1.0 on average; larger values mean
  that places follow from positions in the data.
* `neighbours`: the correlation of the numbers of samples that follow each other. A random permutation has 0 ± 0.015.
* `moved`: the mean of |p_i - i| / n, the distance that samples move. A random permutation has 1/3.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.truth.adapter import Dataset
from benchmarks.truth.checks.check import Check, Values, finished
from benchmarks.truth.fleet import Fleet
from benchmarks.truth.history import History, Part
from benchmarks.truth.play import data_of, play

SAMPLES = 4800
CELLS = 16


def measure(fleet: Fleet, seed: int) -> Values:
    """Read one pass."""
    part = Part(hosts=1, workers=0, steps=SAMPLES // 48, saves=(), kill="none", delay_s=0.0, weights=(1.0,), datasets=1)
    history = History(
        seed=seed,
        datasets=(Dataset(name=f"0-{SAMPLES}-{CELLS}", samples=SAMPLES, shards=CELLS),),
        global_batch=48,
        pack=0,
        passes=1,
        parts=(part,),
        most_steps=SAMPLES // 48,
    )
    with data_of(history, fleet) as folder:
        record = finished(play(history, fleet, folder))
    return randomness([sample[1] for sample in record.sequence()], SAMPLES)


def randomness(numbers: Sequence[int], samples: int) -> Values:
    """Return the three numbers for the samples of a pass in their order."""
    order = np.asarray(numbers, np.int64)
    places = np.arange(len(order))
    table = np.histogram2d(order, places, bins=CELLS, range=[[0, samples], [0, len(order)]])[0]
    expected = len(order) / CELLS**2
    return {
        "chi2": float(np.sum((table - expected) ** 2 / expected) / (CELLS - 1) ** 2),
        "neighbours": float(np.corrcoef(order[:-1], order[1:])[0, 1]),
        "moved": float(np.mean(np.abs(places - order)) / samples),
    }


CHECK = Check(name="shuffle", needs=lambda claims: "shuffle" in claims, measure=measure, most=20)
