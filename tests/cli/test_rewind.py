"""`energon-grain rewind`: the state at an earlier step equals the one that was saved there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from cli_runs import run
from metadatasets import write_v2
from planted_culprits import Dropping, Packing, make_texts, open_run

from energon_grain import Stream, TaskEncoder

OPTIONS = ["--seed", "5", "--lanes", "12"]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_texts(tmp_path_factory.mktemp("rewind") / "text", 240, 4)


def advance(stream: Stream, steps: int) -> list[list[str]]:
    """Deliver as many steps, over the ends of passes, and return their keys."""
    goal = stream.place.step + steps
    found: list[list[str]] = []
    while stream.place.step < goal:
        for batch in stream:
            found.append(list(batch.__key__))
            if stream.place.step == goal:
                break
    return found


def states_of(stream: Stream, steps: list[int]) -> dict[int, dict[str, Any]]:
    """The states saved before these steps."""
    found: dict[int, dict[str, Any]] = {}
    for step in steps:
        advance(stream, step - stream.place.step)
        found[step] = stream.cursor(with_manifest=True)
    return found


def written(file: Path, state: Mapping[str, Any]) -> Path:
    file.parent.mkdir(exist_ok=True, parents=True)
    file.write_text(json.dumps(state))
    return file


def rewound(*arguments: Any) -> dict[str, Any]:
    """The state that the command writes to its last argument."""
    done = run("rewind", *arguments[:-1], "-o", arguments[-1])
    assert done.exit_code == 0, (done.output, done.exception)
    return json.loads(arguments[-1].read_text())


@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        ({}, []),
        ({"virtual_epoch_length": 7}, ["--virtual-epoch-length", "7"]),
        ({"repeat": False, "last_batch": "drop"}, ["--no-repeat", "--last-batch", "drop"]),
        ({"max_samples_per_sequence": 5, "shuffle_buffer_size": 10}, None),
    ],
)
def test_an_earlier_state_follows_from_a_later_one(
    path: Path, tmp_path: Path, options: dict[str, Any], arguments: list[str] | None
) -> None:
    if arguments is None:
        arguments = ["--max-samples-per-sequence", "5", "--shuffle-buffer-size", "10"]
    steps = [0, 1, 12, 20, 75]
    with open_run(path, **options) as stream:
        states = states_of(stream, [*steps, 100])
    last = written(tmp_path / "last.json", states[100])
    for step in steps:
        found = rewound(last, path, "--to", step, *OPTIONS, *arguments, tmp_path / "found.json")
        with open_run(path, **options) as one, open_run(path, **options) as other:
            one.restore(found)
            other.restore(states[step])
            assert advance(one, 9) == advance(other, 9)
        if step % 7 or "virtual_epoch_length" not in options:  # there, one has ended a pass, and the other begins one
            assert found == states[step], step


def test_an_endless_run_needs_no_dataset(path: Path, tmp_path: Path) -> None:
    with open_run(path, batch_size=4, hosts=2) as stream:
        states = states_of(stream, [30, 50])
    with open_run(path, batch_size=12) as stream:
        stream.restore(states[50])
        states |= states_of(stream, [60, 90])
    last = written(tmp_path / "last.json", states[90])
    for step in (60, 30):
        found = rewound(last, "--to", step, tmp_path / "found.json")
        for name in ("step", "pass", "pass_step", "item", "history", "skipped", "fingerprint"):
            assert found[name] == states[step][name], (step, name)
    assert rewound(last, path, "--to", 60, *OPTIONS, tmp_path / "found.json") == states[60]
    assert rewound(last, "--to", 90, tmp_path / "found.json") == states[90]


def test_skipped_steps_stay_skipped(path: Path, tmp_path: Path) -> None:
    with open_run(path) as stream:
        advance(stream, 5)
        stream.skip(10)
        states = states_of(stream, [15, 20])
        stream.skip(7)
        states[27] = stream.cursor(with_manifest=True)
    last = written(tmp_path / "last.json", states[27])
    assert rewound(last, "--to", 15, tmp_path / "found.json") == states[15]
    assert rewound(last, "--to", 20, tmp_path / "found.json") == states[20]
    assert rewound(last, "--to", 8, tmp_path / "found.json")["skipped"] == [[5, 3]]


@pytest.mark.parametrize("encoder", [Dropping, Packing])
def test_where_data_decide_steps_are_made_again(path: Path, tmp_path: Path, encoder: type[TaskEncoder]) -> None:
    options: dict[str, Any] = {"task_encoder": encoder()}
    arguments = [*OPTIONS, "--task-encoder", f"planted_culprits:{encoder.__name__}"]
    if encoder is Packing:
        options["packing_buffer_size"] = 4
        arguments += ["--packing-buffer-size", "4"]
    with open_run(path, **options) as stream:
        states = states_of(stream, [10, 24, 40])
    for step in (10, 40):
        written(tmp_path / "run" / f"{step}" / "energon_grain.json", states[step])
    done = run("rewind", tmp_path / "run", path, "--to", "24", *arguments, "-o", tmp_path / "found.json")
    assert done.exit_code == 0, (done.output, done.exception)
    assert "by making the steps from 10 on again" in done.output
    assert json.loads((tmp_path / "found.json").read_text()) == states[24]
    last = written(tmp_path / "last.json", states[40])
    assert rewound(last, path, "--to", 24, *arguments, tmp_path / "found.json") == states[24]
    done = run("rewind", last, "--to", "24", "-o", tmp_path / "none.json")
    assert "does not follow from the state of step 40 alone" in str(done.exception)


def test_the_cost_of_a_replay_is_said_before(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("energon_grain.history.rewind.MOST_ITEMS", 100)
    with open_run(path, task_encoder=Dropping()) as stream:
        states = states_of(stream, [24, 40])
    last = written(tmp_path / "last.json", states[40])
    arguments = [last, path, "--to", "24", *OPTIONS, "--task-encoder", "planted_culprits:Dropping"]
    done = run("rewind", *arguments, "-o", tmp_path / "none.json")
    assert "192 items would have to be read and made from there: pass --replay" in str(done.exception)
    assert rewound(*arguments, "--replay", tmp_path / "found.json") == states[24]


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mixture")
    blend = [{"weight": 1, "path": str(make_texts(folder / name, 60, 2))} for name in ("web", "code")]
    return write_v2(folder, "mix.yaml", train={"blend": blend})


def test_later_amendments_are_forgotten(mixture: Path, tmp_path: Path) -> None:
    states: dict[int, dict[str, Any]] = {}
    with open_run(mixture) as stream:
        for step, weights in ((10, None), (20, {"web": 3, "code": 1}), (30, {"web": 0, "code": 1}), (40, None)):
            advance(stream, step - stream.place.step)
            states[step] = stream.cursor(with_manifest=True)
            if weights is not None:
                stream.amend(weights=weights)
        advance(stream, 5)
        states[45] = stream.cursor(with_manifest=True)
        keys = [[record.key for record in stream.which(step)] for step in range(45)]
    last = written(tmp_path / "last.json", states[45])
    assert rewound(last, mixture, "--to", 10, *OPTIONS, tmp_path / "found.json") == states[10]
    assert rewound(last, "--to", 10, tmp_path / "found.json") == states[10]
    assert "amendments" not in states[10]
    for step in (20, 25, 30, 40):
        found = rewound(last, mixture, "--to", step, *OPTIONS, tmp_path / "found.json")
        with open_run(mixture) as stream:
            stream.restore(found)
            assert len(stream.amendments.steps) == 1 + (step >= 30)
            begin = [sorted(next(stream).__key__) for _ in range(min(5, 30 - step) if step < 30 else 5)]
        assert begin == [sorted(own) for own in keys[step : step + len(begin)]]


def test_what_cannot_be_rewound_is_an_error(path: Path, tmp_path: Path) -> None:
    with open_run(path) as stream:
        state = states_of(stream, [10])[10]
    last, out = written(tmp_path / "last.json", state), tmp_path / "none.json"
    done = run("rewind", last, "--to", "11", "-o", out)
    assert "step 11 is behind the last state, of step 10" in str(done.exception)
    finite = {"repeat": False}
    with open_run(path, **finite) as stream:
        advance(stream, 45)
        last = written(tmp_path / "last.json", stream.cursor(with_manifest=True))
    done = run("rewind", last, "--to", "5", "-o", out)
    assert "give the dataset and the settings of the run too" in str(done.exception)
    assert not out.exists()
