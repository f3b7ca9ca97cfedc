"""What importing costs: nothing heavy until a name needs it; and what is said where an extra is missing."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from arrays import write_array
from parquet_files import write_numbers
from web_server import running_web_server

import energon_grain
import energon_grain_torch
from energon_grain.conversion import convert_dataset
from energon_grain.extras import EXTRAS

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]

WITHOUT = """
import sys

class NotInstalled:
    names = set(sys.argv[1].split(","))
    asked = set()

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            self.asked.add(name)
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NotInstalled())
"""

TRAINS = """
import json, pathlib
import BACKEND as energon_grain

def keys(batch):
    return batch["__key__"] if isinstance(batch, dict) else batch.__key__

def batches(path, state=None):
    dataset = energon_grain.get_train_dataset(path, batch_size=4, shuffle_buffer_size=10, max_samples_per_sequence=4)
    with energon_grain.get_savable_loader(dataset) as loader:
        if state:
            loader.restore_state_global(json.loads(state))
        else:
            next(loader)
        state = json.dumps(loader.save_state_global())
        return state, [keys(next(loader)) for _ in range(3)]

for path in sys.argv[2:]:
    state, expected = batches(path)
    assert batches(path, state)[1] == expected
assert all(hasattr(energon_grain, name) for name in energon_grain.__all__)
print(*NotInstalled.asked)
"""

SAYS = """
import os, pathlib
from energon_grain import (
    ConfigError, EPath, MissingPackageError, SampleDecoder, get_savable_loader, get_train_dataset, loader
)
from energon_grain.cli import plot
from energon_grain.conversion import convert_dataset
from energon_grain.prepare import RayExecutor

def train(path, **watched):
    dataset = get_train_dataset(path, batch_size=2, shuffle_buffer_size=10, max_samples_per_sequence=4)
    with get_savable_loader(dataset) as loader, loader.watch(**watched):
        next(loader)

folder, url, text, *uses = sys.argv[2:]
config = pathlib.Path(folder, "aws")
config.write_text("[profile team]\\nrole_arn = arn\\n")
os.environ |= {"AWS_CONFIG_FILE": str(config), "AWS_PROFILE": "team", "AWS_REGION": "r"}
os.environ.pop("AWS_ACCESS_KEY_ID", None)
for use in uses:
    try:
        exec(use)
    except MissingPackageError as error:
        assert isinstance(error, ConfigError) and isinstance(error, ImportError)
        print(error)
"""


def brought_by(extra: str) -> set[str]:
    """Distributions that an extra names, and those of the extras that it names."""
    found: set[str] = set()
    for requirement in PROJECT["optional-dependencies"][extra]:
        own = re.match(r"energon-grain\[(.*)\]", requirement)
        found |= set[str]().union(*map(brought_by, own[1].split(","))) if own else {name_of(requirement)}
    return found


def name_of(requirement: str) -> str:
    match = re.match(r"[\w-]+", requirement)
    assert match
    return match[0]


def test_each_package_comes_by_its_extra_alone() -> None:
    core = {name_of(requirement) for requirement in PROJECT["dependencies"]}
    distributions = {"array_record": "array-record", "orbax": "orbax-checkpoint"}
    distributions |= {"multistorageclient": "multi-storage-client", "prometheus_client": "prometheus-client"}
    distributions |= {"nvidia": "nvidia-nvimgcodec-cu12"}
    for package, extra in EXTRAS.items():
        distribution = distributions.get(package, package)
        assert distribution in brought_by(extra)
        assert distribution not in core
    assert brought_by("jax") >= {"grain", "array-record", "tensorstore", "jax", "orbax-checkpoint"}
    assert brought_by("torch") == {"torch"}


@pytest.mark.parametrize(("backend", "asked"), [("energon_grain", "grain"), ("energon_grain_torch", "")])
def test_training_takes_none_of_them(
    backend: str, asked: str, text_dataset: Callable[..., Path], tmp_path: Path, run_script: Callable[..., Any]
) -> None:
    lines = tmp_path / "lines.jsonl"
    lines.write_text("".join(f'{{"text": "line {i}"}}\n' for i in range(53)))
    missing = EXTRAS.keys() - ({"torch"} if backend == "energon_grain_torch" else set())
    done = run_script(WITHOUT + TRAINS.replace("BACKEND", backend), ",".join(missing), text_dataset(53), lines)
    assert (done.stdout, done.stderr) == (f"{asked}\n", "")


USES = {
    "loader.BatchMapDataset": ("A dataset for Grain", "grain"),
    "loader.BatchIterDataset": ("A dataset for Grain", "grain"),
    "loader.to_device(None)": ("to_device", "jax"),
    "loader.EnergonCheckpointSave": ("saving with Orbax", "orbax"),
    "import energon_grain_torch": ("energon_grain_torch", "torch"),
    "SampleDecoder(allow_pickle=True).decoder_for('pth')": ("decoding part 'pth'", "torch"),
    "SampleDecoder(av_decode='pyav').decoder_for('mp4')": ("decoding video and audio", "av"),
    "SampleDecoder(image_decode='rgb8', image_decoder='nvimgcodec')": ("image_decoder='nvimgcodec'", "nvidia"),
    "SampleDecoder().decoder_for('x.mp')": ("decoding part 'x.mp'", "msgpack"),
    "SampleDecoder().decoder_for('cbor')": ("decoding part 'cbor'", "cbor2"),
    "RayExecutor()": ("running on a Ray cluster", "ray"),
    "train(folder + '/rows.zarr')": ("reading arrays", "tensorstore"),
    "train(folder + '/rows.parquet')": ("reading Parquet files", "pyarrow"),
    "train(folder + '/records')": ("reading ArrayRecord files", "array_record"),
    "train(url + '/records')": ("reading ArrayRecord files in object stores", "cramjam"),
    "pathlib.Path(folder, 'x.jsonl.zst').touch() or convert_dataset(folder + '/x.jsonl.zst', folder + '/new')": (
        "reading .zst files",
        "pyarrow",
    ),
    "EPath('msc://team/x').read_bytes()": ("reading msc://team", "multistorageclient"),
    "EPath('s3://box/x').read_bytes()": ("s3://box/x: signing in with the profile 'team' (without keys)", "boto3"),
    "EPath('hf://datasets/team/set/x').read_bytes()": ("reading hf://datasets/team/set", "urllib3"),
    "plot.check_file(pathlib.Path('plot.svg'))": ("--plot", "matplotlib"),
    "train(text, prometheus=0)": ("Prometheus metrics", "prometheus_client"),
    "convert_dataset(text, 'written', num_workers=0)": ("writing ArrayRecord files", "array_record"),
}
"""What is done, what it is called in the error, and the package that it needs."""


def test_what_is_missing_is_named(
    text_dataset: Callable[..., Path], tmp_path: Path, run_script: Callable[..., Any]
) -> None:
    write_array(tmp_path / "rows.zarr", np.zeros((8, 2)))
    write_numbers(tmp_path / "rows.parquet")
    convert_dataset(text_dataset(53), tmp_path / "records", compression="zstd")
    with running_web_server(tmp_path) as server:
        given = tmp_path, server.url, text_dataset(53), *USES
        done = run_script(WITHOUT + SAYS, ",".join(EXTRAS), *given)
    said = [
        f"{purpose} needs the package {package}, which is not installed: "
        f"pip install 'energon-grain[{EXTRAS[package]}]' "
        f"(in a clone: pip install '.[{EXTRAS[package]}]')"
        for purpose, package in USES.values()
    ]
    assert [line.partition(", or")[0] for line in done.stdout.splitlines()] == said, done.stderr
    assert {package for _, package in USES.values()} == EXTRAS.keys() - {"torchvision"}  # which goes with torch


RunScript = Callable[..., Any]

LAZY = """
import sys

