"""Blends whose weights are shares of tokens: planning time, exactness, and the loss of read throughput.

`python -m benchmarks.blend_by_cost [--items 1_000_000] [--samples 100_000] [--rounds 3]` prints three tables. It needs
only this package. With `--chart FILE` it instead draws the picture of the docs.

1. For laws of lengths and numbers of children: nanoseconds per item (every host plans all items), and the largest error
   of the worst child at the worst prefix, relative to the largest item so far.
2. Planning of the next 10^6 items of a blend of ten far into a stream: from an anchor, and from the beginning.
3. Texts read through a blend of two datasets by tokens, compared with a blend by samples: batches of 32, without
   workers.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks import token_packing
from benchmarks.child import program
from energon_grain import BatchDataset, BlendDataset, WorkerConfig, get_loader, get_train_dataset
from energon_grain.planning.cost_blend import CostBlend
from energon_grain.testing import make_text_dataset

Costs = npt.NDArray[np.int64]

LAWS = {**token_packing.LAWS, "all equal": lambda _, n: np.full(n, 7)}
WEIGHTS = {2: [9, 1], 3: [5, 3, 2], 10: [1, 1, 2, 3, 5, 8, 13, 21, 34, 55], 100: [100, *[1] * 99], 1000: [1] * 1000}


def child(costs: Costs, positions: Costs) -> Costs:
    """Costs of a child, repeated."""
    return costs[positions % len(costs)]


def blended(law: str, children: int) -> tuple[CostBlend, list[Costs]]:
    """Return a blend, and the costs of its children."""
    random = np.random.default_rng(children)
    costs = [LAWS[law](random, 20_000) for _ in range(children)]
    return CostBlend([(0, WEIGHTS[children])], [partial(child, each) for each in costs], key=1), costs


def exactness(items: int) -> None:
    """Print the first table."""
    print("law         children  ns per item  worst error / largest item")
    for law in LAWS:
        for children, weights in WEIGHTS.items():
            blend, costs = blended(law, children)
            begin = time.perf_counter()
            labels, positions = blend.route(np.arange(items))
            seconds = time.perf_counter() - begin
            paid = np.concatenate(costs)[labels * 20_000 + positions % 20_000]
            total, largest = np.cumsum(paid), np.maximum.accumulate(paid)
            worst = 0.0
            for number in range(min(children, 100)):
                own = np.cumsum(np.where(labels == number, paid, 0))
                worst = max(worst, float((np.abs(own - total * (weights[number] / sum(weights))) / largest).max()))
            print(f"{law:10s}  {children:8d}  {1e9 * seconds / items:11.0f}  {worst:.3f}")


def far_on(items: int) -> None:
    """Print the second table."""
    blend, _ = blended("log-normal", 10)
    begin = time.perf_counter()
    blend.route(np.arange(10 * items, 11 * items))
    whole = time.perf_counter() - begin
    fresh, _ = blended("log-normal", 10)
    fresh.remember(blend.anchor(10 * items))
    begin = time.perf_counter()
    fresh.route(np.arange(10 * items, 11 * items))
    print(f"\n{items:,} items after the first {10 * items:,}: {whole:.2f} s, from the carry of a saved state", end="")
    print(f" {time.perf_counter() - begin:.2f} s; the carry has {len(fresh.anchor(10 * items))} numbers")


def reading(samples: int, rounds: int) -> None:
    """Print the third table."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text_bytes in (("short", 100), ("long", 400)):
            make_text_dataset(Path(folder) / name, n=samples, shards=4, text_bytes=text_bytes)
        rates: dict[str, list[float]] = {"samples": [], "bytes.txt": []}
        for _ in range(rounds):
            for unit, seen in rates.items():
                seen.append(_rate(Path(folder), None if unit == "samples" else unit))
    by_samples, by_cost = (statistics.median(seen) for seen in rates.values())
    print(f"\nblended by samples {by_samples:,.0f}/s, by bytes {by_cost:,.0f}/s: ratio {by_cost / by_samples:.3f}")


