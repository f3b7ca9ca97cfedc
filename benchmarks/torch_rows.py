"""Rows about the PyTorch adapter: Megatron-Energon's own program, run by both, with 0, 1 and 2 workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.contender import Contender
from benchmarks.programs import energon, floor, ours
from benchmarks.row import Row, Target


def torch_rows(cache: Path, span: dict[str, Any]) -> list[Row]:
    """All of them."""
    return [
        *(_text(cache, span, workers, bound) for workers, bound in ((0, 20), (1, None), (2, 8))),
        *(_blobs(cache, span, workers, bound) for workers, bound in ((0, 4), (1, None), (2, None))),
        *(_jpeg(cache, span, workers, bound) for workers, bound in ((0, 2.5), (1, None), (2, 2))),
        _state(cache),
    ]


def _ours(call: str, name: str = "ours", **arguments: Any) -> Contender:
    return ours(call, name, programs="benchmarks.ours_torch", **arguments)


def _targets(bound: float | None) -> tuple[Target, ...]:
    if bound is None:
        return ()
    return (Target(metric="samples_per_s", bound=bound, sense="at least", against="energon"),)


def _workers(workers: int) -> str:
    return f"{workers} `DataLoader` worker{'' if workers == 1 else 's'}" if workers else "no workers"


def _text(cache: Path, span: dict[str, Any], workers: int, bound: float | None) -> Row:
    program = {"folder": str(cache / "text-crude"), "program": "crude-text", "workers": workers, **span}
    return Row(
        name=f"torch-text-{workers}",
        title=f"PyTorch, 1 KB text + json: crude data set, cooker into two fields, shuffled 100/100, batches of 32, "
        f"{_workers(workers)}",
        data_sets=("text",),
        metrics=("samples_per_s",),
        contenders=(_ours("throughput", **program), energon("throughput", **program)),
        targets=_targets(bound),
    )


def _blobs(cache: Path, span: dict[str, Any], workers: int, bound: float | None) -> Row:
    program = {"folder": str(cache / "blob"), "program": "crude-blob", "workers": workers, **span}
    return Row(
        name=f"torch-blobs-{workers}",
        title=f"PyTorch, 100 KB blobs + json: crude data set, cooker into two fields, shuffled 100/100, batches of 32, "
        f"{_workers(workers)}",
        data_sets=("blob",),
        metrics=("samples_per_s",),
        contenders=(_ours("throughput", **program), energon("throughput", **program)),
        targets=_targets(bound),
    )


def _jpeg(cache: Path, span: dict[str, Any], workers: int, bound: float | None) -> Row:
    """Without worker processes, ours decodes in two threads; what it does without those stands beside."""
    folder = str(cache / "jpeg")
    program = {"folder": folder, "program": "torchrgb", **span}
    threads = {**program, "workers": 2, "worker_type": "thread"}
    if workers == 0:
        own = (_ours("throughput", **threads), _ours("throughput", "ours, no threads", workers=0, **program))
    else:
        own = (_ours("throughput", workers=workers, **program),)
    return Row(
        name=f"torch-jpeg-{workers}",
        title=f"PyTorch, 256 x 256 JPEG + caption, image_decode='torchrgb', batches of 32, "
        f"{_workers(workers) if workers else 'no worker processes (ours: 2 threads)'}",
        data_sets=("jpeg",),
        metrics=("samples_per_s",),
        contenders=(
            *own,
            energon("throughput", workers=workers, **program),
            floor("bare decoder", "jpeg", folder=folder, threads=1, **span),
            floor("bare decoder, 2 threads", "jpeg", folder=folder, threads=2, **span),
        ),
        targets=_targets(bound),
    )


def _state(cache: Path) -> Row:
    program = {"folder": str(cache / "text-crude"), "batches": 3_130, "workers": 2, "shuffle_buffer": 1_000}
    return Row(
        name="torch-state",
        title="PyTorch, state after 100,160 texts with two workers and a shuffle buffer of 1,000, and from restoring "
        "it to the first batch",
        data_sets=("text",),
        metrics=("state_bytes", "save_s", "restore_s"),
        contenders=(_ours("resume", **program), energon("resume", **program)),
        targets=(
            Target(metric="state_bytes", bound=0.05, sense="at most", against="energon"),
            Target(metric="restore_s", bound=0.1, sense="at most", against="energon"),
        ),
    )
