from __future__ import annotations

import importlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from cli_runs import run

from energon_grain import Stream, WorkerConfig, get_train_dataset, get_val_dataset
from energon_grain.cli.terminal import format_bytes, significant
from energon_grain.prepare import prepare_dataset
from energon_grain.testing import make_captioning_dataset, make_crude_dataset, make_text_dataset, write_tars


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_captioning_dataset(tmp_path_factory.mktemp("cli") / "data", n=24, shards=4, broken={3, 20})


def test_info(root: Path) -> None:
    shown = run("info", root)
    assert shown.exit_code == 0, shown.output
    for text in ("24 samples in 4 shards", "megatron.energon.CaptioningSample", "image: jpg", "train", "75.0%", "█"):
        assert text in shown.output


def test_info_as_json(root: Path) -> None:
    summary = json.loads(run("info", root, "--json").output)
    assert (summary["samples"], summary["shards"], summary["kind"]) == (24, 4, "standard")
    assert summary["splits"]["val"]["samples"] == 6
    assert sum(size["samples"] for size in summary["sizes"]) == 24


def test_info_of_a_crude_dataset(tmp_path: Path) -> None:
    assert "crude" in run("info", make_crude_dataset(tmp_path / "crude", n=8, shards=2)).output


def test_nothing_that_data_say_acts_on_a_terminal(tmp_path: Path) -> None:
    """Nor does a name that is not UTF-8, or half of a letter, end a command."""
    name = os.fsdecode(b"k\xe9\x1b[31m\xc2\x9b")
    write_tars(tmp_path, [{"__key__": name, f"x{name}.txt": "a", "json": b'{"a": "\\ud800"}'}])
    prepare_dataset(tmp_path, split_ratio=(1,), crude=True)
    step = ["--step", "0", "--batch-size", "1"]
    for command in (["info"], ["preview"], ["lint"], ["which", *step], ["preview", *step]):
        done = run(command[0], tmp_path, *command[1:])
        assert done.exit_code == 0, done.exception
        assert [letter for letter in done.output if not letter.isprintable()] == ["\n"] * done.output.count("\n")
        json.loads(run(command[0], tmp_path, *command[1:], "--json").stdout)
    assert "k\\udce9␛[31m" in run("which", tmp_path, *step).output
    [sample] = json.loads(run("which", tmp_path, *step, "--json").stdout)
    assert sample["key"] == name


def test_lint_lists_what_is_broken(root: Path) -> None:
    done = run("lint", root)
    assert done.exit_code == 1
    lines = done.output.splitlines()
    assert lines[0].startswith("shard_000.tar/000003: ")
    assert lines[1].startswith("shard_003.tar/000020: ")
    assert lines[2] == "2 problems in 24 samples and 4 shards."
    assert "… and 1 more" in run("lint", root, "--limit", "1").output
    assert run("lint", root, "--split-parts", "val", "--parallel", "1").output.count("\n") == 2


def test_lint_of_a_good_dataset(tmp_path: Path) -> None:
    done = run("lint", make_crude_dataset(tmp_path / "crude", n=8, shards=2))
    assert (done.exit_code, done.output) == (0, "No problems in 8 samples and 2 shards.\n")
    done = run("lint", make_crude_dataset(tmp_path / "one", n=1, shards=1))
    assert done.output == "No problems in 1 sample and 1 shard.\n"


def test_which_lists_the_batch(root: Path) -> None:
    shown = run("which", root, "--step", "1", "--batch-size", "3", "--validation")
    assert shown.exit_code == 0, shown.output
    assert "  bytes      " in shown.output.splitlines()[0]
    rows = [line.split() for line in shown.output.splitlines()[1:]]
    assert [row[-1] for row in rows] == [f"shard_003.tar/{number:06d}" for number in (21, 22, 23)]
    records = json.loads(run("which", root, "--step", "0", "--batch-size", "4", "--seed", "7", "--json").output)
    assert len({record["key"] for record in records}) == 4
    assert all(0 <= record["start"] < record["stop"] for record in records)


def test_which_of_a_later_pass(root: Path) -> None:
    """Every pass over validation data is the same; this one has two steps."""
    steps = [run("which", root, "--step", str(step), "--batch-size", "3", "--validation").output for step in (1, 99)]
    assert steps[0] == steps[1]


