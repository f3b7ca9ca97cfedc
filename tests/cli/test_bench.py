"""What `bench` measures, never how fast it was; and what it says of figures."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from arrays import write_group
from cli_runs import run
from metadatasets import write_v2
from object_server import Bucket
from typer.testing import Result

from energon_grain import StorageSettings
from energon_grain.bench import Figures, Rate, Run, Stage
from energon_grain.cli.bench import advise
from energon_grain.conversion import convert_dataset
from energon_grain.errors import ConfigError
from energon_grain.storage.settings import storage_settings, using_storage
from energon_grain.testing import make_captioning_dataset, make_text_dataset

ENCODERS = """
import time
from energon_grain import DefaultTaskEncoder

class Own(DefaultTaskEncoder):
    def encode_sample(self, sample):
        return sample

class Slow(DefaultTaskEncoder):
    def encode_sample(self, sample):
        time.sleep(0.01)
        return sample

class Raw(DefaultTaskEncoder):
    decoder = None

class Many(DefaultTaskEncoder):
    def encode_samples(self, samples):
        if any(sample.__key__ == "000003" for sample in samples):
            raise ValueError("one is bad")
        return samples

class Generator(DefaultTaskEncoder):
    def encode_sample(self, sample):
        yield sample
        yield sample
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("bench")
    make_captioning_dataset(root / "captions", n=96, shards=2, broken={7})
    make_text_dataset(root / "texts", n=300, shards=3)
    convert_dataset(root / "texts", root / "records")
    write_group(root / "rows.zarr", "zarr3", label=np.arange(20))
    (root / "encoders_of_bench.py").write_text(ENCODERS)
    return root


@pytest.fixture(autouse=True)
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


def bench(path: str | Path, *arguments: str) -> Result:
    return run("bench", path, "--seconds", "0.02", "--batch-size", "4", *arguments)


def measured(path: str | Path, *arguments: str) -> dict[str, Any]:
    done = bench(path, "--json", *arguments)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_a_table_and_a_sentence(folder: Path) -> None:
    shown = bench("captions", "--workers", "0,1,64000", "--max-samples-per-sequence", "1")
    assert shown.exit_code == 0, shown.output
    for text in (
        "captions: 48 samples of",
        "batches of 4, full shuffle",
        "storage, in memory",
        "sample work, one thread",
        "pipeline, 0 workers",
        "pipeline, 1 worker ",
        "(enough)",
        "note: some samples were dropped: decode: DecodingError; `energon-grain lint` lists broken samples",
        "larger numbers of workers are not measured",
    ):
        assert text in shown.output
    assert "64000" not in shown.output


def test_all_stages_with_a_task_encoder_of_the_current_folder(folder: Path) -> None:
    told = measured("captions", "--workers", "0", "--task-encoder", "encoders_of_bench:Own", "--image-decode", "rgb8")
    assert [stage["name"] for stage in told["work"]] == ["decode", "encode_sample", "batch"]
    assert [stage["name"] for stage in told["work"] if stage["serial"]] == ["encode_sample", "batch"]
    assert sum(stage["share"] for stage in told["work"]) == pytest.approx(1)
    assert sum(stage["microseconds"] for stage in told["work"]) == pytest.approx(1e6 / told["work_per_s"])
    assert [run["workers"] for run in told["pipeline"]] == [0]
    assert all(run["samples_per_s"] > 0 and run["first_batch_s"] > 0 for run in told["pipeline"])
    assert (told["batch_size"], told["samples"], told["block"], told["in_store"]) == (4, 48, None, False)
    assert set(told["dropped"]) == {"decode: DecodingError"}
    assert told["bound"] in ("storage", "work", "pipeline")
    refused = bench("captions", "--task-encoder", "encoders_of_bench:Raw", "--image-decode", "rgb8")
    assert "decodes nothing" in str(refused.exception)


@pytest.mark.parametrize(
    ("train", "samples", "first"),
    [
        ({"blend": [{"weight": 1, "path": "captions"}, {"weight": 1, "path": "texts"}]}, 248, True),
        ({"concat": [{"path": "captions"}, {"path": "texts"}]}, 248, True),
        ({"join": [{"path": "captions"}, {"path": "captions"}]}, 48, True),
        ({"path": "rows.zarr"}, 20, False),
        ({"path": "records"}, 200, True),
    ],
    ids=["blend", "concat", "join", "array", "records"],
)
def test_metadatasets(folder: Path, train: dict[str, Any], samples: int, first: bool) -> None:
    """Chunks of arrays, whose files only TensorStore knows, are not dropped from memory."""
    told = measured(write_v2(folder, train=train), "--batch-size", "2", "--workers", "0,1")
    assert told["samples"] == samples
    assert told["images"] == ("captions" in str(train))
    assert told["later"]["samples_per_s"] > 0
    assert (told["first"] is not None) == first


