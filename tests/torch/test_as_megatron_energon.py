"""Programs written for Megatron-Energon find our names where they look for theirs.

What such programs do is in `energon_programs/`, run by `test_programs.py`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from patience import PATIENCE_S

from energon_grain.prepare import prepare_dataset
from energon_grain.testing import write_tars

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests" / "fixtures"
START = ROOT / "adapters" / "energon_grain_torch" / "start"
PATHS = [str(ROOT), str(ROOT / "adapters")]
SWITCH = "energon_grain_torch.as_megatron_energon"


def run(*command: str | Path, folder: Path, paths: list[str] | None = None, **variables: str) -> str:
    """What a program prints, whose Python finds the packages of the repository."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths or PATHS), **variables}
    words = [sys.executable, *map(str, command)]
    done = subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


IMPORTS = """
import importlib, json, pickle, sys
import energon_grain_torch.as_megatron_energon
found = {}
for line in open(sys.argv[1]):
    module, name = line.split()
    try:
        exec(f"from {module} import {name}")
    except ImportError as error:
        found[line.strip()] = str(error)
    else:
        assert hasattr(sys.modules[module], name)
        found[line.strip()] = None
for inside, home in energon_grain_torch.as_megatron_energon.ELSEWHERE.items():
    if home.partition(":")[0] != "energon_grain_torch.transforms":  # which needs torchvision
        home, _, name = home.partition(":")
        assert hasattr(importlib.import_module(home), name or inside.rpartition(":")[2]), inside
import megatron.energon
import megatron.energon.edataclass
from megatron.energon import edataclass
from megatron.energon.edataclass import edataclass as from_its_module
assert callable(edataclass) and megatron.energon.edataclass is edataclass is from_its_module
assert not hasattr(megatron.energon, "WeakCallbacks")
names = {}
exec("from megatron.energon import *", names)
assert names["WorkerConfig"] is energon_grain_torch.WorkerConfig
for statement in (
    "from megatron.energon.fork_hook import run_hooks",
    "from megatron.energon.flavors.webdataset.sharder import Sharder",
    "from megatron.energon.worker import WorkerConfg",
):
    try:
        exec(statement)
    except ImportError as error:
        found[statement] = str(error)
import energon_grain
kept = pickle.load(open(sys.argv[2], "rb"))
sample = kept["sample"]
assert type(sample) is energon_grain.CaptioningSample and sample.caption == "hi" and sample.__valid__ is None
assert sample.image.tolist() == [1, 1] and "__valid__=None" in repr(sample)
assert sample.__sources__ == (energon_grain.SourceInfo(
    dataset_path=energon_grain.EPath("/data/coco"), index=3, shard_name="a.tar", file_names=("a.jpg",)),)
assert type(kept["text"]) is energon_grain.TextSample and kept["batch"].__valid__ is None
assert kept["crude"] == {"__key__": "c", "txt": b"x"}
assert kept["worker_config"] == energon_grain_torch.WorkerConfig(rank=1, world_size=2, num_workers=3)
assert kept["names"] == [energon_grain.CaptioningSample, energon_grain.basic_sample_keys]
worker = kept["state"]["worker_states"][0]
assert worker["offset"] == 2 and worker["state"]["dataset_state"]["active_slice_state"][0]["current"] == 17
from energon_grain.stream.cursor import check_cursor
try:
    check_cursor(kept["state"])
except energon_grain.StateError as error:
    assert "this state was saved by Megatron-Energon" in str(error) and "`skip`" in str(error)
else:
    raise AssertionError("a state of another order was taken")
assert pickle.loads(pickle.dumps(kept["state"])).keys() == kept["state"].keys()
from megatron.energon.source_info import SourceInfo
assert isinstance(sample.__sources__[0], SourceInfo) and SourceInfo(**{
    "dataset_path": 1, "index": 2, "shard_name": "", "file_names": ()}).index == 2
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | None]:
    """What `from module import name` says of each public name of Energon: nothing, or why there is none."""
    folder = tmp_path_factory.mktemp("imports")
    (folder / "imports.py").write_text(IMPORTS)
    return json.loads(
        run("imports.py", FIXTURES / "energon_names.txt", FIXTURES / "energon" / "kept.pkl", folder=folder)
    )


def test_a_name_that_there_is_not_says_what_the_page_says(found: dict[str, str | None]) -> None:
    page = (
        (ROOT / "docs" / "reference" / "energon-names.md")
        .read_text()
        .partition("## Every name\n")[2]
        .partition("\n## ")[0]
    )
    rows = [line.strip("|").split(" | ") for line in page.splitlines() if line.startswith("| `")]
    said = {name.strip(" `"): row[2].strip(" |") for row in rows for name in row[0].split(",") if row[1].strip() == "—"}
    missing = {line: why for line, why in found.items() if why and line.startswith("megatron") and " " in line}
    for line in [line for line, why in missing.items() if "energon-grain[torchvision]" in why]:  # not installed
        assert line.startswith("megatron.energon.transforms ")
        del missing[line]
    assert {line.split()[1] for line in missing} == set(said)
    for line, why in missing.items():
        assert f"has no `{line.replace(' ', '.')}`: {said[line.split()[1]]}. All names: " in why


def test_what_is_internal_to_energon_says_so(found: dict[str, str | None]) -> None:
    fork_hook, sharder, misspelt = (str(why) for line, why in found.items() if "import " in line)
    assert "`megatron.energon.fork_hook.run_hooks`: Python's `os.register_at_fork`" in fork_hook
    assert "`megatron.energon.flavors.webdataset.sharder`: internal to Energon" in sharder
    assert "Did you mean 'WorkerConfig'?" in misspelt


SUITE_IMPORTS = """
import importlib, pickle, sys
import energon_grain_torch.as_megatron_energon
imported = {}
for line in open(sys.argv[1]):
    module, name = line.split()
    if module != "megatron.energon.transforms":  # which needs torchvision
        exec(f"from {module} import {name}")
        imported[name] = locals()[name]
