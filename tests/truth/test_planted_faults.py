"""Each check finds the fault that it is for, and finds nothing in an exact loader."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.truth.checks import CHECKS
from benchmarks.truth.report import cell
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
    assert found.positive(key) >= least
    assert found.exact <= 8 - least


@pytest.mark.parametrize("check", ["resume", "elastic", "packs", "mixture", "change", "repeatability"])
def test_an_exact_loader_has_no_violations(fleet: Any, check: str) -> None:
    found = outcome(fleet("lists"), check)
    assert not found.failures
    assert found.exact == 8
    assert not found.positive("differing_steps")


def test_a_loader_that_ends_before_the_saves_loses_samples_by_itself(fleet: Any) -> None:
    found = outcome(fleet("EndsEarly"), "resume")
    assert not found.failures
    assert found.positive("own_lost") == 8


def test_losses_elsewhere_are_no_losses_on_the_same_hosts(fleet: Any) -> None:
    assert outcome(fleet("LosesElsewhere"), "resume", 4).exact == 4


def test_shares_that_drift_are_found(fleet: Any) -> None:
    drift = outcome(fleet("Drifts"), "mixture").summary["share_error"]
    fair = outcome(fleet("lists"), "mixture").summary["share_error"]
    assert fair["most"] < 2 < 4 < drift["median"]


def test_an_order_without_shuffle_is_found(fleet: Any) -> None:
    shuffled, ordered = outcome(fleet("lists"), "shuffle", 1), outcome(fleet("InOrder"), "shuffle", 1)
    assert shuffled.middle("chi2") < 1.5 < 100 < ordered.middle("chi2")
    assert ordered.middle("neighbours") > 0.99 > 0.1 > shuffled.middle("neighbours")


def test_wrong_answers_about_the_past_are_found(fleet: Any) -> None:
    right, wrong = outcome(fleet("lists"), "audit", 3), outcome(fleet("WrongPast"), "audit", 3)
    assert (right.exact, right.middle("which"), right.middle("when")) == (3, 1, 1)
    assert wrong.exact == 0
    assert wrong.summary["which"]["most"] < 1 > wrong.summary["when"]["most"]


@pytest.mark.parametrize(("fault", "message"), [("Raises", "expected a state of version 2"), ("Hangs", "in time")])
def test_a_loader_that_fails_to_restore_is_reported(fleet: Any, fault: str, message: str) -> None:
    found = outcome(fleet(fault, timeout_s=3.0), "resume", 2)
    assert (found.failed, found.exact, len(found.failures)) == (2, 0, 2)
    assert all("part 2" in text and message in text for text in found.failures)
    assert cell(found) == "2 of 2 failed"


def test_what_is_not_claimed_is_not_measured(fleet: Any) -> None:
    for check in set(CHECKS) - {"shuffle"}:
        assert cell(outcome(fleet("ClaimsLittle"), check)) == "not claimed"