@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        ({"subset": "25%,75%", "seed-offset": "3"}, {"subset": ["25%", "75%"]}),
        ({"subset": "[2, end]", "no-repeat": None, "last-batch": "drop"}, {"subset": [2, "end"], "repeat": False}),
        ({"virtual-epoch-length": "3", "shuffle-over-epochs-multiplier": "3"}, {"virtual_epoch_length": 3}),
        ({"shuffle-over-epochs-multiplier": "none", "no-repeat": None}, {"repeat": False}),
        ({"max-samples-per-sequence": "2", "parallel-shard-iters": "3", "lanes": "2"}, {"lanes": 2}),
        ({"validation": None, "limit": "2", "split-part": "train", "last-batch": "keep"}, {"limit": 2}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_which_takes_the_settings_of_the_run(root: Path, options: dict[str, Any], arguments: dict[str, Any]) -> None:
    """Whatever decides the order is an option: the batches are those of a program with these settings."""
    numbers = {
        "shuffle-over-epochs-multiplier": "shuffle_over_epochs_multiplier",
        "max-samples-per-sequence": "max_samples_per_sequence",
        "parallel-shard-iters": "parallel_shard_iters",
    }
    given = dict(arguments)
    for option, name in numbers.items():
        if option in options:
            given[name] = None if options[option] == "none" else int(options[option])
    given |= {"last_batch": options["last-batch"]} if "last-batch" in options else {}
    config = WorkerConfig(rank=0, world_size=1, num_workers=0, seed_offset=int(options.get("seed-offset", 0)))
    if "validation" in options:
        make: Any = get_val_dataset
    else:
        make, given = get_train_dataset, {"shuffle_buffer_size": None, "max_samples_per_sequence": None, **given}
    dataset = make(root, split_part="train", batch_size=4, worker_config=config, **given)
    written = [word for name, value in options.items() for word in (f"--{name}", value) if word is not None]
    with Stream.of(dataset) as stream:
        for step in (0, 3, 7):
            told = json.loads(run("which", root, "--step", str(step), "--batch-size", "4", *written, "--json").stdout)
            assert [record["key"] for record in told] == [record.key for record in stream.which(step)]


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (1234, "1.23 kB"),
        (99_900, "100 kB"),
        (999_900, "1 MB"),
        (5e15, "5000 TB"),
    ],
)
def test_sizes(size: float, text: str) -> None:
    assert format_bytes(size) == text


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [(0, 3, "0"), (150.2, 2, "150"), (9.96, 2, "10"), (0.0312, 2, "0.031"), (12_345.6, 3, "12,346")],
)
def test_numbers_have_no_exponent(value: float, digits: int, text: str) -> None:
    assert significant(value, digits) == text


_ENCODER = """
from energon_grain import TaskEncoder

class Drawn(TaskEncoder):
    def select_samples_to_pack(self, samples):
        return [[samples[at]] for at in self.rng.permutation(len(samples))]

    def pack_selected_samples(self, samples):
        return samples[0]


class Pairs(TaskEncoder):
    def select_samples_to_pack(self, samples):
        return [samples[at : at + 2] for at in range(0, len(samples), 2)]

    def pack_selected_samples(self, samples):
        samples[0].__key__ = [sample.__key__ for sample in samples]
        return samples[0]

    def batch(self, packs):
        return packs
"""


def test_which_of_a_validation_goes_by_the_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_text_dataset(tmp_path / "data", n=30, shards=2)
    (tmp_path / "drawn_encoder.py").write_text(_ENCODER)
    monkeypatch.syspath_prepend(tmp_path)
    options = ["--batch-size", "4", "--lanes", "1", "--packing-buffer-size", "6", "--seed", "7", "--json"]
    options += ["--validation", "--split-part", "train", "--task-encoder", "drawn_encoder:Drawn"]
    told = json.loads(run("which", path, "--step", "0", *options).stdout)
    config = WorkerConfig(rank=0, world_size=1, num_workers=0)
    drawn = importlib.import_module("drawn_encoder").Drawn()
    dataset = get_val_dataset(
        path,
        split_part="train",
        batch_size=4,
        lanes=1,
        packing_buffer_size=6,
        seed=7,
        task_encoder=drawn,
        worker_config=config,
    )
    assert [record["key"] for record in told] == next(iter(dataset)).__key__


def test_which_makes_packs_of_a_task_encoder_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_text_dataset(tmp_path / "data", n=60, shards=2)
    (tmp_path / "pairs_encoder.py").write_text(_ENCODER)
    monkeypatch.syspath_prepend(tmp_path)
    options = ["--batch-size", "4", "--world-size", "2", "--lanes", "8", "--packing-buffer-size", "4", "--json"]
    options += ["--task-encoder", "pairs_encoder:Pairs"]
    pairs = importlib.import_module("pairs_encoder").Pairs()

    dataset = get_train_dataset(
        path,
        batch_size=8,
        lanes=8,
        packing_buffer_size=4,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        task_encoder=pairs,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0),
    )
    with Stream.of(dataset) as stream:
        batches = [next(stream) for _ in range(5)]
        (tmp_path / "state.json").write_text(json.dumps(stream.cursor(with_manifest=True)))
        batches += [next(stream) for _ in range(2)]
    for step in (0, 4, 6):
        for begin in ([], ["--state", tmp_path / "state.json"]):
            told = json.loads(run("which", path, "--step", str(step), *options, *begin).stdout)
            assert [record["key"] for record in told] == [key for pack in batches[step] for key in pack.__key__]
            assert {record["read"] for record in told} == {True}
            assert [record["item"] for record in told] == [item for item in range(8 * step, 8 * step + 8) for _ in "ab"]
    shown = run("which", path, "--step", "6", *(option for option in options if option != "--json"))
    assert "Known by reading" in shown.stdout
