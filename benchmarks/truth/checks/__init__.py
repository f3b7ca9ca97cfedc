"""The checks, in the order of the table. Each is a module with `NAME`, `rules` or `measure`, and its formula."""

from __future__ import annotations

from benchmarks.truth.checks import audit, change, elastic, mixture, packs, repeatability, restart, resume, shuffle
from benchmarks.truth.checks.check import Check

CHECKS: dict[str, Check] = {
    check.name: check
    for check in (
        resume.CHECK,
        elastic.CHECK,
        mixture.CHECK,
        packs.CHECK,
        change.CHECK,
        repeatability.CHECK,
        restart.CHECK,
        shuffle.CHECK,
        audit.CHECK,
    )
}