class Collector(imported["BaseAggregator"][int, list[int]]):
    pass
for call in (Collector, imported["WeakCallbacks"], lambda: imported["SqliteIndexWriter"]("index.sqlite")):
    try:
        call()
    except NotImplementedError as error:
        print(error)
assert pickle.loads(pickle.dumps(imported["ForkMixin"])) is imported["ForkMixin"]
assert issubclass(imported["DuplicateSampleKeyError"], Exception)
from megatron.energon.tools.analyze_debug import command
command.main(["logs"])
"""


def test_all_that_energons_own_tests_import_is_there(tmp_path: Path) -> None:
    """What is internal to Energon says what to do when it is called. The names are those of revision bef8be2."""
    (tmp_path / "imports.py").write_text(SUITE_IMPORTS)
    words = [sys.executable, "imports.py", str(FIXTURES / "energon_test_imports.txt")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(PATHS)}
    done = subprocess.run(
        words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 1
    aggregator, callbacks, writer = done.stdout.splitlines()
    assert ".aggregator_pool.BaseAggregator`: `prepare_dataset(…, num_workers=…)`. All names: " in aggregator
    assert "`megatron.energon.fork_hook.WeakCallbacks`: Python's `os.register_at_fork`" in callbacks
    assert ".indexing.SqliteIndexWriter`: `prepare_dataset` writes the index" in writer
    assert done.stderr.startswith("Error: analyze-debug reads logs of Energon's loaders")
    assert "`loader.which(step)`" in done.stderr


ENCODERS = """
from megatron.energon import DefaultTaskEncoder, stateless

class Encoder(DefaultTaskEncoder):
    @stateless
    def encode_sample(self, sample):
        sample.text = sample.text.upper()
        sample.words = sample.text.split()  # no field
        return sample

    @stateless
    def batch(self, samples):
        batch = super().batch(samples)
        batch.words = [sample.words for sample in samples]
        return batch
"""
PROGRAM = """
import sys
from megatron.energon import WorkerConfig, get_savable_loader, get_val_dataset
from encoders import Encoder

class Own(Encoder):
    pass

if __name__ == "__main__":
    config = WorkerConfig(rank=0, world_size=1, num_workers=int(sys.argv[2]))
    dataset = get_val_dataset(sys.argv[1], split_part="train", batch_size=2, worker_config=config, task_encoder=Own())
    batches = list(get_savable_loader(dataset, multiprocessing_context="spawn"))
    assert all(batch.words == [text.split() for text in batch.text] for batch in batches)
    print([text for batch in batches for text in batch.text])
