"""The table: which programs stand side by side, and what ours has to reach."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from benchmarks.array_record_rows import array_record_rows
from benchmarks.contender import Contender
from benchmarks.datasets import DATA_SETS, OURS, prepare_options
from benchmarks.join_rows import join_rows
from benchmarks.mixing_rows import mixing_rows
from benchmarks.object_store_rows import object_store_rows
from benchmarks.packing_rows import packing_rows
from benchmarks.peer_python import energon_program
from benchmarks.programs import energon, floor, grain, importing, ours, peer
from benchmarks.row import Row, Target
from benchmarks.torch_rows import torch_rows


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
        _jpeg_256(cache, span),
        _prepare(cache, sqlite=True),
        _prepare(cache, sqlite=False),
        _first_batch(cache),
        _import(),
        _resume(cache),
        *mixing_rows(cache, span),
        *packing_rows(cache, span),
        *join_rows(cache, span),
        *torch_rows(cache, span),
        *array_record_rows(cache, span),
        *object_store_rows(cache),
    ]


def _text_crude(cache: Path, span: dict[str, Any]) -> Row:
    crude = str(cache / "text-crude")
    return Row(
        name="text-crude",
        title="1 KB text + json: crude data set, cooker into two fields, shuffled 100/100, batches of 32, one process",
        data_sets=("text",),
        metrics=("samples_per_s",),
        contenders=(
            ours("throughput", folder=crude, program="crude-text", **span),
            energon("throughput", folder=crude, program="crude-text", **span),
            energon("throughput", "energon 2 workers", folder=crude, program="crude-text", workers=2, **span),
            *grain(cache, "text", span),
            peer("webdataset", "webdataset", "throughput", folder=crude, parts=("txt", "json"), **span),
            peer("litdata", "litdata", "throughput", folder=str(cache / "text.litdata.plain"), **span),
            floor("pread", "pread", folder=crude, **span),
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
            ours("throughput", folder=folder, program="plain", **span),
            energon("throughput", folder=folder, program="plain", **span),
            *grain(cache, "text", span),
            peer("litdata", "litdata", "throughput", folder=str(cache / "text.litdata.plain"), **span),
            floor("pread", "pread", folder=folder, **span),
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
            ours("throughput", blocks=False, **program),
            energon("throughput", **program),
            *grain(cache, "blob", span),
            peer("webdataset", "webdataset", "throughput", folder=folder, parts=("bin", "json"), **span),
            peer("litdata", "litdata", "throughput", folder=str(cache / "blob.litdata.plain"), **span),
            floor("pread", "pread", folder=folder, **span),
            floor("pread, dropped at once", "pread", folder=folder, keep=False, **span),
            floor("preadv", "preadv", folder=folder, **span),
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
        ours("throughput", **program),
        energon("throughput", **program),
        floor("bare decoder", "jpeg", folder=folder, threads=threads, **span),
    ]
    targets = [Target(metric="samples_per_s", bound=2.0, sense="at least", against="energon")]
    if mode == "rgb8":
        targets.append(Target(metric="samples_per_s", bound=0.9, sense="at least", against="bare decoder"))
    else:
        targets = [Target(metric="samples_per_s", bound=2.5, sense="at least", against="energon")]
    if mode == "rgb8" and threads == 1:
        images = {"folder": folder, "parts": ("jpg", "txt"), "image": True, **span}
        contenders += [
            *grain(cache, "jpeg", span, image=True),
            peer("webdataset", "webdataset", "throughput", **images),
            floor("bare pillow", "jpeg", folder=folder, decoder="pillow", **span),
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


def _jpeg_256(cache: Path, span: dict[str, Any]) -> Row:
    folder = str(cache / "large-jpeg")
    program = {"folder": folder, "program": "rgb8-256", **span}
    images = {"folder": folder, "parts": ("jpg", "txt"), "image": True, "side": 256, **span}
    return Row(
        name="jpeg-256",
        title="1024 x 1024 JPEG + caption, resized to 256 x 256 (bicubic; the others decode whole), batches of 32, "
        "one process",
        data_sets=("large-jpeg",),
        metrics=("samples_per_s",),
        contenders=(
            ours("throughput", **program),
            energon("throughput", **program),
            *grain(cache, "large-jpeg", span, image=True, side=256),
            peer("webdataset", "webdataset", "throughput", **images),
            peer("litdata", "litdata", "throughput", folder=str(cache / "large-jpeg.litdata.plain"), side=256, **span),
            floor("bare pillow", "jpeg", folder=folder, decoder="pillow-256", **span),
        ),
        targets=(
            Target(metric="samples_per_s", bound=3, sense="at least", against="energon"),
            Target(metric="samples_per_s", bound=3, sense="at least", against="bare pillow"),
        ),
    )


def _prepare(cache: Path, *, sqlite: bool) -> Row:
    data = DATA_SETS["text"]
    common = {"folder": str(cache / "text"), "samples": data.samples}
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
                arguments={**common, "program": OURS, "options": own_options},
            ),
            Contender(
                name="energon",
                module="preparing",
                call="prepare",
                arguments={**common, "program": energon_program(), "options": options},
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
            ours("first_batch", folder=folder),
            energon("first_batch", folder=folder),
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
            importing("ours", "energon_grain"),
            importing("ours with loader, Grain and decoders", "energon_grain", "benchmarks.ours"),
            importing("energon", "megatron.energon", in_peer_python=True),
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
        contenders=(ours("resume", **program), energon("resume", **program)),
        targets=(
            Target(metric="state_bytes", bound=1024, sense="at most"),
            Target(metric="restore_s", bound=0.02, sense="at most", against="energon"),
        ),
    )