def _rate(folder: Path, unit: str | None) -> float:
    config = WorkerConfig(rank=0, world_size=1, num_workers=0)
    leaves = [
        (
            get_train_dataset(
                folder / name,
                batch_size=None,
                shuffle_buffer_size=None,
                max_samples_per_sequence=None,
                worker_config=config,
            ),
            1,
        )
        for name in ("short", "long")
    ]
    dataset = BatchDataset(BlendDataset(*leaves, weight_unit=unit), 32, len)
    with get_loader(dataset) as loader:
        for _ in range(200):
            next(loader)
        steps, begin = 0, time.perf_counter()
        while time.perf_counter() - begin < 2:
            next(loader)
            steps += 1
        return 32 * steps / (time.perf_counter() - begin)


def draw(file: str) -> None:
    """Draw the shares of three datasets of different lengths along a stream: by samples, and by tokens."""
    random = np.random.default_rng(0)
    names, weights, medians = ["short texts", "articles", "books"], [5, 3, 2], [60, 600, 3000]
    costs = [np.clip(random.lognormal(np.log(median), 0.8, 200_000), 4, 32768).astype(np.int64) for median in medians]
    labels, positions = CostBlend([(0, weights)], [partial(child, each) for each in costs], key=1).route(
        np.arange(60_000)
    )
    by_samples = random.permutation(np.repeat(np.arange(3), np.array(weights) * 600))
    taken = np.array([np.cumsum(by_samples == number) - 1 for number in range(3)])
    places = (taken[by_samples, np.arange(len(by_samples))], positions)
    colours = ["#1565c0", "#ef6c00", "#2e7d32"]
    drawn = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 800 300" font-family="system-ui, sans-serif" '
        'font-size="13" fill="#263238" role="img">',
        "<title>Shares of the tokens of three datasets, by weights of samples and by weights of tokens</title>",
        '<rect width="800" height="300" rx="10" fill="#fff" stroke="#cfd8dc"/>',
    ]
    panels = zip((60, 440), ("weights of samples", "weight_unit: tokens"), (by_samples, labels), places, strict=True)
    for left, title, of, at in panels:
        paid = np.stack(costs)[of, at % 200_000]
        total = np.cumsum(paid)
        shown = np.searchsorted(total, np.geomspace(2e4, 2e6, 150))
        across = left + 320 * np.log10(total[shown] / 2e4) / 2
        drawn.append(f'<text x="{left}" y="28" font-weight="600">{title}</text>')
        for percent in (0, 50, 100):
            y = 250 - 2 * percent
            drawn.append(f'<path d="M{left} {y}h320" stroke="#cfd8dc"/>')
            drawn.append(f'<text x="{left - 6}" y="{y + 4}" text-anchor="end" fill="#607d8b">{percent} %</text>')
        for label, x in (("20,000 tokens so far", left), ("2,000,000", left + 320)):
            anchor = "start" if x == left else "end"
            drawn.append(f'<text x="{x}" y="270" text-anchor="{anchor}" fill="#607d8b">{label}</text>')
        for number, (name, colour) in enumerate(zip(names, colours, strict=True)):
            share = 100 * np.cumsum(np.where(of == number, paid, 0))[shown] / total[shown]
            points = " ".join(f"{x:.0f},{250 - 2 * y:.1f}" for x, y in zip(across, share, strict=True))
            drawn.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
            if left == 60:
                x = 60 + 230 * number
                drawn.append(f'<text x="{x}" y="291" fill="{colour}">{name}, weight {weights[number]}</text>')
    Path(file).write_text("\n".join([*drawn, "</svg>", ""]), encoding="utf-8")


def main(items: int = 1_000_000, samples: int = 100_000, rounds: int = 3, chart: str = "") -> None:
    if chart:
        draw(chart)
        return
    exactness(items)
    far_on(items)
    reading(samples, rounds)


if __name__ == "__main__":
    program(main)
