"""A memory budget: what a process tree holds stays within it, and batches do not change.

Programs run as processes of their own; the PSS of their trees is sampled from outside.
"""

from __future__ import annotations

import math
import os
import re
import subprocess
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

import memory_checks
import memory_program
import numpy as np
import pytest
from patience import PATIENCE_S

from energon_grain import StreamMemory
from energon_grain.errors import ConfigError
from energon_grain.memory_budget.measure import descendants, measure
from energon_grain.memory_budget.settings import bytes_of
from energon_grain.memory_budget.shares import divide
from energon_grain.testing import make_text_dataset

MIB = 1 << 20
STEPS = 12
BUDGETS = {"thread": 440 * MIB, "process": 560 * MIB}
"""Threads need 340 to 420 MiB, by how many other processes share their libraries, and hold 840 MiB without."""
WITHIN = 1.05


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_text_dataset(tmp_path_factory.mktemp("data") / "texts", n=4000, shards=4)


@pytest.fixture(scope="module")
def unlimited(texts: Path) -> dict[str, Any]:
    """The output of the program without a budget."""
    found, most = memory_program.run(texts, 2, "thread", STEPS, "none")
    assert found["held"] is None
    assert most > WITHIN * BUDGETS["thread"], "otherwise a budget limits nothing"
    return found


@pytest.mark.parametrize(
    ("size", "found"),
    [("4GiB", 4 << 30), ("1.5 GB", 1_500_000_000), ("500mb", 500_000_000), ("64KiB", 65536), (123, 123), ("7", 7)],
)
def test_sizes(size: str | int, found: int) -> None:
    assert bytes_of(size) == found


@pytest.mark.parametrize("size", ["", "4 gigs", "4G", "-1GiB", "0", 0, -5, True, 1.5, None])
def test_a_wrong_size_is_an_error_with_examples(size: object) -> None:
    with pytest.raises(ConfigError, match="expected a size, such as '4GiB'"):
        StreamMemory(size)  # type: ignore[arg-type]


