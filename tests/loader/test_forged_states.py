"""States that were changed on purpose and have no checksum: restored as written, or refused, in bounded time."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from metadatasets import write_v2
from planned_data import CAPACITY, make_tokens
from stream_hosts import Tolerant, config, train_on

from energon_grain import (
    CostBudget,
    DefaultTaskEncoder,
    PackingPlan,
    StateError,
    TextSample,
    get_savable_loader,
    get_val_dataset,
)
from energon_grain.stream.state import pack_integers, unpack_integers

STEPS, MUTATIONS = 7, 60
CPU_S = 1.0
"""A restore with its first batch takes a few milliseconds of this."""
FAR = 1 << 31


class Joined(DefaultTaskEncoder):
    """A pack is a text of its samples."""

    def pack_selected_samples(self, samples: list[Any]) -> TextSample:
        return TextSample.derive_from(samples[0], text=" ".join(sample.__key__ for sample in samples))


class Chosen(Joined):
    """Packs of three."""

    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        return [samples[at : at + 3] for at in range(0, len(samples), 3)]


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tokens(tmp_path_factory.mktemp("tokens") / "data")


@pytest.fixture(scope="module")
def by_tokens(tokens: Path) -> Path:
    """A blend by tokens."""
    blend = "blend: [{path: data, weight: 1}, {path: data, name: b, weight: 3}]"
    return write_v2(tokens.parent, train=f"{{{blend}, weight_unit: tokens}}")


def plan(**options: Any) -> PackingPlan:
    return PackingPlan("tokens", CAPACITY, window=64, **options)


KINDS: dict[str, Callable[[Path, Path], Any]] = {
    "plain": lambda tokens, _: train_on(tokens, batch_size=4, worker_config=config(), task_encoder=Tolerant()),
    "planned packs": lambda tokens, _: train_on(
        tokens, batch_size=4, worker_config=config(), packing=plan(), task_encoder=Joined()
    ),
    "planned packs of a pass": lambda tokens, _: get_val_dataset(
        tokens, batch_size=4, worker_config=config(), packing=plan(), task_encoder=Joined()
    ),
    "budget": lambda tokens, _: train_on(
        tokens, batch_size=CostBudget("tokens", 4 * CAPACITY, window=64), worker_config=config()
    ),
    "blend by tokens": lambda _, by_tokens: train_on(by_tokens, batch_size=4, worker_config=config()),
    "packs of a blend by tokens": lambda _, by_tokens: train_on(
        by_tokens, batch_size=4, lanes=4, worker_config=config(), packing_buffer_size=9, task_encoder=Chosen()
    ),
}


def numbers(chance: random.Random, value: int) -> int:
    """Another number in place of one."""
    return chance.choice([0, value + 1, max(0, value - 1), value * 2 + 3, FAR, 1 << 40, 1 << 52, chance.randrange(99)])


def changed(chance: random.Random, value: Any) -> Any:
    """A value with one number in it replaced."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return numbers(chance, value)
    if isinstance(value, list):
        if not value:
            return [[chance.randrange(9)] * 2]
        at = chance.randrange(len(value))
        return [*value[:at], changed(chance, value[at]), *value[at + 1 :]]
    packed = unpack_integers(value)
    if not packed:
        return pack_integers([chance.randrange(9) for _ in range(24)])
    for _ in range(chance.choice([1, 1, 2])):
        at = chance.randrange(len(packed))
        packed[at] = numbers(chance, packed[at])
    return pack_integers(packed)


def mutations(state: dict[str, Any], seed: str) -> Iterator[dict[str, Any]]:
    """States with one or two fields changed, and no checksum."""
    chance = random.Random(seed)
    kept = {"check", "fingerprint", "version", "order_version", "lanes", "host", "manifest"}
    names = [name for name in state if name not in kept]
    plain = {name: value for name, value in state.items() if name != "check"}
    for _ in range(MUTATIONS):
        chosen = chance.sample(names, chance.choice([1, 1, 2]))
        yield {**plain, **{name: changed(chance, plain[name]) for name in chosen}}


@pytest.fixture
def of_kind(request: pytest.FixtureRequest, tokens: Path, by_tokens: Path) -> Iterator[tuple[Any, dict[str, Any]]]:
    """A loader, and the state behind some steps."""
    with get_savable_loader(KINDS[request.param](tokens, by_tokens)) as loader:
        for _ in range(STEPS):
            next(loader)
        yield loader, loader.get_state()


@pytest.mark.parametrize("of_kind", KINDS, indirect=True)
def test_a_changed_state_is_restored_as_written_or_refused(
    of_kind: tuple[Any, dict[str, Any]], request: pytest.FixtureRequest
) -> None:
    loader, state = of_kind
    slow: list[Any] = []
    refused = 0
    for mutated in mutations(state, request.node.name):
        began = time.process_time()
        try:
            loader.set_state(mutated)
            found = loader.get_state()
            assert [found[n] for n in ("step", "pass", "pass_step", "item", "skipped")] == [
                mutated[n] for n in ("step", "pass", "pass_step", "item", "skipped")
            ]
            next(loader, None)
        except StateError:
            refused += 1
        if (took := time.process_time() - began) > CPU_S:
            slow.append((took, mutated))
    assert not slow
    assert refused > MUTATIONS // 3
    loader.set_state(state)
    assert loader.get_state() == state


@pytest.mark.parametrize("of_kind", KINDS, indirect=True)
def test_an_item_far_ahead_is_refused(of_kind: tuple[Any, dict[str, Any]]) -> None:
    loader, state = of_kind
    del state["check"]
    with pytest.raises(StateError, match=rf"'item' is {FAR}, but 'step' 7 and 'history' lead to item "):
        loader.set_state({**state, "item": FAR})
    far = {**state, "item": FAR * state["history"][0][4], "step": FAR, "pass_step": FAR}
    if "plans" in state:
        without = {name: value for name, value in far.items() if name != "plans"}
        for forged in (without, *([] if state["held"] else [far])):  # with lanes, plans are of their places
            with pytest.raises(StateError, match=r"'(plans|item)'"):
                loader.set_state(forged)