"""


def texts(folder: Path) -> None:
    """A dataset of four texts, and a program that reads it in a process that begins anew."""
    write_tars(folder / "texts", ({"__key__": f"{i}", "txt": f"text {i}"} for i in range(4)))
    prepare_dataset(
        folder / "texts", split_ratio={"train": 1}, sample_type="TextSample", field_map={"text": "txt"}, num_workers=0
    )
    (folder / "encoders.py").write_text(ENCODERS)
    (folder / "program.py").write_text(PROGRAM)


EXPECTED = "['TEXT 0', 'TEXT 1', 'TEXT 2', 'TEXT 3']\n"


def test_a_program_runs_as_it_is_with_its_worker_processes(tmp_path: Path) -> None:
    texts(tmp_path)
    assert run("-m", SWITCH, "program.py", "texts", "1", folder=tmp_path) == EXPECTED
    assert run("-m", SWITCH, "-m", "program", "texts", "0", folder=tmp_path) == EXPECTED


def test_the_environment_switches_programs_that_others_start(tmp_path: Path) -> None:
    """Whatever is installed beside; without it nothing is imported."""
    texts(tmp_path)
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden/sitecustomize.py").write_text("import builtins\nbuiltins.hidden_ran = True\n")
    (tmp_path / "theirs/megatron/energon").mkdir(parents=True)
    (tmp_path / "theirs/megatron/energon/__init__.py").write_text("WorkerConfig = 'theirs'\n")
    paths = [str(START), str(tmp_path / "hidden"), *PATHS, str(tmp_path / "theirs")]
    assert run("program.py", "texts", "0", folder=tmp_path, paths=paths, ENERGON_IMPL="grain") == EXPECTED
    idle = "import sys; print(hidden_ran, 'torch' in sys.modules, 'energon_grain' in sys.modules)"
    assert run("-c", idle, folder=tmp_path, paths=paths, ENERGON_IMPL="grain") == "True False False\n"
    said = "from megatron.energon import WorkerConfig; print(WorkerConfig)"
    assert run("-c", said, folder=tmp_path, paths=paths) == "theirs\n"


BESIDE = f"""
import sys
import {SWITCH}
sys.path.append("megatron_lm")  # after the fact, as Megatron-LM's examples do
import megatron.core
import megatron.energon
print(megatron.core.NAME, megatron.energon.errors.__name__, megatron.energon.task_encoder.base.Cooker)
print(megatron.energon.edataclass, hasattr(megatron.energon, "nothing"))
for name in [name for name in sys.modules if name.startswith("megatron")]:
    del sys.modules[name]
sys.modules["megatron.energon"] = type(sys)("megatron.energon")
try:
    {SWITCH}.install()
except ImportError as error:
    print(error)
"""


def test_the_rest_of_megatron_stays_and_the_real_energon_is_not_mixed_with_ours(tmp_path: Path) -> None:
    core = tmp_path / "megatron_lm" / "megatron" / "core"
    core.mkdir(parents=True)
    (core / "__init__.py").write_text("NAME = 'core'\n")
    (tmp_path / "beside.py").write_text(BESIDE)
    first, second, third = run("beside.py", folder=tmp_path).splitlines()
    assert first == "core megatron.energon.errors <class 'energon_grain.cooking.cooker.Cooker'>"
    assert second.startswith("<function edataclass")
    assert second.endswith("False")
    assert "was already imported from elsewhere" in third


MESSAGES = f"""
import socket
import {SWITCH}
import numpy as np, torch
from megatron.energon.errors import format_sample_compact
print(format_sample_compact({{"score": np.float64(0.5), "kind": socket.AF_INET}}))
print(format_sample_compact({{"half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16)}}))
print(format_sample_compact({{"wide": torch.ones(1, requires_grad=True)}}))
"""


def test_messages_show_numbers_and_tensors_of_any_type(tmp_path: Path) -> None:
    (tmp_path / "messages.py").write_text(MESSAGES)
    assert run("messages.py", folder=tmp_path).splitlines() == [
        "score: 0.5 kind: 2",
        "half: Tensor(shape=torch.Size([2]), dtype=torch.bfloat16, device=cpu, min=-2.0, max=1.5, values=[1.5, -2.0])",
        "wide: Tensor(shape=torch.Size([1]), dtype=torch.float32, device=cpu, min=1.0, max=1.0, values=[1.0])",
    ]
