"""States of every order version go on with the batches they would have had, or are refused by their order version."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from golden import states

import energon_grain
from energon_grain import StateError
from energon_grain.stream.cursor import ORDER_VERSION

RECORDED = {version: states.of_version(version) for version in range(1, ORDER_VERSION + 1)}
CHANGED = {
    1: {"hooks, generator", "hooks, packing", "node, map", "node, pack", "node, packs and groups blended"},
    2: set[str](),
}
"""The kinds whose order changed behind each order version."""


def older(state: dict[str, Any]) -> dict[str, Any]:
    """The state as revisions wrote it that had this order, and no order version in states."""
    said = {name: value for name, value in state.items() if name not in ("order_version", "check")}
    text = json.dumps(said, sort_keys=True, separators=(",", ":"))
    return {**said, "check": hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}


@pytest.mark.parametrize(
    ("version", "kind"), [(version, kind) for version, kinds in RECORDED.items() for kind in kinds]
)
def test_a_state_goes_on_or_is_refused(version: int, kind: str) -> None:
    recorded = RECORDED[version][kind]
    if kind in CHANGED[version]:
        message = rf"order_version is {version}: it was saved by .* revision .*changed with order version {version + 1}"
        with pytest.raises(StateError, match=message):
            states.then(energon_grain, kind, recorded["state"])
    else:
        assert states.then(energon_grain, kind, recorded["state"]) == recorded["then"]


@pytest.mark.parametrize("kind", ["hooks, packing", "hooks, generator", "leaf, blocks"])
def test_a_state_with_a_checksum_and_no_order_version_is_of_version_2(kind: str) -> None:
    recorded = RECORDED[2][kind]
    assert states.then(energon_grain, kind, older(recorded["state"])) == recorded["then"]


def test_packs_of_another_order_go_on_at_the_same_position_where_that_is_allowed() -> None:
    recorded = RECORDED[1]["node, pack"]
    found = states.then(energon_grain, "node, pack", recorded["state"], allow_changes=True)
    assert found["first"] != recorded["then"]["first"]


def test_a_later_order_version_is_refused() -> None:
    state = RECORDED[ORDER_VERSION]["leaf, blocks"]["state"]
    later = {**older(state), "order_version": ORDER_VERSION + 1}
    del later["check"]
    with pytest.raises(StateError, match=f"'order_version' is {ORDER_VERSION + 1}: it was saved by a later revision"):
        states.then(energon_grain, "leaf, blocks", later)


def test_every_kind_is_recorded_in_the_present_order_version() -> None:
    assert tuple(RECORDED[ORDER_VERSION]) == states.KINDS
    assert all(each["state"]["order_version"] == ORDER_VERSION for each in RECORDED[ORDER_VERSION].values())
