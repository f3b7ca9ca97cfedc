"""Commands that look: on folders of tars, JSONL files, arrays, and ArrayRecord files."""

from __future__ import annotations

import importlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from arrays import numbered, write_group
from cli_runs import run
from metadatasets import write_v2
from records import msgpack_record, write_records, write_shards

from energon_grain import Stream, WorkerConfig, get_train_dataset, get_val_dataset
from energon_grain.errors import ConfigError, DatasetNotFoundError
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
    assert "Computed by reading" in shown.stdout


TYPED = ("--sample-type", "TextSample", "--field-map", '{"text": "txt"}')
PREPARED = ("--split-ratio", "8,1,1", "--non-interactive", *TYPED)


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "x.jsonl"
    path.write_text('{"n": 0}\n\n{"n": 1, "long": "' + "x" * 3000 + '"}\n{"n": 2}\n')
    return path


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return write_group(tmp_path / "x.zarr", "zarr3", label=np.arange(20), image=numbered(20, 3, 2))


@pytest.fixture
def records(tmp_path: Path) -> Path:
    samples = ({"__key__": f"{number:03d}", "txt": b"text", "json": b'{"a": 1}'} for number in range(20))
    write_shards(tmp_path / "x", [msgpack_record(sample) for sample in samples], 10)
    return tmp_path / "x"


def said(*arguments: str | Path, status: int = 0, answers: str | None = None) -> str:
    done = run(*arguments, answers=answers)
    assert done.exit_code == status, done.output
    return done.output


def refused(kind: type[Exception], *arguments: str | Path) -> str:
    error = run(*arguments).exception
    assert isinstance(error, kind)
    return str(error)


def test_info_of_other_kinds(lines: Path, rows: Path) -> None:
    shown = said("info", rows)
    assert "20 samples, 640 B of rows" in shown
    assert "  image  float32[3, 2]  24 B  in chunks of 7 rows" in shown
    label = {"type": "int64", "row_shape": [], "row_bytes": 8, "chunk_rows": 7}
    assert json.loads(said("info", rows, "--json"))["arrays"]["label"] == label
    shown = said("info", write_v2(rows.parent, train={"path": rows.name}))
    assert "x.zarr" in shown
    assert "20" in shown
    shown = said("info", lines)
    assert "3 samples" in shown
    assert "2 KiB to 4 KiB" in shown
    told = json.loads(said("info", lines, "--json"))
    assert (told["samples"], told["size_bytes"]) == (3, lines.stat().st_size)
    for path in (lines, rows):
        refused(ConfigError, "info", path, "--split-config", "s.yaml")


def test_which(lines: Path, rows: Path, records: Path) -> None:
    options = ("--step", "0", "--batch-size", "2", "--validation")
    for path in (lines, rows):
        shown = said("which", path, *options)
        assert f"{path.name}/0" in shown
        assert f"{path.name}/1" in shown
    assert "  bytes, uncompressed  " in shown
    said("prepare", records, "--records", "msgpack", *PREPARED)
    first, *others = said("which", records, *options).splitlines()
    assert "  bytes, uncompressed  " in first
    assert [line.split()[3] for line in others] == ["0-38", "38-76"]


def test_arrays_need_nothing(rows: Path) -> None:
    assert "nothing to prepare" in refused(ConfigError, "prepare", rows, "--split-ratio", "1,0,0")
    assert "No problems in 20 samples" in said("lint", rows)


def test_lines_are_indexed(lines: Path) -> None:
    assert "3 samples, 3.04 kB" in said("prepare", lines)
    assert lines.with_name("x.jsonl.idx").stat().st_size == 8 * 4
    told = refused(ConfigError, "prepare", lines, "--crude", "--split-ratio", "1")
    assert told.endswith("a JSONL file, which is only indexed: leave out --split-ratio and --crude.")
    refused(DatasetNotFoundError, "prepare", lines.with_name("y.jsonl"))


def test_lint_of_lines_and_their_indices(lines: Path) -> None:
    assert "No problems in 3 samples" in said("lint", lines)
    said("prepare", lines)
    assert "No problems in 3 samples" in said("lint", lines)
    content = lines.read_text()
    lines.write_text(content.replace('{"n": 0}', '{"n": ,}').replace('{"n": 2}', "[      ]"))
    shown = said("lint", lines, status=1)
    assert "x.jsonl:1: part 'json'" in shown
    assert "x.jsonl:4: contains no JSON object: b'[      ]'" in shown
    refused(ConfigError, "lint", lines, "--split-parts", "train")
    for changed, told in (
        (content.replace('\n\n{"n": 1', '{}\n{"n": 1'[:10]), "x.jsonl.idx: "),
        (content.replace("\n\n", "\n") + "\n", "its offsets do not match the samples; run `energon-grain prepare"),
        (content + "\n", "changed after it was indexed"),
    ):
        lines.write_text(changed)
        assert told in run("lint", lines).output


def test_lint_lists_only_so_many(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text("".join(f"{number}\n" for number in range(10_100)))
    shown = said("lint", tmp_path / "x.jsonl", "--limit", "3", status=1)
    assert "… and 9,997 more lines (--limit)" in shown
    assert "The check stopped after problem 10,000" in shown


def test_records_are_prepared(records: Path) -> None:
    refused(DatasetNotFoundError, "prepare", records, *PREPARED)
    shown = said("prepare", records, "--records", "msgpack", *PREPARED)
    assert "Found 10 ArrayRecord files, shard_000.array_record … shard_009.array_record." in shown
    assert "20 samples in 10 shards" in shown
    said("prepare", records, "--tar-index-only")
    said("prepare", records, *PREPARED, "--force-overwrite")
    said("prepare", records, "--records", "json", status=2)
    again = (*PREPARED, "--force-overwrite", "--records", "tf_example")
    assert "record 0: is not a tf.train.Example" in str(run("prepare", records, *again).exception)
    shown = said("info", records)
    assert "20 samples in 10 shards, 1.31 MB of ArrayRecord files (msgpack) (240 B of payload)" in shown
    assert json.loads(said("info", records, "--json"))["records"] == "msgpack"
    assert "No problems in 20 samples and 10 shards." in said("lint", records)
    write_records(records / "shard_003.array_record", [msgpack_record({"__key__": "x", "txt": b"\xff"})] * 2)
    assert "shard_003.array_record: the shard does not match the columnar index" in said("lint", records, status=1)


def test_the_wizard_shows_a_record(records: Path) -> None:
    shown = said("prepare", records, "--records", "msgpack", answers="8,1,1\ny\nTextSample\n\n")
    assert "Sample '000' of shard_000.array_record: txt (4 bytes), json (8 bytes)" in shown
    assert '"a": 1' in shown


def test_convert(tmp_path: Path) -> None:
    tars = make_text_dataset(tmp_path / "tars", n=20, shards=4)
    shown = said("convert", tars, tmp_path / "records", "--compression", "zstd")
    assert "20 samples in 4 ArrayRecord files" in shown
    assert "every shard was read back and compared." in shown
    refused(ConfigError, "convert", tars, tmp_path / "records")
    shown = said("convert", tmp_path / "records", tmp_path / "back", "--to", "tar", "--no-verify", "--no-sqlite")
    assert "20 samples in 4 tar files" in shown
    assert "nothing was read back." in shown
