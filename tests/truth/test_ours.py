"""Our adapters in LoaderTruth: no repeats, no losses, no other batches. 200 histories, and 10,000 at night."""

from __future__ import annotations

import os
from typing import Any

import pytest

from benchmarks.truth.checks import CHECKS
from benchmarks.truth.run import run_check

NIGHT = os.environ.get("HYPOTHESIS_PROFILE") == "night"
HISTORIES = int(os.environ.get("HISTORIES", "10000" if NIGHT else "200"))
SHARES = {"resume": 0.2, "elastic": 0.3, "mixture": 0.15, "packs": 0.1, "change": 0.15, "repeatability": 0.1}
LOADERS = {"energon_grain_torch": 0.8, "energon_grain_jax": 0.2}  # worker processes of the second start slowly

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("check", SHARES)
def test_histories_are_exact(fleet: Any, loader: str, check: str) -> None:
    count = round(HISTORIES * SHARES[check] * LOADERS[loader])
    outcome = run_check(fleet(loader), check, count, seed=HISTORIES * [*LOADERS].index(loader), jobs=2)
    assert (outcome.failures, outcome.exact, outcome.measured) == ([], count, count), outcome.summary
    assert not outcome.positive("differing_steps")
    if check == "mixture":
        assert outcome.summary["share_error"]["most"] < 8  # samples: at most one for each dataset


@pytest.mark.parametrize("loader", LOADERS)
def test_the_past_is_known(fleet: Any, loader: str) -> None:
    outcome = run_check(fleet(loader), "audit", 4, jobs=2)
    assert (outcome.failures, outcome.exact) == ([], 4), outcome.summary


def test_both_adapters_claim_everything(fleet: Any) -> None:
    for loader in LOADERS:
        assert all(check.needs(fleet(loader).claims) for check in CHECKS.values())