def test_processes_of_a_host_share_it_equally(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert StreamMemory("8GiB").own_bytes == 8 << 30
    assert StreamMemory("8GiB", processes=4).own_bytes == 2 << 30
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert StreamMemory("8GiB").own_bytes == 1 << 30
    with pytest.raises(ConfigError, match="expected 1 or more"):
        StreamMemory("8GiB", processes=0)


def test_division_grants_small_requests_and_gives_nothing_that_is_not_there() -> None:
    random = np.random.default_rng(0)
    for _ in range(200):
        asked = random.integers(0, 1000, random.integers(1, 8)).tolist()
        free = int(random.integers(0, 4000))
        shares = divide(free, asked)
        assert free - len(asked) < sum(shares) <= free
        cut = [share for share, wanted in zip(shares, asked, strict=True) if share < wanted]
        assert all(share <= max(shares) for share in cut)
        assert not cut or min(cut) >= max(shares) - len(asked)  # all that are cut have the same
    assert divide(-5, [10, 20]) == [0, 0]


@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_the_tree_stays_within_the_budget_and_batches_are_the_same(
    texts: Path, worker_type: str, unlimited: dict[str, Any]
) -> None:
    budget = BUDGETS[worker_type]
    found, most = memory_program.run(texts, 2, worker_type, STEPS, budget)
    assert found["digest"] == unlimited["digest"]
    assert most < WITHIN * budget
    assert found["processes"] == (1 if worker_type == "thread" else 3)
    if worker_type == "thread":
        assert sum(found["held"].values()) == pytest.approx(found["used"], rel=0.1)


def test_below_the_minimum_an_error_names_the_number_that_suffices(texts: Path) -> None:
    found, _ = memory_program.run(texts, 2, "process", STEPS, "20MiB", SAMPLE_BYTES="20000")
    named = re.search(r"at least '(\d+)MiB' are needed", found["error"])
    assert named, found
    found, most = memory_program.run(texts, 2, "process", STEPS, f"{named[1]}MiB", SAMPLE_BYTES="20000")
    assert "digest" in found, found
    assert most < WITHIN * int(named[1]) * MIB


def test_the_error_of_a_rank_names_the_budget_of_its_host(texts: Path) -> None:
    ranks = {"SAMPLE_BYTES": "20000", "LOCAL_WORLD_SIZE": "4"}
    found, _ = memory_program.run(texts, 2, "thread", STEPS, "40MiB", **ranks)
    named = re.search(r"memory='40MiB': at least '(\d+)MiB' are needed \('(\d+)MiB' for each of 4 ", found["error"])
    assert named, found
    assert 0 <= 4 * int(named[2]) - int(named[1]) < 4  # both are rounded up
    found, _ = memory_program.run(texts, 2, "thread", STEPS, f"{named[1]}MiB", **ranks)
    assert "digest" in found, found


def test_the_environment_sets_the_budget(texts: Path) -> None:
    budget = BUDGETS["thread"]
    found, most = memory_program.run(texts, 2, "thread", STEPS, "none", ENERGON_GRAIN_MEMORY=str(budget))
    assert found["budget"] == budget
    assert most < WITHIN * budget


def test_a_forked_process_shares_the_budget() -> None:
    found = memory_checks.found("forked")
    assert found["in_child"] == 2
    assert found["after"] == 1, "an ended process has no row"


def test_a_second_budget_replaces_the_first_and_none_lifts_it() -> None:
    kept = [128 * MIB, 256 * MIB]  # a sixteenth of the budget, and the most that is ever kept
    assert memory_checks.found("replaced") == {"kept": kept, "same": True, "budget": 2 << 30, "lifted": True}


def test_a_holder_is_asked_to_give_back_what_the_program_takes() -> None:
    found = memory_checks.found("given_back")
    assert found["before"] > 80 * MIB, "the cache gets the rest"
    assert found["own"] == 120 * MIB
    assert found["after"] < found["before"] - 40 * MIB
    assert found["total"] < WITHIN * found["budget"]
    assert found["held"]["caches"] == found["after"]
    assert found["used"] == pytest.approx(sum(found["held"].values()), rel=0.02)


def test_pages_of_mapped_files_are_given_back(tmp_path: Path) -> None:
    found = memory_checks.found("mapped", tmp_path)
    assert found["mapped"] >= 64 * MIB
    touched, released, touched_again, released_again = found["pages"]
    for before, after in ((touched, released), (touched_again, released_again)):
        assert after < before - 32 * MIB  # other processes that share a library with this one change both
    assert len(set(found["sums"])) == 1


def test_processes_below_are_found() -> None:
    with subprocess.Popen(["sleep", "1000"]) as child:
        try:
            assert child.pid in descendants(os.getpid())
            assert measure(child.pid).total > 0
        finally:
            child.kill()
    assert child.pid not in descendants(os.getpid())
    assert measure(child.pid).total == 0


def _cgroup(limit_bytes: int) -> Path | None:
    """A new memory cgroup; None: this system allows none, or no process to enter it."""
    for root, limit in (
        (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
        (Path("/sys/fs/cgroup"), "memory.max"),
    ):
        group = root / f"energon-grain-{uuid.uuid4().hex}"
        try:
            group.mkdir()
        except OSError:
            continue
        with suppress(OSError):
            (group / limit).write_text(str(limit_bytes))
            entered = subprocess.run([*memory_program.ENTER, group / "cgroup.procs", "true"], capture_output=True)
            if not entered.returncode:
                return group
        _remove(group)
    return None


def _remove(group: Path) -> None:
    """Remove a cgroup. Processes that have just ended may still count."""
    until = time.monotonic() + PATIENCE_S
    while group.exists() and time.monotonic() < until:
        with suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.05)


@pytest.mark.skipif(os.environ.get("HYPOTHESIS_PROFILE") != "night", reason="needs a machine without other load")
def test_in_a_cgroup_of_that_size_nothing_is_killed(texts: Path) -> None:
    budget = BUDGETS["process"]
    group = _cgroup(math.ceil(WITHIN * budget))
    if group is None:
        pytest.skip("this system allows no new memory cgroups")
    try:
        output, _ = memory_program.run(texts, 2, "process", STEPS, budget, group=group)
        assert "digest" in output
    finally:
        _remove(group)
