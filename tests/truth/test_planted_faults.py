"""Each check finds the fault that it is for, and finds nothing in an exact loader."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.truth.checks import CHECKS
from benchmarks.truth.report import cell, exact
from benchmarks.truth.run import Outcome, run_check

FAULTS = {  # (class, check): histories in which it must be found, of eight, and what is counted
    ("Repeats", "resume"): (6, "repeated"),
    ("Loses", "resume"): (6, "lost"),
    ("LosesElsewhere", "elastic"): (3, "lost"),
    ("Repeats", "mixture"): (6, "repeated"),
    ("ForgetsPacks", "packs"): (5, "lost"),
    ("StartsOver", "change"): (6, "repeated"),
    ("Varies", "repeatability"): (8, "batches"),
    ("VariesWithWorkers", "repeatability"): (8, "batches_workers"),
    ("Unseeded", "repeatability"): (8, "randoms"),
}


def outcome(fleet: Any, check: str, histories: int = 8) -> Outcome:
    return run_check(fleet, check, histories, jobs=2, say=lambda line: None)


@pytest.mark.parametrize(("fault", "check"), FAULTS)
def test_faults_are_found(fleet: Any, fault: str, check: str) -> None:
    found = outcome(fleet(fault), check)
    least, key = FAULTS[fault, check]
    assert not found.failures
    assert sum(values[key] > 0 for values in found.values) >= least


@pytest.mark.parametrize("check", ["resume", "elastic", "packs", "mixture", "change", "repeatability"])
def test_an_exact_loader_has_no_violations(fleet: Any, check: str) -> None:
    found = outcome(fleet("lists"), check)
    assert not found.failures
    assert exact(found.values) == 8
    faults = {"repeated", "lost", "differing_steps", "batches", "randoms", "batches_workers", "randoms_workers"}
    assert not any(values[key] for values in found.values for key in faults & set(values))


def test_losses_elsewhere_are_no_losses_on_the_same_hosts(fleet: Any) -> None:
    assert exact(outcome(fleet("LosesElsewhere"), "resume", 4).values) == 4


def test_shares_that_drift_are_found(fleet: Any) -> None:
    drift = [values["share_error"] for values in outcome(fleet("Drifts"), "mixture").values]
    fair = [values["share_error"] for values in outcome(fleet("lists"), "mixture").values]
    assert max(fair) < 2
    assert sorted(drift)[4] > 4


def test_an_order_without_shuffle_is_found(fleet: Any) -> None:
    (shuffled,) = outcome(fleet("lists"), "shuffle", 1).values
    (ordered,) = outcome(fleet("InOrder"), "shuffle", 1).values
    assert shuffled["chi2"] < 1.5 < 100 < ordered["chi2"]
    assert ordered["neighbours"] > 0.99 > 0.1 > shuffled["neighbours"]


def test_wrong_answers_about_the_past_are_found(fleet: Any) -> None:
    right = outcome(fleet("lists"), "audit", 3)
    assert all(values == {"which": 1, "when": 1} for values in right.values)
    wrong = outcome(fleet("WrongPast"), "audit", 3)
    assert all(values["which"] < 1 and values["when"] < 1 for values in wrong.values)


@pytest.mark.parametrize(("fault", "message"), [("Raises", "expected a state of version 2"), ("Hangs", "in time")])
def test_a_loader_that_fails_to_restore_is_reported(fleet: Any, fault: str, message: str) -> None:
    found = outcome(fleet(fault, timeout_s=3.0), "resume", 2)
    assert len(found.failures) == 2
    assert all("part 2" in text and message in text for text in found.failures)
    assert cell(found) == "2 of 2 failed"


def test_what_is_not_claimed_is_not_measured(fleet: Any) -> None:
    for check in set(CHECKS) - {"shuffle"}:
        assert cell(outcome(fleet("ClaimsLittle"), check)) == "not claimed"