def test_lists_that_fail_are_made_again(folder: Path) -> None:
    told = measured("texts", "--workers", "0", "--task-encoder", "encoders_of_bench:Many")
    assert [stage["name"] for stage in told["work"]] == ["decode", "encode_samples", "batch"]
    assert set(told["dropped"]) == {"encode_samples: ValueError"}


def test_lanes_with_a_program_show_in_the_pipeline_alone(folder: Path) -> None:
    told = measured("texts", "--workers", "0", "--task-encoder", "encoders_of_bench:Generator")
    assert told["items"]
    assert "batch" not in [stage["name"] for stage in told["work"]]
    assert any("lanes filter, pack" in note for note in told["notes"])


def test_few_samples_are_shuffled_fully(folder: Path) -> None:
    told = measured("texts", "--workers", "0", "--max-samples-per-sequence", "100")
    assert (told["block"], told["largest_block"]) == (None, 200 // 48)
    assert any(
        "blocks of 100 samples would leave some of the 48 lanes without a block" in note for note in told["notes"]
    )
    told = measured("texts", "--workers", "0", "--max-samples-per-sequence", "2")
    assert told["block"] == 2


def test_a_run_is_measured_with_its_settings(folder: Path) -> None:
    some = measured("texts", "--workers", "0", "--where", "bytes.txt % 2 == 0", "--subset", "0%,50%", "--lanes", "2")
    assert 0 < some["samples"] < 100
    assert some["largest_block"] == some["samples"] // 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--workers", "one"], "--workers one"),
        (["--workers", "-1"], "--workers -1"),
        (["--task-encoder", "nocolon"], "module:Class"),
        (["--task-encoder", "no_such_module:Class"], "no_such_module"),
        (["--task-encoder", "json:Nothing"], "Nothing"),
        (["--task-encoder", "pathlib:Path"], "expected a TaskEncoder"),
        (["--limit", "8"], "add --validation"),
    ],
)
def test_wrong_options(arguments: list[str], said: str) -> None:
    refused = bench("captions", *arguments)
    assert isinstance(refused.exception, ConfigError)
    assert said in str(refused.exception)


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_a_store_is_read_past_the_cache_and_out_of_it(folder: Path, bucket: Bucket, kind: str) -> None:
    url, before = bucket.upload(folder / "texts", "texts"), storage_settings()
    bucket.server.reset()
    told = measured(url, "--workers", "0,1", "--worker-type", kind)
    assert told["in_store"]
    for rate in (told["first"], told["later"], *told["pipeline"]):
        assert rate["samples_per_s"] > 0
    assert storage_settings() == before
    # Several times the dataset has come: nothing of the pipeline was in the cache.
    sent = sum(request.sent_bytes for request in bucket.server.requests(".tar"))
    assert sent > 2 * sum(tar.stat().st_size for tar in (folder / "texts").glob("*.tar"))
    assert "storage, cache off" in bench(url, "--workers", "0").output


def test_whether_a_store_is_waited_for_is_known(folder: Path, bucket: Bucket) -> None:
    url = bucket.upload(folder / "texts", "texts")
    bucket.server.delay(0.05)
    try:
        far = measured(url, "--workers", "0")
    finally:
        bucket.server.reset()
    assert far["bound"] == "storage"
    assert far["advice"].startswith("The first epoch is limited by the store")
    slow = measured(url, "--workers", "0", "--task-encoder", "encoders_of_bench:Slow")
    assert slow["bound"] == "work"
    assert "encode_sample takes" in slow["advice"]


def test_without_a_cache_there_is_no_later_epoch(folder: Path, bucket: Bucket) -> None:
    url = bucket.upload(folder / "texts", "texts")
    mixed = write_v2(folder, train={"concat": [{"path": "captions"}, {"path": url}]})
    with using_storage(StorageSettings(cache_bytes=0)):
        told = measured(mixed, "--workers", "0")
    assert (told["in_store"], told["later"]) == (True, None)


