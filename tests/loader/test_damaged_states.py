"""Saved states that are damaged, or say what no state says: refused by name, or the same batches."""

from __future__ import annotations

import base64
import hashlib
import json
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from energon_grain import BlendDataset, StateError, TaskEncoder, TextSample, get_savable_loader
from energon_grain.loader import EnergonCheckpointHandler, EnergonCheckpointRestore, EnergonCheckpointSave

Train = Callable[..., Any]
BROKEN = frozenset({3, 11, 40})
HUGE = [1 << 31, 1 << 52, (1 << 53) - 1, 1 << 53, 1 << 62, 1 << 63, 1 << 64, 10**30]
BAD = [None, True, -1, 0, 1, 1.5, float("nan"), "", "x", "ä\0", [], [1], [[]], {}, {"a": [1]}, *HUGE]


class Packing(TaskEncoder):
    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        return [samples[at : at + 3] for at in range(0, len(samples), 3)]

    def pack_selected_samples(self, samples: list[Any]) -> Any:
        return TextSample.derive_from(samples[0], text=" ".join(sample.text for sample in samples))


class Several(TaskEncoder):
    def encode_sample(self, sample: Any) -> Iterator[Any]:
        for _ in range(int(sample.__key__) % 3):
            yield sample


KINDS = ["endless", "drops", "blend", "finite", "packing", "generator"]


def make(train: Train, kind: str) -> Any:
    if kind == "blend":
        parts = [train(n=29, lanes=8, seed=seed) for seed in (1, 2)]
        return get_savable_loader(BlendDataset((parts[0], 0.3), (parts[1], 0.7)))
    options: dict[str, Any] = {
        "endless": {},
        "drops": {"broken": BROKEN},
        "finite": {"repeat": False, "batch_size": 5, "lanes": 8},
        "packing": {"task_encoder": Packing(), "packing_buffer_size": 7, "lanes": 4},
        "generator": {"task_encoder": Several(), "lanes": 4, "repeat": False},
    }[kind]
    return get_savable_loader(train(n=53, **options))


def ahead(loader: Any) -> list[Any]:
    return [(batch.__key__, batch.text) for batch in (next(loader) for _ in range(3))]


def with_checksum(state: dict[str, Any]) -> dict[str, Any]:
    said = {name: value for name, value in state.items() if name != "check"}
    text = json.dumps(said, sort_keys=True, separators=(",", ":"))
    return {**said, "check": hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}


@pytest.mark.parametrize("kind", KINDS)
def test_one_damaged_byte_is_found(train: Train, tmp_path: Path, kind: str) -> None:
    handler = EnergonCheckpointHandler()
    loader = make(train, kind)
    for _ in range(7):
        next(loader)
    saved = loader.get_state()
    handler.save(tmp_path, EnergonCheckpointSave(loader))
    expected = ahead(loader)
    file = tmp_path / "energon_grain.json"
    text = file.read_bytes()
    other = make(train, kind)
    start = other.get_state()
    chance = random.Random(kind)
    refused = 0
    for trial in range(500):
        at = chance.randrange(len(text))
        byte = bytes([chance.choice([chance.randrange(256), text[at] ^ 1 << chance.randrange(8), *b"0123456789"])])
        file.write_bytes(text[:at] + [byte, b"", byte + text[at : at + 1]][trial % 3] + text[at + 1 :])
        try:
            handler.restore(tmp_path, EnergonCheckpointRestore(other))
        except StateError as error:
            assert str(file) in str(error) or "saved" in str(error)  # noqa: PT017
            assert other.get_state() == start
            refused += 1
        else:
            assert other.get_state() == saved, (at, byte)
            if refused % 20 == 0:
                assert ahead(other) == expected
            other.set_state(start)
    assert refused > 300
    loader.close()
    other.close()


def unpacked(text: str) -> list[int]:
    values, value, shift = [], 0, 0
    for byte in base64.b64decode(text):
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            values.append(value)
            value = shift = 0
    return values


def packed(values: list[int]) -> str:
    data = bytearray()
    for value in values:
        while value >= 0x80:
            data.append(value & 0x7F | 0x80)
            value >>= 7
        data.append(value)
    return base64.b64encode(data).decode()


