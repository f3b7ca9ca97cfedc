"""A memory budget: what a process tree holds stays within it, and batches do not change.

Programs run as processes of their own; the PSS of their trees is sampled from outside.
"""

from __future__ import annotations

import math
import os
import re
import signal
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import memory_program
import numpy as np
import pytest

from energon_grain import StreamMemory, use_memory
from energon_grain.errors import ConfigError
from energon_grain.formats.mapped_files import map_file, mapped_bytes, release_mapped
from energon_grain.memory_budget.budget import join_budget
from energon_grain.memory_budget.measure import descendants, measure
from energon_grain.memory_budget.settings import bytes_of
from energon_grain.memory_budget.shares import divide
from energon_grain.stream.memory import holders, look_ahead
from energon_grain.testing import make_text_dataset

MIB = 1 << 20
STEPS = 12
BUDGETS = {"thread": 350 * MIB, "process": 450 * MIB}
WITHIN = 1.05


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_text_dataset(tmp_path_factory.mktemp("data") / "texts", n=4000, shards=4)


@pytest.fixture(scope="module")
def unlimited(texts: Path) -> dict[str, Any]:
    """The output of the program without a budget."""
    found, most = memory_program.run(texts, 2, "thread", STEPS, "none")
    assert found["held"] is None
    assert most > 1.2 * BUDGETS["thread"], "otherwise a budget limits nothing"
    return found


@pytest.fixture(autouse=True)
def no_budget(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("LOCAL_WORLD_SIZE", "ENERGON_GRAIN_MEMORY", "ENERGON_GRAIN_MEMORY_LEDGER"):
        monkeypatch.delenv(name, raising=False)
    yield
    use_memory(None)


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
    needed = int(named[1])
    again, most = memory_program.run(texts, 2, "process", STEPS, f"{needed}MiB", SAMPLE_BYTES="20000")
    assert "digest" in again, again
    assert most < WITHIN * needed * MIB


def test_the_environment_sets_the_budget(texts: Path) -> None:
    found, most = memory_program.run(texts, 2, "thread", STEPS, "none", ENERGON_GRAIN_MEMORY="350MiB")
    assert found["budget"] == 350 * MIB
    assert most < WITHIN * 350 * MIB


def test_a_forked_process_shares_the_budget() -> None:
    use_memory("1GiB")
    before = join_budget()
    assert before is not None
    with os.fdopen(os.dup(2), "wb"):
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            joined = join_budget()
            os.write(writer, b"%d" % (0 if joined is None else len(joined.ledger.alive())))
            os._exit(0)
        assert os.read(reader, 10) == b"2"
        os.waitpid(child, 0)
    assert len(before.ledger.alive()) == 1, "an ended process has no row"


def test_a_second_budget_replaces_the_first_and_none_lifts_it() -> None:
    use_memory("1GiB")
    first = join_budget()
    use_memory("2GiB")
    assert join_budget() is first
    assert first is not None
    assert first.use().budget_bytes == 2 << 30
    use_memory(None)
    assert join_budget() is None
    assert look_ahead.budget is None


class Cache:
    """A holder that takes what it is allowed."""

    holder = "caches"

    def __init__(self) -> None:
        self.data: list[bytearray] = []
        self.allowed = 0

    def held_bytes(self) -> int:
        return sum(map(len, self.data))

    def allow(self, size_bytes: int) -> None:
        self.allowed = size_bytes
        while self.held_bytes() > size_bytes:
            self.data.pop()


def test_a_holder_is_asked_to_give_back_what_the_program_takes() -> None:
    cache = Cache()
    holders.add(cache)
    used = measure().total
    use_memory(used + 200 * MIB)
    budget = join_budget()
    assert budget is not None
    for _ in range(40):
        budget.update()
        while cache.held_bytes() + 4 * MIB < cache.allowed:
            cache.data.append(bytearray(os.urandom(4096)) * 1024)
    held = cache.held_bytes()
    assert held > 80 * MIB, "the cache gets the rest"
    own = bytearray(os.urandom(4096)) * 256 * 120  # the program itself takes 120 MiB
    for _ in range(10):
        budget.update()
    assert cache.held_bytes() < held - 40 * MIB
    assert measure().total < WITHIN * budget.ledger.budget_bytes
    use = budget.use()
    assert {each.name: each.held_bytes for each in use.holders}["caches"] == cache.held_bytes()
    assert use.used_bytes == pytest.approx(sum(each.held_bytes for each in use.holders), rel=0.02)
    del own


def test_pages_of_mapped_files_are_given_back(tmp_path: Path) -> None:
    path = tmp_path / "index"
    path.write_bytes(os.urandom(4096) * (32 * MIB // 4096))
    with open(path, "rb") as file:
        mapping = map_file(file.fileno())
    assert mapped_bytes() >= 32 * MIB
    total = int(np.frombuffer(mapping, np.uint8).sum(dtype=np.int64))
    touched = measure().files
    release_mapped()
    assert measure().files < touched - 30 * MIB
    assert int(np.frombuffer(mapping, np.uint8).sum(dtype=np.int64)) == total


def test_processes_below_are_found() -> None:
    child = os.fork()
    if not child:
        signal.pause()
        os._exit(0)
    try:
        assert child in descendants(os.getpid())
        assert measure(child).total > 0
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert child not in descendants(os.getpid())
    assert measure(child).total == 0


def _cgroup(limit_bytes: int) -> tuple[Path, Callable[[], None]] | None:
    """A new memory cgroup, and a function that puts the calling process in it; None: this system allows none."""
    for root, limit in (
        (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
        (Path("/sys/fs/cgroup"), "memory.max"),
    ):
        group = root / f"energon-grain-{uuid.uuid4().hex}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / limit).write_text(str(limit_bytes))
        except OSError:
            group.rmdir()
            continue
        return group, lambda group=group: (group / "cgroup.procs").write_text(str(os.getpid())) and None
    return None


def test_in_a_cgroup_of_that_size_nothing_is_killed(texts: Path) -> None:
    budget = BUDGETS["process"]
    found = _cgroup(math.ceil(WITHIN * budget))
    if found is None:
        pytest.skip("this system allows no new memory cgroups")
    group, enter = found
    try:
        output, _ = memory_program.run(texts, 2, "process", STEPS, budget, before=enter)
        assert "digest" in output
    finally:
        group.rmdir()
