"""Rows about packing: its rate, its restoring, and how full packs become."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.contender import Contender
from benchmarks.packed_lengths import BUFFER, LENGTHS
from benchmarks.programs import energon, ours, peer
from benchmarks.row import Row, Target


def packing_rows(cache: Path, span: dict[str, Any]) -> list[Row]:
    """All of them."""
    return [_rate(cache, span), _resume(cache), *map(_efficiency, LENGTHS)]


def _rate(cache: Path, span: dict[str, Any]) -> Row:
    program = {"folder": str(cache / "text"), "program": "pack-text", **span}
    return Row(
        name="packing",
        title="1 KB text split into words, packed to 4,096 by the same greedy packer, buffer of 100, one process",
        data_sets=("text",),
        metrics=("samples_per_s",),
        contenders=(ours("throughput", **program), energon("throughput", **program)),
        targets=(Target(metric="samples_per_s", bound=5, sense="at least", against="energon"),),
    )


def _resume(cache: Path) -> Row:
    program: dict[str, Any] = {"folder": str(cache / "text"), "program": "pack-text", "batches": 500}
    return Row(
        name="resume-packing",
        title="state after 2,000 packs with full buffers and two workers (ours: threads), and from restoring it to the "
        "first batch",
        data_sets=("text",),
        metrics=("restore_s", "state_bytes", "save_s"),
        contenders=(
            ours("resume", workers=2, **program),
            energon("resume", workers=2, **program),
            ours("resume", "ours, no workers", workers=0, **program),
            energon("resume", "energon, no workers", workers=0, **program),
        ),
        targets=(Target(metric="restore_s", bound=0.05, sense="at most", against="energon"),),
    )


def _efficiency(lengths: str) -> Row:
    def own(name: str, packer: str, *, keep_rest: bool) -> Contender:
        arguments = {"lengths": lengths, "packer": packer, "keep_rest": keep_rest}
        return Contender(name=name, module="own_packing", call="efficiency", arguments=arguments)

    kept = {
        f"ours: {packer}, rest kept": own(f"ours: {packer}, rest kept", packer, keep_rest=True)
        for packer in ("best_fit_decreasing", "first_fit_decreasing", "best_fit")
    }
    whole = [
        own(f"ours: {packer}, whole buffers", packer, keep_rest=False)
        for packer in ("greedy_knapsack", "best_fit_decreasing")
    ]
    grain = [
        peer(f"grain best fit: {title}", "grain_packing", "efficiency", lengths=lengths, bins=bins)
        for title, bins in (("as many tokens", None), (f"{BUFFER} bins", BUFFER))
    ]
    return Row(
        name=f"packing-{lengths}",
        title=f"how full packs of 4,096 become, {LENGTHS[lengths].__doc__}; ours: greedy_knapsack with "
        f"`keep_rest=True`, buffer of {BUFFER}",
        data_sets=(),
        metrics=("efficiency", "us_per_sample"),
        contenders=(own("ours", "greedy_knapsack", keep_rest=True), *kept.values(), *whole, *grain),
        targets=(Target(metric="efficiency", bound=1.0, sense="at least", against="grain best fit"),),
    )
