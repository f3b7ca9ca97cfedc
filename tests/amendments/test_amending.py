"""Promises of amending: answers about old steps, states that stay small, other loaders, clear refusals."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from amended_runs import GLOBAL_BATCH, LANES, Packing, Plain, Run, Skipping

from energon_grain import (
    BatchDataset,
    BlendDataset,
    ConcatDataset,
    LimitDataset,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
    merge_cursors,
)
from energon_grain.errors import AmendmentError, ConfigError, FingerprintError, StateError
from energon_grain.samplers.blend import Blend


def restarted(run: Run, weights: dict[str, float], state: Any, **options: Any) -> Run:
    run.weights = weights
    run.start(state, **options)
    return run


def uses_of(loader: Any, step: int) -> list[tuple[str, int, int]]:
    return [(Path(each.dataset).name, int(each.key), each.epoch) for each in loader.which(step)]


@pytest.mark.parametrize("encoder", [Plain, Skipping, Packing])
def test_which_and_restore_sample_before_and_after(run: Run, encoder: type[Plain]) -> None:
    run.encoder = encoder
    run.start()
    run.step(6)
    restarted(run, {"a": 1, "b": 2, "c": 2}, run.state(), on_change="amend")
    run.step(4)
    run.amend(weights={"a": 0, "b": 1, "c": 1})
    run.step(5)
    loader = run.loaders[0]
    for step, delivered in enumerate(run.log):
        expected = [(name, key, epoch) for name, _, key, epoch in delivered]
        assert uses_of(loader, step) == expected
    again = restarted(run, run.weights, run.state()).loaders[0]
    assert uses_of(again, 7) == [(name, key, epoch) for name, _, key, epoch in run.log[7]]
    if encoder is Plain:
        assert again.restore_sample(("sample", 2, 0)).text[:2] == ("c", 0)


def test_skip_across_an_amendment(run: Run) -> None:
    run.start()
    run.step(2)
    state = run.state()
    restarted(run, {"a": 1, "b": 1}, state, on_change="amend")
    run.step(8)
    restarted(run, {"a": 1, "b": 1}, state, on_change="amend")
    run.loaders[0].skip(5)
    run.step(3)
    assert run.log[7:10] == run.log[10:]


@pytest.mark.parametrize(("workers", "kind"), [(2, "thread"), (2, "process")])
def test_workers_change_nothing(run: Run, workers: int, kind: str) -> None:
    def steps(workers: int, kind: str) -> list[Any]:
        dataset = get_train_dataset(
            run.data / "mixture.yaml",
            batch_size=GLOBAL_BATCH,
            shuffle_buffer_size=8,
            max_samples_per_sequence=4,
            lanes=LANES,
            task_encoder=Plain(),
            worker_config=WorkerConfig(0, 1, workers, worker_type=kind),
        )
        with get_savable_loader(dataset) as loader:
            loader.restore_state_rank(state, on_change="amend")
            found = [next(loader) for _ in range(6)]
            loader.amend(weights={"a": 1, "b": 0, "c": 5})
            return found + [next(loader) for _ in range(6)]

    run.start()
    run.step(3)
    state = run.state()
    restarted(run, {"a": 1, "b": 2, "c": 2}, state, on_change="amend")
    assert steps(workers, kind) == steps(0, "thread")


def test_the_state_stays_small(data: Path, tmp_path: Path) -> None:
    for number, name in enumerate("abcdeabcde"):
        (tmp_path / f"dataset_{number}").symlink_to(data / name)
    names = [f"dataset_{number}" for number in range(10)]
    run, rng = Run(tmp_path, Skipping, {name: 1 + number for number, name in enumerate(names)}), random.Random(0)
    run.start()
    for number in range(20):
        run.step(2)
        run.amend(weights={name: rng.randrange(1, 9) for name in names}, note=f"change {number}")
    state = run.loaders[0].get_state()
    assert len(json.dumps(state)) < 2048
    assert [each.note for each in run.loaders[0].amendments] == [f"change {number}" for number in range(20)]
    assert sum(run.loaders[0].amendments[3].after.values()) == pytest.approx(1)
    run.close()


def test_shares_follow_the_new_weights(run: Run) -> None:
    run.start()
    run.step(7)
    restarted(run, {"a": 1, "b": 2, "c": 5}, run.state(), on_change="amend")
    run.step(400)
    names = [name for step in run.log[7:] for name, *_ in step]
    for count in range(1, len(names), 97):
        for name, share in {"a": 1 / 8, "b": 2 / 8, "c": 5 / 8}.items():
            assert abs(names[:count].count(name) - share * count) <= 18


def test_a_state_without_amendments_has_no_field_for_them(run: Run) -> None:
    run.start()
    run.step(1)
    state = run.state()
    assert "amendments" not in state
    restarted(run, run.weights, state, on_change="amend")
    assert "amendments" not in run.state()


def test_the_loader_s_own_choice(run: Run) -> None:
    run.start()
    run.step(2)
    state = run.state()
    run.weights = {"a": 1, "b": 5}
    run.start()
    with pytest.raises(FingerprintError, match=r"on_change='amend'"):
        run.loaders[0].set_state(state)
    loader = get_savable_loader(
        get_train_dataset(
            run.data / "mixture.yaml",
            batch_size=GLOBAL_BATCH,
            shuffle_buffer_size=8,
            max_samples_per_sequence=4,
            lanes=LANES,
            task_encoder=Plain(),
            worker_config=WorkerConfig(0, 1, 0),
        ),
        on_change="amend",
    )
    loader.set_state(state)
    assert [each.item for each in loader.amendments] == [2 * GLOBAL_BATCH]
    with pytest.raises(ConfigError, match="expected 'refuse', 'amend' or 'position'"):
        loader.restore_state_rank(state, on_change="whatever")
    loader.close()


def test_hosts_that_amend_differently(run: Run) -> None:
    run.hosts = 2
    run.start()
    run.step(2)
    run.loaders[0].amend(weights={"a": 1, "b": 1})
    run.loaders[1].amend(weights={"a": 1, "b": 2})
    run.step(1)
    with pytest.raises(StateError, match="amended differently on some hosts"):
        merge_cursors([loader.save_state_rank() for loader in run.loaders])


def test_a_nested_blend(data: Path) -> None:
    def leaf(name: str) -> Any:
        return get_train_dataset(
            data / name, batch_size=None, shuffle_buffer_size=8, max_samples_per_sequence=4, lanes=LANES, repeat=False
        )

    def loader(inner: dict[str, int], outer: dict[str, int], weight: int) -> Any:
        nested = BlendDataset(*((leaf(name), share) for name, share in inner.items()))
        parts = [*((leaf(name), share) for name, share in outer.items()), (nested, weight)]
        return get_savable_loader(BatchDataset(BlendDataset(*parts), GLOBAL_BATCH, list))

    def uses(loader: Any, steps: range) -> list[Any]:
        return [use for step in steps for use in uses_of(loader, step)]

    first = loader({"b": 1, "c": 2}, {"a": 1}, 3)
    for _ in range(10):
        next(first)
    second = loader({"b": 3, "c": 1, "d": 1}, {"a": 2}, 3)
    second.restore_state_rank(first.save_state_rank(), on_change="amend")
    assert uses(second, range(10)) == uses(first, range(10))
    found = uses(second, range(400))
    assert len(set(found)) == len(found)
    for name in "abcd":
        own = [(key, epoch) for which, key, epoch in found if which == name]
        complete = max(epoch for _, epoch in own) - 2
        for epoch in range(complete):
            assert sum(each == epoch for _, each in own) == len({key for key, each in own if each == 0})
    third = loader({"b": 3, "c": 1, "d": 1}, {"a": 2, "e": 1}, 3)
    third.restore_state_rank(second.save_state_rank(), on_change="amend")
    assert uses(third, range(10)) == uses(first, range(10))
    for each in (first, second, third):
        each.close()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"shuffle_buffer_size": 500}, "window was"),
        ({"max_samples_per_sequence": 5}, "block was"),
        ({"shuffle_over_epochs_multiplier": 2}, "passes was"),
    ],
)
def test_what_changes_the_order_is_refused(run: Run, options: dict[str, Any], said: str) -> None:
    run.start()
    run.step(2)
    state = run.state()
    settings = {"shuffle_buffer_size": 8, "max_samples_per_sequence": 4, **options}
    dataset = get_train_dataset(
        run.data / "mixture.yaml",
        batch_size=GLOBAL_BATCH,
        lanes=LANES,
        task_encoder=Plain(),
        worker_config=WorkerConfig(0, 1, 0),
        **settings,
    )
    with get_savable_loader(dataset) as loader, pytest.raises(AmendmentError, match=said):
        loader.restore_state_rank(state, on_change="amend")


def test_what_has_no_blend_is_refused(data: Path) -> None:
    with get_savable_loader(
        get_train_dataset(data / "a", batch_size=4, shuffle_buffer_size=None, max_samples_per_sequence=None)
    ) as loader:
        next(loader)
        with pytest.raises(AmendmentError, match="it has no blend"):
            loader.amend(weights={"a": 1})


def test_wrong_arguments(run: Run) -> None:
    run.start()
    loader = run.loaders[0]
    for change, said in [
        ({"weights": {"a": 1}}, "weights has no entry for .*b"),
        ({"weights": {"a": 1, "b": 1, "z": 1}}, "there is no dataset 'z'; there are .*a.*b"),
        ({"weights": {"a": 0, "b": 0}}, "all weights are 0"),
        ({"weights": {"a": 3, "b": 1}}, "nothing changes"),
        ({"add": {"c": str(run.data / "c")}}, "give it a weight"),
        ({"weights": {"a": 1, "b": 1, "c": 1}, "add": {"c": {"pfad": "x"}}}, "expected path"),
        ({"remove": ["a", "b"]}, "all weights are 0"),
    ]:
        with pytest.raises(AmendmentError, match=said):
            loader.amend(**change)
    assert loader.amendments == []
    run.step(2)


def test_a_removed_dataset_that_packs_still_hold(run: Run) -> None:
    run.encoder = Packing
    run.start()
    run.step(3)
    state = run.state()
    with pytest.raises(StateError, match="was removed from the configuration"):
        restarted(run, {"a": 1}, state, on_change="amend")
        run.step(1)
    restarted(run, {"a": 3, "b": 1}, state)
    run.amend(remove=["b"])
    run.step(30)
    assert {name for name, *_ in run.log[-1]} == {"a"}
    restarted(run, {"a": 1}, run.state(), on_change="amend")
    run.step(5)


def test_segments_that_begin_at_a_round_of_each_lane() -> None:
    """Against counting, round by round."""
    rng, lanes = np.random.default_rng(0), 6
    schedule: list[tuple[Any, list[int]]] = [(0, [3, 1]), (40, [1, 1])]
    first = np.array([9, 4, 12, 7, 7, 30])  # before the second segment in some lanes
    schedule += [(first, [1, 0, 2]), (first + rng.integers(0, 9, lanes), [1, 4, 1, 2])]
    blend = Blend(schedule, lanes=lanes, key=5)
    child, below = blend.route(np.arange(200 * lanes))
    seen = np.zeros((4, lanes), np.int64)
    for position, (one, place) in enumerate(zip(child.tolist(), below.tolist(), strict=True)):
        lane = position % lanes
        assert place == seen[one, lane] * lanes + lane
        seen[one, lane] += 1
    assert np.array_equal(seen, blend.counts_at(np.full(lanes, 200)))
    assert not {2, 3} & set(child[: 4 * lanes].tolist())
    late = child[100 * lanes :]
    assert abs(np.mean(late == 1) - 0.5) < 0.02


def test_what_has_fixed_passes_is_refused(data: Path) -> None:
    parts = [
        get_train_dataset(data / name, batch_size=None, shuffle_buffer_size=8, max_samples_per_sequence=4, repeat=False)
        for name in "ab"
    ]
    limited = LimitDataset(LimitDataset(BlendDataset((parts[0], 1), (parts[1], 1)), 30), 20)
    for dataset, said in (
        (ConcatDataset(*parts), "a concatenation, whose passes have a fixed length"),
        (limited, "limited to a fixed part"),
    ):
        with (
            get_savable_loader(BatchDataset(dataset, 3, list)) as loader,
            pytest.raises(AmendmentError, match=said),
        ):
            loader.amend(weights={"a": 1, "b": 2})


def test_a_wider_selection_of_the_same_data_is_refused(run: Run) -> None:
    def loader(bounds: list[int]) -> Any:
        yaml, path = run.data / "mixture.yaml", f'"path": "{run.data / "b"}"'
        assert path in written
        yaml.write_text(written.replace(path, f'{path}, "subset": {{"range": {bounds}}}'))
        dataset = get_train_dataset(
            yaml,
            batch_size=GLOBAL_BATCH,
            shuffle_buffer_size=8,
            max_samples_per_sequence=4,
            lanes=LANES,
            task_encoder=Plain(),
            worker_config=WorkerConfig(0, 1, 0),
        )
        return get_savable_loader(dataset)

    run.start()
    written = (run.data / "mixture.yaml").read_text()
    with loader([0, 20]) as first, loader([0, 21]) as second:
        next(first)
        with pytest.raises(AmendmentError, match=r"b.*selects 1 samples that it did not select before"):
            second.restore_state_rank(first.save_state_rank(), on_change="amend")


def test_the_same_datasets_in_another_order(run: Run) -> None:
    run.start()
    run.step(4)
    state = run.state()
    run.step(6)
    restarted(run, {"b": 1, "a": 3}, state, on_change="amend")
    run.step(3)
    again = run.state()
    run.step(3)
    assert run.log[4:10] == run.log[10:16]
    restarted(run, {"b": 1, "a": 3}, again)
    run.step(3)
    assert run.log[16:] == run.log[7:10]


def test_a_dataset_that_comes_back_under_another_name(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    run.start()
    run.step(2)
    path = run.data / "c"
    run.loaders[0].amend(add={"fresh": {"path": str(path), "name": "fresh"}}, weights={"a": 1, "b": 1, "fresh": 1})
    state = run.state()
    run.weights = {"a": 1, "b": 1}
    run.start(state, on_change="amend")
    assert not caplog.messages
    run.weights = {"a": 1, "b": 1, "c": 1}
    run.start(state, on_change="amend")
    (said,) = caplog.messages
    assert "/c/train//0 has the data of name/fresh/0" in said


def test_the_error_about_an_added_dataset_offers_to_amend(run: Run) -> None:
    run.start()
    run.step(2)
    state = run.state()
    run.weights = {**run.weights, "c": 1}
    with pytest.raises(FingerprintError, match="on_change='amend'"):
        run.start(state)
