"""`weight_unit`: blends whose weights are shares of a column, through the public doors."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from energon_grain import (
    BlendDataset,
    ConfigError,
    EpochizeDataset,
    FilterDataset,
    FingerprintError,
    IterMapDataset,
    PackingDataset,
    StateError,
    Stream,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
    merge_cursors,
    open_columns,
)
from energon_grain.planning import cost_blend
from energon_grain.prepare import prepare_dataset
from energon_grain.samplers.fold import unflat
from energon_grain.stream.cursor import checksum
from energon_grain.stream.state import pack_integers, unpack_integers
from energon_grain.testing import write_tars

FILE = """
__module__: megatron.energon
__class__: MetadatasetV2
splits:
  train:
    blend:
      - {path: long, weight: 1}
      - {path: short, weight: 2}
      - weight: 1
        blend: [{path: short, weight: 1, name: other}, {path: mixed, weight: 1}]
    weight_unit: bytes.txt
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts of 90 to 99, 1 to 9, and 1 to 99 bytes, whose keys say which; and a metadataset of them."""
    folder = tmp_path_factory.mktemp("costs")
    random = np.random.default_rng(3)
    for name, low, high in (("long", 90, 99), ("short", 1, 9), ("mixed", 1, 99)):
        lengths = random.integers(low, high + 1, 300).tolist()
        samples = [{"__key__": f"{name}{number:03}", "txt": b"x" * size} for number, size in enumerate(lengths)]
        write_tars(folder / name, samples, shards=3)
        prepare_dataset(folder / name, split_ratio={"train": 1}, sample_type="TextSample", field_map={"text": "txt"})
    (folder / "mix.yaml").write_text(FILE)
    return folder


def train(path: Path, *, hosts: int = 1, host: int = 0, workers: int = 0, **options: Any) -> Any:
    config = WorkerConfig(rank=host, world_size=hosts, num_workers=workers)
    arguments = {"batch_size": 48 // hosts, "shuffle_buffer_size": None, "max_samples_per_sequence": None}
    return get_train_dataset(path, worker_config=config, **{**arguments, **options})


def keys(dataset: Any, steps: int, state: Any = None, skip: int = 0) -> list[list[str]]:
    with get_savable_loader(dataset) as loader:
        if state is not None:
            loader.restore_state_global(state)
        loader.skip(skip)
        return [list(next(loader).__key__) for _ in range(steps)]


def test_shares_are_of_the_column(folder: Path) -> None:
    texts = {name: open_columns(folder / name)["bytes.txt"] for name in ("long", "short", "mixed")}
    paid: Counter[str] = Counter()
    for batch in keys(train(folder / "mix.yaml"), 200):
        for key in batch:
            paid[key[:-3]] += int(texts[key[:-3]][int(key[-3:])])
    total = sum(paid.values())
    nested = paid["mixed"] / (total / 4)
    assert abs(paid["long"] - total / 4) <= 99
    assert 0.8 < nested < 1  # half of its blend's samples, and nearly all of its bytes
    stats = Counter(key[:-3] for batch in keys(train(folder / "mix.yaml"), 20) for key in batch)
    assert stats["short"] > 8 * stats["long"]


def test_shares_of_very_large_costs_are_exact(folder: Path) -> None:
    parts = [(train(folder / name, batch_size=None), weight) for name, weight in (("long", 1), ("mixed", 2))]
    texts = {name: open_columns(folder / name)["bytes.txt"] for name in ("long", "mixed")}
    with get_savable_loader(BlendDataset(*parts, weight_unit="bytes.txt * 2 ** 35")) as loader:
        drawn = [next(loader).__key__ for _ in range(9000)]
        state = loader.save_state_global()
        expected = next(loader).__key__
    paid = {name: sum(int(texts[name][int(key[-3:])]) for key in drawn if name in key) for name in texts}
    assert abs(2 * paid["long"] - paid["mixed"]) <= 3 * 99
    with get_savable_loader(BlendDataset(*parts, weight_unit="bytes.txt * 2 ** 35")) as loader:
        loader.restore_state_global(state)
        assert next(loader).__key__ == expected


def test_a_state_goes_on_on_other_hosts_and_folds_nothing_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("energon_grain.planning.cost_blend._WINDOW", 100)
    monkeypatch.setattr("energon_grain.planning.cost_blend._OF_A_CHILD", 1)
    expected = keys(train(folder / "mix.yaml"), 60)
    with get_savable_loader(train(folder / "mix.yaml")) as loader:
        for _ in range(50):
            next(loader)
        state = json.loads(json.dumps(loader.save_state_global()))
        small = len(json.dumps(loader.get_state()))
    assert small < 1024
    from energon_grain.planning.cost_blend import CostBlend

    begun: list[int] = []
    advance = CostBlend._advance

    def counted(self: CostBlend, carry: tuple[int, ...]) -> Any:
        begun.append(carry[0])
        return advance(self, carry)

    monkeypatch.setattr(CostBlend, "_advance", counted)
    assert keys(train(folder / "mix.yaml"), 10, state) == expected[50:]
    assert min(begun) > 1500
    parts = [keys(train(folder / "mix.yaml", hosts=3, host=host, workers=2), 10, state) for host in range(3)]
    assert [sorted(sum((part[step] for part in parts), [])) for step in range(10)] == [
        sorted(batch) for batch in expected[50:]
    ]
    assert keys(train(folder / "mix.yaml"), 5, skip=55) == expected[55:]
    with get_savable_loader(train(folder / "mix.yaml")) as loader:
        loader.restore_state_global(state)
        assert loader.get_state()["plans"] == state["plans"]
        assert sorted(each.key for each in loader.which(55)) == sorted(expected[55])


def test_merged_states_go_on_from_the_lane_that_is_furthest_behind(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cost_blend, "_WINDOW", 16)
    monkeypatch.setattr(cost_blend, "_OF_A_CHILD", 1)

    def streams(hosts: int) -> list[Stream]:
        below = [train(folder / "mix.yaml", hosts=hosts, host=host, batch_size=None, lanes=12) for host in range(hosts)]
        return [Stream.of(FilterDataset(each, lambda sample: int(sample.__key__[-3:]) % 5 > 2)) for each in below]

    three, [one] = streams(3), streams(1)
    keys = [[next(stream).__key__ for stream in three] for _ in range(300)]
    assert sum(keys, []) == [next(one).__key__ for _ in range(900)]
    cursors = [stream.cursor() for stream in three]
    firsts = [unflat(unpack_integers(cursor["plans"]))[0][0] for cursor in cursors]
    assert min(firsts) > 900  # what was dropped is behind all lanes, too
    assert len(set(firsts)) > 1
    merged = merge_cursors(cursors)
    assert unflat(unpack_integers(merged["plans"]))[0][0] == min(firsts)
    first, *others = cursors
    changed = {**first, "plans": max(others, key=lambda cursor: firsts[cursor["host"][0]])["plans"]}
    changed["check"] = checksum(changed)
    assert unflat(unpack_integers(merge_cursors([changed, *others])["plans"]))[0][0] == min(firsts[1:])
    for damaged in ("", pack_integers([9, 1]), "no base64"):
        unchecked = {name: value for name, value in first.items() if name != "check"} | {"plans": damaged}
        with pytest.raises(StateError, match="'plans' are damaged"):
            merge_cursors([unchecked, *others])
    begun: list[int] = []
    advance = cost_blend.CostBlend._advance
    monkeypatch.setattr(
        cost_blend.CostBlend, "_advance", lambda self, carry: begun.append(carry[0]) or advance(self, carry)
    )
    [again] = streams(1)
    begun.clear()
    again.restore(merged)
    assert [next(again).__key__ for _ in range(20)] == [next(one).__key__ for _ in range(20)]
    assert min(begun) >= min(firsts)
    for stream in (*three, one, again):
        stream.close()


def test_epochs_in_lanes_go_on_from_the_plan_of_their_own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost_blend, "_WINDOW", 16)
    monkeypatch.setattr(cost_blend, "_OF_A_CHILD", 1)
    epochs = EpochizeDataset(train(folder / "mix.yaml", batch_size=None, lanes=12), 200)
    with Stream.of(IterMapDataset(epochs, iter, inputs_per_call=3)) as stream:
        for number in range(1, 4):
            for _ in stream:
                pass
            first = unflat(unpack_integers(stream.cursor()["plans"]))[0][0]
            assert 200 * (number - 1) < first <= 200 * number
            assert first > 200 * number - 100


def test_what_lies_above_may_pack(folder: Path) -> None:
    def packed(hosts: int = 1, host: int = 0) -> Any:
        blend = train(folder / "mix.yaml", hosts=hosts, host=host, batch_size=None)
        return PackingDataset(blend, 20, pairs, "+".join, sample_encoder=lambda sample: sample.__key__)

    with get_savable_loader(packed()) as loader:
        made = [next(loader) for _ in range(300)]
        state = loader.save_state_global()
        expected = [next(loader) for _ in range(96)]
    assert len(set(made)) > 250
    assert state["plans"]
    found: list[Any] = [None] * 96
    for host in range(2):
        with get_savable_loader(packed(2, host)) as loader:
            loader.restore_state_global(state)
            found[host::2] = [next(loader) for _ in range(48)]
    assert found == expected


def pairs(samples: list[Any]) -> list[list[Any]]:
    return [samples[at : at + 2] for at in range(0, len(samples), 2)]


def test_what_cannot_be_blended_by_cost(folder: Path) -> None:
    leaf = train(folder / "long", batch_size=None)
    with pytest.raises(ConfigError, match=r"filters, groups, batches or packs.*`where`"):
        len(BlendDataset(FilterDataset(leaf, lambda sample: True), leaf, weight_unit="bytes"))
    with pytest.raises(ConfigError, match="a step from one dataset cannot have exact shares by cost"):
        BlendDataset(leaf, leaf, weight_unit="bytes", per_step=True)
    with pytest.raises(ConfigError, match="weight_unit"):
        BlendDataset(leaf, leaf, weight_unit="bytes +")
    with pytest.raises(Exception, match="energon-grain measure"):
        len(BlendDataset(leaf, leaf, weight_unit="tokens"))
    with pytest.raises(ConfigError, match=r"long.*-9\d.*from 0 to 2\*\*42"):
        len(BlendDataset(leaf, leaf, weight_unit="0 - bytes.txt"))


def test_another_unit_is_another_stream_and_damaged_plans_are_refused(folder: Path) -> None:
    def by(unit: str) -> Any:
        parts = [(train(folder / name, batch_size=None), 1) for name in ("long", "short")]
        return get_savable_loader(BlendDataset(*parts, weight_unit=unit))

    with by("bytes.txt") as loader:
        next(loader)
        state = loader.save_state_global()
    with by("bytes") as loader, pytest.raises(FingerprintError, match=r"mixture\.unit: saved 'bytes.txt', now 'bytes'"):
        loader.restore_state_global(state)
    for plans in ("BwAAAAAAAA==", "AAAA", "AQEB"):
        with by("bytes.txt") as loader, pytest.raises(StateError, match="plans"):
            loader.restore_state_global(with_plans(state, plans))


def with_plans(state: dict[str, Any], plans: str) -> dict[str, Any]:
    """The state with other plans, changed on purpose."""
    return {name: value for name, value in {**state, "plans": plans}.items() if name != "check"}