def rate(samples_per_s: float) -> Rate:
    return Rate(samples_per_s=samples_per_s, bytes_per_s=1e4 * samples_per_s)


def figures(
    serial: str = "", work: dict[str, float] | None = None, runs: dict[int, float] | None = None, **changes: Any
) -> Figures:
    """Of samples of 10,000 bytes in files; `work`: microseconds; `runs`: samples a second by number of workers."""
    work = work or {"decode": 300.0, "encode_sample": 150.0, "batch": 50.0}
    runs = runs or {0: 1500.0, 4: 5000.0}
    balanced = Figures(
        path="data",
        samples=100_000,
        sample_bytes=10_000,
        batch_size=32,
        block=None,
        largest_block=1000,
        worker_type="thread",
        cores=8,
        images=True,
        items=False,
        in_store=False,
        first=rate(8_000),
        later=rate(10_000),
        work=tuple(
            Stage(name=name, microseconds=each, share=each / sum(work.values()), serial=name == serial)
            for name, each in work.items()
        ),
        work_per_s=1e6 / sum(work.values()),
        pipeline=tuple(Run(workers=number, samples_per_s=each, first_batch_s=0.1) for number, each in runs.items()),
        dropped={},
        notes=(),
    )
    return replace(balanced, **changes)


CHEAP = {"decode": 5.0, "batch": 5.0}
STORE: dict[str, Any] = {"in_store": True, "first": rate(800), "runs": {0: 700.0, 4: 790.0}}


@pytest.mark.parametrize(
    ("changes", "bound", "said", "unsaid"),
    [
        ({}, "work", "decode takes 60% of it, 300 µs per sample): decode images no larger than", "rgb8"),
        ({"images": False}, "work", "decode only parts that you use", "images"),
        ({"work": {"decode": 9.0, "batch": 291.0}}, "work", "make smaller arrays", "decode"),
        (
            {"work": {"encode_sample": 300.0}},
            "work",
            "encode_sample takes 100% of it, 300 µs per sample): do less",
            "lock",
        ),
        ({"work": {"encode_sample": 300.0}, "serial": "encode_sample"}, "work", "thread_safe = True", "do less"),
        (
            {"work": {"encode_sample": 300.0}, "serial": "encode_sample", "worker_type": "process"},
            "work",
            "do less in it, and use more workers (this machine has 8 cores)",
            "thread_safe",
        ),
        (
            {"first": rate(1000)},
            "storage",
            "read blocks of consecutive samples (max_samples_per_sequence=105), or use",
            "store",
        ),
        ({"first": rate(1000), "block": 100}, "storage", "it delivers 1,000 samples/s", "neighbours"),
        ({"first": rate(1000), "largest_block": 1}, "storage", "faster storage or more memory", "neighbours"),
        ({"first": rate(1000), "runs": {0: 900.0}}, "work", "decode", "neighbours"),
        ({"first": None, "work": CHEAP, "runs": {0: 9000.0}}, "storage", "even from memory", "neighbours"),
        (
            {"work": CHEAP, "first": None, "later": rate(200_000), "runs": {0: 9000.0}},
            "pipeline",
            "larger batches than 32",
            "decode",
        ),
        (STORE, "storage", "read blocks of consecutive samples (max_samples_per_sequence=420)", "memory"),
        ({**STORE, "block": 300}, "storage", "allow more requests at a time", "neighbours"),
        ({**STORE, "later": None}, "storage", "it delivers 800 samples/s", "memory"),
        ({**STORE, "first": rate(20_000)}, "work", "decode", "the store"),
        ({**STORE, "runs": {0: 1900.0}}, "work", "decode", "the store"),
        ({**STORE, "runs": {0: 10.0}, "items": True}, "storage", "limited by the store", "decode"),
    ],
)
def test_what_is_advised(changes: dict[str, Any], bound: str, said: str, unsaid: str) -> None:
    found = figures(**changes)
    advice = advise(found, "rgb8")
    assert found.bound == bound
    assert said in advice
    assert unsaid not in advice.removeprefix("Storage")
    assert advice.count(". ") == 0


def test_images_as_floats_are_said() -> None:
    assert "decode images to uint8 (image_decode='rgb8') in place of float32 ('torchrgb'), no larger" in advise(
        figures(), "torchrgb"
    )
