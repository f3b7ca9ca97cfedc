"""Rows about joins: building the index of one, and reading its rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.contender import Contender
from benchmarks.datasets import OURS
from benchmarks.joins import ENERGON_YAML, JOINS, OURS_YAML
from benchmarks.peer_python import energon_program
from benchmarks.programs import energon, ours
from benchmarks.row import Row, Target


def join_rows(cache: Path, span: dict[str, Any]) -> list[Row]:
    """All of them."""
    return [
        _prepare(cache),
        _read(cache, span, "join", "text-join", blocks=True),
        _read(cache, span, "join-mixed", "text-join-mixed", blocks=True),
        _read(cache, span, "join-full", "text-join", blocks=False),
        _read(cache, span, "join-full-mixed", "text-join-mixed", blocks=False),
    ]


def _prepare(cache: Path) -> Row:
    join = JOINS["tiny-join"]
    common = {"folder": str(cache / join.name), "samples": join.data.samples}
    own = {**common, "metadataset": OURS_YAML, "program": OURS}
    theirs = {**common, "metadataset": ENERGON_YAML, "program": energon_program()}
    return Row(
        name="join-prepare",
        title="`prepare` of a metadataset that joins two prepared data sets of a million samples, whole process",
        data_sets=("tiny", join.name),
        metrics=("samples_per_s", "seconds", "index_mb"),
        contenders=(
            Contender(name="ours", module="preparing", call="prepare_join", arguments=own),
            Contender(name="energon", module="preparing", call="prepare_join", arguments=theirs, in_peer_python=True),
        ),
        targets=(Target(metric="samples_per_s", bound=10, sense="at least", against="energon"),),
    )


def _read(cache: Path, span: dict[str, Any], name: str, data_set: str, *, blocks: bool) -> Row:
    order = "the same order" if JOINS[data_set].same_order else "another order"
    shuffle = "100/100" if blocks else "fully (Energon 100/100)"
    program = {"folder": str(cache / data_set), "program": "join", **span}
    leaf = {"folder": str(cache / "text"), "program": "plain", "blocks": blocks, **span}
    return Row(
        name=name,
        title=f"1 KB text joined with 1 KB text in {order}, a joiner that makes pairs, shuffled {shuffle}, "
        "batches of 32, one process",
        data_sets=("text", data_set),
        metrics=("samples_per_s",),
        contenders=(
            ours("throughput", metadataset=OURS_YAML, blocks=blocks, **program),
            ours("throughput", "single leaf", **leaf),
            energon("throughput", metadataset=ENERGON_YAML, **program),
        ),
        targets=(
            Target(metric="samples_per_s", bound=0.4, sense="at least", against="single leaf"),
            Target(metric="samples_per_s", bound=30, sense="at least", against="energon"),
        ),
    )