def heavy(*more):
    names = ("grain", "jax", "jaxlib", "torch", "tensorstore", "orbax", "tensorflow", *more)
    return sorted(name for name in names if name in sys.modules)

import energon_grain
assert heavy("numpy", "PIL", "yaml") == [], heavy("numpy", "PIL", "yaml")
import energon_grain.loader
assert heavy("numpy") == [], heavy("numpy")
assert set(energon_grain.loader.__all__) <= set(dir(energon_grain.loader))

from energon_grain import WorkerConfig, get_train_dataset
for batch in get_train_dataset(sys.argv[1], batch_size=4, shuffle_buffer_size=10, max_samples_per_sequence=4):
    assert len(batch.text) == 4
    break
from energon_grain import Stream
with Stream.of(get_train_dataset(
    sys.argv[1], batch_size=4, shuffle_buffer_size=10, max_samples_per_sequence=4, worker_config=WorkerConfig(0, 1, 1)
)) as stream:
    next(stream)
assert heavy("PIL", "msgpack", "cbor2", "av") == [], heavy("PIL", "msgpack", "cbor2", "av")

from energon_grain import get_loader
assert heavy() and "torch" not in heavy(), heavy()
try:
    energon_grain.loader.no_such_name
except AttributeError as error:
    assert "no_such_name" in str(error)
else:
    raise AssertionError
"""


def test_reading_imports_no_framework(text_dataset: Callable[..., Path], run_script: RunScript) -> None:
    done = run_script(LAZY, text_dataset(53))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_all_names_of_the_core_and_more() -> None:
    names = energon_grain_torch.__all__
    assert names == sorted(set(names))
    assert set(names) > set(energon_grain.__all__)
    assert [name for name in names if getattr(energon_grain_torch, name) is None] == []
    assert set(names) <= set(dir(energon_grain_torch))


def test_the_adapter_s_own_names_take_the_place_of_the_core_s() -> None:
    shared = energon_grain.__all__
    own = {name for name in shared if getattr(energon_grain_torch, name) is not getattr(energon_grain, name)}
    assert own == {
        *("AVDecoder", "AVWebdatasetDecoder", "AugmentTaskEncoder", "DefaultTaskEncoder", "SampleDecoder"),
        *("SavableDataLoader", "TaskEncoder", "WorkerConfig", "get_dataset_from_config", "get_loader"),
        *("get_savable_loader", "get_train_dataset", "get_val_dataset", "get_val_datasets"),
    }
