"""The row of the table on ArrayRecord files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.programs import grain, ours
from benchmarks.row import Row, Target


def array_record_rows(cache: Path, span: dict[str, Any]) -> list[Row]:
    """Ours over ArrayRecord files beside Grain's own pipeline over ArrayRecord files of the same samples."""
    records, tars = str(cache / "text-records"), str(cache / "text")
    return [
        Row(
            name="array-record",
            title="1 KB text in ArrayRecord files: `TextSample`, shuffled, batches of 32, one process",
            data_sets=("text",),
            metrics=("samples_per_s",),
            contenders=(
                ours("throughput", folder=records, program="plain", **span),
                ours("throughput", "ours: full shuffle", folder=records, program="plain", blocks=False, **span),
                ours("throughput", "ours: tars", folder=tars, program="plain", **span),
                *grain(cache, "text", span),
            ),
            targets=(
                Target(metric="samples_per_s", bound=1.5, sense="at least", against="grain tuned"),
                Target(metric="samples_per_s", bound=1.5, sense="at least", against="grain default"),
            ),
        )
    ]
