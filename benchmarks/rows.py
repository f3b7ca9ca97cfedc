"""The table: which programs stand side by side, and what ours has to reach."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks.contender import Contender
from benchmarks.datasets import DATA_SETS, prepare_options
from benchmarks.peer_python import peer_python


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """A bound on `ours / other` of a metric, pair by pair; without `against`, on the metric itself.

    `against` names a contender, or a family: then the one of it with the best median counts.
    """

    metric: str
    bound: float
    sense: Literal["at least", "at most"]
    against: str | None = None

    def met(self, value: float) -> bool:
        """Whether a measured value keeps the bound."""
        return value >= self.bound if self.sense == "at least" else value <= self.bound


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """Contenders measured in turns; the first is ours."""

    name: str
    title: str
    data_sets: tuple[str, ...]
    metrics: tuple[str, ...]
    contenders: tuple[Contender, ...]
    targets: tuple[Target, ...] = ()


def table(cache: Path, *, warmup_s: float, seconds: float) -> list[Row]:
    """All rows, over the data sets in `cache`."""
    span = {"warmup_s": warmup_s, "seconds": seconds}
    return [
        _text_crude(cache, span),
        _text_sample(cache, span),
        _blobs(cache, span),
        _jpeg(cache, span, "rgb8", threads=1),
        _jpeg(cache, span, "rgb8", threads=os.cpu_count() or 1),
        _jpeg(cache, span, "torchrgb", threads=1),
        _prepare(cache, sqlite=True),
        _prepare(cache, sqlite=False),
        _first_batch(cache),
        _import(),
        _resume(cache),
    ]


def _ours(call: str, name: str = "ours", **arguments: Any) -> Contender:
    arguments = {"programs": "benchmarks.ours", **arguments}
    return Contender(name=name, module="loaders", call=call, arguments=arguments)


def _energon(call: str, name: str = "energon", **arguments: Any) -> Contender:
    arguments = {"programs": "benchmarks.peers.energon", **arguments}
    return Contender(name=name, module="loaders", call=call, arguments=arguments, in_peer_python=True)


def _peer(name: str, module: str, call: str, **arguments: Any) -> Contender:
    return Contender(name=name, module=f"peers.{module}", call=call, arguments=arguments, in_peer_python=True)


def _importing(name: str, *modules: str, in_peer_python: bool = False) -> Contender:
    call, arguments = "import_time", {"modules": modules}
    return Contender(name=name, module="loaders", call=call, arguments=arguments, in_peer_python=in_peer_python)


def _floor(name: str, call: str, **arguments: Any) -> Contender:
    return Contender(name=name, module="floor", call=call, arguments=arguments)


def _grain(cache: Path, data: str, span: dict[str, Any], *, image: bool = False) -> Sequence[Contender]:
    """Grain + ArrayRecord at its defaults and in the variants that bench well ("tuned" is the best of them)."""
    plain = str(cache / f"{data}.grain_array_record.uncompressed")
    default = str(cache / f"{data}.grain_array_record.default")
    common = {**span, "image": image}
    variants: dict[str, dict[str, Any]] = {
        "0 threads": {"threads": 0},
        "0 threads, 2 processes": {"threads": 0, "workers": 2},
        "batch first, 0 threads": {"threads": 0, "batch_first": True},
        "batch first, 0 threads, 2 processes": {"threads": 0, "batch_first": True, "workers": 2},
    }
    tuned = [
        _peer(f"grain tuned: {name}", "grain_array_record", "throughput", folder=plain, **common, **options)
        for name, options in variants.items()
    ]
    defaults = _peer("grain default", "grain_array_record", "throughput", folder=plain if image else default, **common)
    return [defaults, *tuned]


def _text_crude(cache: Path, span: dict[str, Any]) -> Row:
    crude = str(cache / "text-crude")
    return Row(
        name="text-crude",
        title="1 KB text + json: crude data set, cooker into two fields, shuffled 100/100, batches of 32, one process",
        data_sets=("text",),
        metrics=("samples_per_s",),
        contenders=(
            _ours("throughput", folder=crude, program="crude-text", **span),
            _energon("throughput", folder=crude, program="crude-text", **span),
            _energon("throughput", "energon 2 workers", folder=crude, program="crude-text", workers=2, **span),
            *_grain(cache, "text", span),
            _peer("webdataset", "webdataset", "throughput", folder=crude, parts=("txt", "json"), **span),
            _peer("litdata", "litdata", "throughput", folder=str(cache / "text.litdata.plain"), **span),
            _floor("pread", "pread", folder=crude, **span),
        ),
        targets=(
            Target(metric="samples_per_s", bound=30, sense="at least", against="energon"),
            Target(metric="samples_per_s", bound=5, sense="at least", against="grain tuned"),
        ),
    )


def _text_sample(cache: Path, span: dict[str, Any]) -> Row:
    folder = str(cache / "text")
    return Row(
        name="text-sample",
        title="1 KB text: `TextSample`, no user hook, shuffled 100/100, batches of 32, one process",
        data_sets=("text",),
        metrics=("samples_per_s",),
        contenders=(
            _ours("throughput", folder=folder, program="plain", **span),
            _energon("throughput", folder=folder, program="plain", **span),
            *_grain(cache, "text", span),
            _peer("litdata", "litdata", "throughput", folder=str(cache / "text.litdata.plain"), **span),
            _floor("pread", "pread", folder=folder, **span),
        ),
        targets=(
            Target(metric="samples_per_s", bound=40, sense="at least", against="energon"),
            Target(metric="samples_per_s", bound=7, sense="at least", against="grain tuned"),
            Target(metric="samples_per_s", bound=0.7, sense="at least", against="litdata"),
        ),
    )


def _blobs(cache: Path, span: dict[str, Any]) -> Row:
    folder = str(cache / "blob")
    program = {"folder": folder, "program": "crude-blob", **span}
    return Row(
        name="blobs",
        title="100 KB blobs + json: crude data set, cooker into two fields, full shuffle, batches of 32, one process",
        data_sets=("blob",),
        metrics=("samples_per_s",),
        contenders=(
            _ours("throughput", blocks=False, **program),
            _energon("throughput", **program),
            *_grain(cache, "blob", span),
            _peer("webdataset", "webdataset", "throughput", folder=folder, parts=("bin", "json"), **span),
            _peer("litdata", "litdata", "throughput", folder=str(cache / "blob.litdata.plain"), **span),
            _floor("pread", "pread", folder=folder, **span),
            _floor("pread, dropped at once", "pread", folder=folder, keep=False, **span),
            _floor("preadv", "preadv", folder=folder, **span),
        ),
        targets=(
            Target(metric="samples_per_s", bound=8, sense="at least", against="energon"),
            Target(metric="samples_per_s", bound=2.5, sense="at least", against="grain tuned"),
            Target(metric="samples_per_s", bound=1.2, sense="at least", against="pread"),
            Target(metric="samples_per_s", bound=0.5, sense="at least", against="preadv"),
        ),
    )


def _jpeg(cache: Path, span: dict[str, Any], mode: str, *, threads: int) -> Row:
    folder = str(cache / "jpeg")
    workers = 0 if threads == 1 else threads
    program = {"folder": folder, "program": mode, "workers": workers, **span}
    contenders = [
        _ours("throughput", **program),
        _energon("throughput", **program),
        _floor("bare decoder", "jpeg", folder=folder, threads=threads, **span),
    ]
    targets = [Target(metric="samples_per_s", bound=2.0, sense="at least", against="energon")]
    if mode == "rgb8":
        targets.append(Target(metric="samples_per_s", bound=0.9, sense="at least", against="bare decoder"))
    else:
        targets = [Target(metric="samples_per_s", bound=2.5, sense="at least", against="energon")]
    if mode == "rgb8" and threads == 1:
        images = {"folder": folder, "parts": ("jpg", "txt"), "image": True, **span}
        contenders += [
            *_grain(cache, "jpeg", span, image=True),
            _peer("webdataset", "webdataset", "throughput", **images),
            _floor("bare pillow", "jpeg", folder=folder, decoder="pillow", **span),
        ]
    where = "one process" if threads == 1 else f"{threads} workers (ours: threads)"
    name = f"jpeg-{mode}" if threads == 1 else f"jpeg-{mode}-{threads}"
    return Row(
        name=name,
        title=f"256 x 256 JPEG + caption, image_decode={mode!r}, batches of 32, {where}",
        data_sets=("jpeg",),
        metrics=("samples_per_s",),
        contenders=tuple(contenders),
        targets=tuple(targets),
    )


def _prepare(cache: Path, *, sqlite: bool) -> Row:
    data = DATA_SETS["text"]
    common = {"folder": str(cache / "text"), "samples": data.samples}
    ours = [sys.executable, "-c", "from energon_grain.cli import main; main()"]
    theirs = [str((peer_python() or Path("missing")).with_name("energon"))]
    options = prepare_options(data)
    own_options = options if sqlite else [*options, "--no-sqlite"]
    return Row(
        name="prepare" if sqlite else "prepare-no-sqlite",
        title=f"`prepare{'' if sqlite else ' --no-sqlite'}` of 1 KB samples, whole process, {os.cpu_count()} workers",
        data_sets=("text",),
        metrics=("samples_per_s", "seconds", "index_mb"),
        contenders=(
            Contender(
                name="ours",
                module="preparing",
                call="prepare",
                arguments={**common, "program": ours, "options": own_options},
            ),
            Contender(
                name="energon",
                module="preparing",
                call="prepare",
                arguments={**common, "program": theirs, "options": options},
                in_peer_python=True,
            ),
        ),
        targets=(Target(metric="samples_per_s", bound=6 if sqlite else 20, sense="at least", against="energon"),),
    )


def _first_batch(cache: Path) -> Row:
    folder = str(cache / "tiny")
    return Row(
        name="million",
        title="one million samples in 1,000 shards: from the imports to the first batch, and what is held then",
        data_sets=("tiny",),
        metrics=("first_batch_s", "memory_mb", "open_files"),
        contenders=(
            _ours("first_batch", folder=folder),
            _energon("first_batch", folder=folder),
        ),
        targets=(
            Target(metric="first_batch_s", bound=1.0, sense="at most", against="energon"),
            Target(metric="memory_mb", bound=20, sense="at most"),
            Target(metric="open_files", bound=64, sense="at most"),
        ),
    )


def _import() -> Row:
    return Row(
        name="import",
        title="importing the package in a fresh interpreter",
        data_sets=(),
        metrics=("import_s",),
        contenders=(
            _importing("ours", "energon_grain"),
            _importing("ours with loader, Grain and decoders", "energon_grain", "benchmarks.ours"),
            _importing("energon", "megatron.energon", in_peer_python=True),
        ),
        targets=(Target(metric="import_s", bound=0.15, sense="at most", against="energon"),),
    )


def _resume(cache: Path) -> Row:
    program = {"folder": str(cache / "text-crude"), "batches": 3_130, "workers": 2}
    return Row(
        name="resume",
        title="state after 100,160 samples with two workers (ours: threads), and from restoring it to the first batch",
        data_sets=("text",),
        metrics=("state_bytes", "save_s", "restore_s"),
        contenders=(_ours("resume", **program), _energon("resume", **program)),
        targets=(
            Target(metric="state_bytes", bound=1024, sense="at most"),
            Target(metric="restore_s", bound=0.02, sense="at most", against="energon"),
        ),
    )
