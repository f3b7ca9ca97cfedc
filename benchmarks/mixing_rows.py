"""Rows about blends: what mixing costs with two to a thousand data sets, and the order of a blend of a hundred."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.contender import Contender
from benchmarks.mixtures import METADATASET
from benchmarks.programs import energon, grain, ours
from benchmarks.row import Row, Target


def mixing_rows(cache: Path, span: dict[str, Any]) -> list[Row]:
    """All of them."""
    return [_two(cache, span), _hundred(cache, span), _thousand(cache, span), _order(cache), _opening(cache)]


def _two(cache: Path, span: dict[str, Any]) -> Row:
    blend = {"folder": str(cache / "text-2"), "metadataset": METADATASET, "program": "plain", **span}
    return Row(
        name="blend-2",
        title="1 KB text: two data sets mixed one to one, `TextSample`, shuffled 100/100, batches of 32, one process",
        data_sets=("text", "text-2"),
        metrics=("samples_per_s",),
        contenders=(
            ours("throughput", **blend),
            ours("throughput", "single leaf", folder=str(cache / "text"), program="plain", **span),
            energon("throughput", **blend),
            *grain(cache, "text", span, mixed=True),
        ),
        targets=(
            Target(metric="samples_per_s", bound=0.8, sense="at least", against="single leaf"),
            Target(metric="samples_per_s", bound=40, sense="at least", against="energon"),
            Target(metric="samples_per_s", bound=6, sense="at least", against="grain tuned"),
        ),
    )


def _hundred(cache: Path, span: dict[str, Any]) -> Row:
    blend = {"folder": str(cache / "text-100"), "metadataset": METADATASET, "program": "plain", **span}
    return Row(
        name="blend-100",
        title="1 KB text: a hundred data sets mixed, else as above",
        data_sets=("text", "text-100"),
        metrics=("samples_per_s",),
        contenders=(
            ours("throughput", **blend),
            ours("throughput", "single leaf", folder=str(cache / "text"), program="plain", **span),
        ),
        targets=(Target(metric="samples_per_s", bound=0.5, sense="at least", against="single leaf"),),
    )


def _thousand(cache: Path, span: dict[str, Any]) -> Row:
    shared = {"metadataset": METADATASET, "program": "plain", **span}
    return Row(
        name="blend-1000",
        title="1 KB text: a thousand data sets mixed, else as above",
        data_sets=("text-1000", "text-100"),
        metrics=("samples_per_s",),
        contenders=(
            ours("throughput", folder=str(cache / "text-1000"), **shared),
            ours("throughput", "a hundred", folder=str(cache / "text-100"), **shared),
        ),
        targets=(Target(metric="samples_per_s", bound=0.5, sense="at least", against="a hundred"),),
    )


def _order(cache: Path) -> Row:
    folder = str(cache / "text-100")
    return Row(
        name="blend-100-order",
        title="a hundred data sets mixed: the draws of the first million positions, and the state after 200 batches",
        data_sets=("text-100",),
        metrics=("draws_s", "state_bytes"),
        contenders=(
            Contender(
                name="ours",
                module="order",
                call="order",
                arguments={"folder": folder, "metadataset": METADATASET, "batches": 200},
            ),
        ),
        targets=(
            Target(metric="draws_s", bound=1.0, sense="at most"),
            Target(metric="state_bytes", bound=4096, sense="at most"),
        ),
    )


def _opening(cache: Path) -> Row:
    return Row(
        name="blend-1000-open",
        title="a thousand data sets mixed: from the imports to the first batch, and what is held then",
        data_sets=("text-1000",),
        metrics=("first_batch_s", "memory_mb", "open_files"),
        contenders=(ours("first_batch", folder=str(cache / "text-1000"), metadataset=METADATASET, batches=20),),
        targets=(Target(metric="first_batch_s", bound=1.0, sense="at most"),),
    )
