"""A blend whose weights changed while it ran: its rate, the time of a change, and the size of its state."""

from __future__ import annotations

import json
import random
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.child import serve
from benchmarks.datasets import METADATASET

_SLICE_S = 0.1


def amended(folder: str, datasets: int, amendments: int, warmup_s: float, seconds: float) -> dict[str, Any]:
    """Measure a blend of some of the datasets in a folder, after a number of changes of its weights.

    Rates are samples per second of CPU time. `of_unchanged` is the rate relative to a loader that had the last weights
    from the beginning: the median over pairs of slices, measured in turns. `amend_s` is the median time of a change,
    `state_bytes` the size of the state.
    """
    from benchmarks import ours

    rng, times = random.Random(0), list[float]()
    with tempfile.TemporaryDirectory() as temporary:
        paths = sorted(path.parent.resolve() for path in Path(folder).glob("*/.nv-meta"))[:datasets]
        weights = {path.name: 1 for path in paths}
        loader = ours.build_loader(str(_blend(Path(temporary, METADATASET), paths, weights)), "plain", 0)
        for _ in range(amendments):
            for _ in range(5):
                next(loader)
            weights = {name: rng.randrange(1, 100) for name in weights}
            started = time.perf_counter()
            loader.amend(weights=weights)
            times.append(time.perf_counter() - started)
        unchanged = ours.build_loader(str(_blend(Path(temporary, "last.yaml"), paths, weights)), "plain", 0)
        for each in (loader, unchanged):
            _rate(each, warmup_s)
        pairs = [(_rate(loader, _SLICE_S), _rate(unchanged, _SLICE_S)) for _ in range(round(seconds / _SLICE_S))]
        return {
            "samples_per_s": statistics.median(rate for rate, _ in pairs),
            "of_unchanged": statistics.median(rate / other for rate, other in pairs),
            "amend_s": statistics.median(times),
            "state_bytes": len(json.dumps(loader.get_state())),
        }


def _rate(loader: Any, seconds: float) -> float:
    """Return samples per second of CPU time over a span of wall-clock time."""
    from benchmarks import ours

    samples, cpu, end = 0, time.process_time(), time.perf_counter() + seconds
    while time.perf_counter() < end:
        samples += ours.weigh(next(loader))[0]
    return samples / (time.process_time() - cpu)


def _blend(path: Path, datasets: list[Path], weights: Mapping[str, int]) -> Path:
    """Write a blend."""
    blend = [{"path": str(each), "weight": weights[each.name]} for each in datasets]
    document = {"__module__": "megatron.energon", "__class__": "MetadatasetV2", "splits": {"train": {"blend": blend}}}
    path.write_text(json.dumps(document))
    return path


if __name__ == "__main__":
    serve(amended=amended)