def changes(state: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Each field, and each entry of lists and of packed integers, set to values of every kind."""
    for name, value in state.items():
        for bad in BAD:
            yield name, bad
        if name in ("drops", "held") and value:
            values = unpacked(value)
            for at in range(min(len(values), 40)):
                for bad in (0, 1, 2, 3, 77, *HUGE[2:]):
                    yield name, packed([*values[:at], bad, *values[at + 1 :]])
            yield name, packed(values[:-1])
            yield name, packed([*values, 1])
            yield name, value[:-1]
            yield name, "AAAA" + value
        if isinstance(value, list):
            for at, entry in enumerate(value):
                rows = (
                    [[*entry[:i], bad, *entry[i + 1 :]] for i in range(len(entry)) for bad in BAD]
                    if isinstance(entry, list)
                    else BAD
                )
                for row in rows:
                    yield name, [*value[:at], row, *value[at + 1 :]]


@pytest.mark.parametrize("kind", KINDS)
def test_a_field_that_says_nonsense_is_named(train: Train, kind: str) -> None:
    loader = make(train, kind)
    for _ in range(7):
        next(loader)
    if kind != "packing":
        loader.skip(1)
    state = loader.save_state_rank()
    wrong: list[tuple[Any, ...]] = []
    for name, value in changes(state):
        changed = {**state, name: value}
        if name != "check":
            changed = with_checksum(changed)
        try:
            loader.set_state(changed)
        except StateError as error:
            if not re.search(rf"\b{name}\b", str(error)):
                wrong.append((name, value, error))
            continue
        except Exception as error:
            wrong.append((name, value, error))
            continue
        try:
            next(loader)
        except StateError:
            if name != "held":  # whether a generator has as many items, only running it tells
                wrong.append((name, value, "late"))
        except StopIteration:
            if name not in ("ended", "pass_step"):
                wrong.append((name, value, "ends"))
        except Exception as error:
            wrong.append((name, value, error))
    assert not wrong
    loader.close()


@pytest.mark.parametrize("kind", KINDS)
def test_states_of_older_releases_have_no_checksum_and_restore(train: Train, tmp_path: Path, kind: str) -> None:
    loader = make(train, kind)
    for _ in range(7):
        next(loader)
    EnergonCheckpointHandler().save(tmp_path, EnergonCheckpointSave(loader))
    file = tmp_path / "energon_grain.json"
    state = json.loads(file.read_text())
    assert state == with_checksum(state)
    del state["check"]
    file.write_text(json.dumps(state))
    expected = ahead(loader)
    other = EnergonCheckpointHandler().restore(tmp_path, EnergonCheckpointRestore(make(train, kind)))
    assert ahead(other) == expected


def entries(value: Any) -> Iterator[Any]:
    """A nested tuple with each of its entries, on any level, set to values of every kind."""
    yield from BAD
    if isinstance(value, tuple):
        for at, entry in enumerate(value):
            for changed in entries(entry):
                yield (*value[:at], changed, *value[at + 1 :])
        yield value[:-1]
        yield (*value, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_restore_keys_that_say_nonsense_are_refused(train: Train, kind: str) -> None:
    loader = make(train, kind)
    key = next(loader).__restore_key__[:6]  # the batch of its first sample alone
    wrong: list[tuple[Any, ...]] = []
    made = 0
    for changed in entries(key):
        try:
            loader.restore_sample(changed)
            made += 1
        except StateError:
            pass
        except Exception as error:
            wrong.append((changed, error))
    assert not wrong
    assert made
    deep: Any = key
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(StateError, match="not a restore key"):
        loader.restore_sample(deep)
    assert loader.get_state()["step"] == 1


@pytest.mark.parametrize("place", ["missing", "file", "folder at the place of the file", "deep"])
def test_a_place_without_a_state_is_named(train: Train, tmp_path: Path, place: str) -> None:
    folder, file = tmp_path / "state", tmp_path / "state" / "energon_grain.json"
    named = folder
    if place == "file":
        folder.write_text("{}")
    elif place != "missing":
        folder.mkdir()
        named = file
        if place == "deep":
            file.write_text("[" * 100_000)
        else:
            file.mkdir()
    with pytest.raises(StateError, match=re.escape(str(named))):
        EnergonCheckpointHandler().restore(folder, EnergonCheckpointRestore(make(train, "endless")))
