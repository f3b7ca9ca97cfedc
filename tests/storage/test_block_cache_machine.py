"""The block cache against a model of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from cached_blocks import BLOCK, PLENTY, SIZE, content
from hypothesis import settings, strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from energon_grain.storage.block_cache import BlockCache
from energon_grain.storage.cached_object import CachedObject, Claim


class CacheMachine(RuleBasedStateMachine):
    """Two caches of one folder, as two processes have, against a dict of what was put."""

    claims = Bundle("claims")

    def __init__(self) -> None:
        super().__init__()
        self.known: set[tuple[str, int]] = set()
        self.held: dict[tuple[str, int], Claim] = {}
        self.data = {name: content(name) for name in "ab"}

        self.folder = self.make_folder()
        self.caches = [BlockCache(self.folder, limit_bytes=PLENTY, block_bytes=BLOCK) for _ in range(2)]

    make_folder: Callable[[], Path]

    def cached(self, who: int, name: str) -> CachedObject:
        return self.caches[who].open(name, b"1", SIZE)

    @rule(target=claims, who=st.integers(0, 1), name=st.sampled_from("ab"), blocks=st.sets(st.integers(0, 10)))
    def claim(self, who: int, name: str, blocks: set[int]) -> tuple[str, Claim]:
        claim = self.cached(who, name).claim(sorted(blocks))
        assert claim.blocks == [b for b in sorted(blocks) if (name, b) not in self.known and (name, b) not in self.held]
        self.held.update(dict.fromkeys([(name, block) for block in claim.blocks], claim))
        return name, claim

    @rule(held=claims, count=st.integers(1, 4))
    def put(self, held: tuple[str, Claim], count: int) -> None:
        name, claim = held
        left = [block for block in claim.blocks if self.held.get((name, block)) is claim]
        if not left:
            return
        first = left[0]
        run = [block for place, block in enumerate(left[:count]) if block == first + place]
        assert claim.put(first, self.data[name][first * BLOCK : (run[-1] + 1) * BLOCK])
        for block in run:
            del self.held[name, block]
            self.known.add((name, block))

    @rule(held=claims)
    def release(self, held: tuple[str, Claim]) -> None:
        held[1].release()
        self.held = {block: claim for block, claim in self.held.items() if claim is not held[1]}

    @rule(who=st.integers(0, 1))
    def close(self, who: int) -> None:
        self.caches[who].close()

    @rule(who=st.integers(0, 1))
    def restart(self, who: int) -> None:
        self.caches[who] = BlockCache(self.folder, limit_bytes=PLENTY, block_bytes=BLOCK)

    @rule(who=st.integers(0, 1), name=st.sampled_from("ab"), ends=st.tuples(st.integers(0, SIZE), st.integers(0, SIZE)))
    def read(self, who: int, name: str, ends: tuple[int, int]) -> None:
        start, stop = sorted(ends)
        whole = all((name, block) in self.known for block in range(start // BLOCK, -(-stop // BLOCK)))
        expected = self.data[name][start:stop] if whole or start == stop else None
        assert self.cached(who, name).read(start, stop) == expected

    @rule(who=st.integers(0, 1), name=st.sampled_from("ab"))
    def wait(self, who: int, name: str) -> None:
        free = self.cached(who, name).wait(range(11), timeout_seconds=0)
        assert free == (not any(held == name for held, _ in self.held))

    @invariant()
    def missing(self) -> None:
        for name in "ab":
            expected = [block for block in range(11) if (name, block) not in self.known]
            assert self.cached(0, name).missing(0, 11) == expected

    def teardown(self) -> None:
        for claim in self.held.values():
            claim.release()


def test_any_sequence_of_calls(tmp_path_factory: pytest.TempPathFactory) -> None:
    CacheMachine.make_folder = staticmethod(lambda: tmp_path_factory.mktemp("machine"))  # type: ignore[assignment]
    run_state_machine_as_test(CacheMachine, settings=settings(max_examples=60, stateful_step_count=30, deadline=None))
