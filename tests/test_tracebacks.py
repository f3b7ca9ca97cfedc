"""An error that leaves a public function shows the frames of the program, and none of the library's."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import RunScript

_APIS = {
    "get_train_dataset": "texts(path='nowhere')",
    "get_val_dataset": "eg.get_val_dataset('texts', batch_size=2, split_part='nope')",
    "get_dataset_from_config": "eg.get_dataset_from_config('nowhere')",
    "get_savable_loader": "eg.get_savable_loader(3)",
    "restore_state_rank": "eg.get_savable_loader(texts()).restore_state_rank({'x': 1})",
    "set_state": "eg.get_savable_loader(texts()).set_state({})",
    "next": "next(eg.get_savable_loader(texts(task_encoder=Bad())))",
    "threads": "next(eg.get_savable_loader(texts(task_encoder=Bad(), worker_config=threads)))",
    "iteration without a loader": "[*texts(task_encoder=Bad())]",
    "node": "eg.BlendDataset()",
    "load_dataset": "eg.load_dataset('nowhere.yaml')",
    "metadataset": "texts(path='wrong.yaml')",
    "prepare_metadataset": "eg.prepare_metadataset('nowhere.yaml')",
    "prepare_dataset": "prepare.prepare_dataset('nowhere')",
    "measure_dataset": "eg.measure_dataset('nowhere', {'tokens': len})",
    "open_columns": "eg.open_columns('nowhere')",
    "preview": "eg.preview('nowhere')",
    "merge_cursors": "eg.merge_cursors([])",
    "file store": "eg.SystemFileStore('texts')['nothing']",
    "WorkerConfig": "eg.WorkerConfig(rank=3, world_size=2)",
}
_GRAIN = {
    "EnergonDataSource": "loader.EnergonDataSource('nowhere')",
    "BatchMapDataset": "loader.BatchMapDataset(texts(batch_size=None))",
    "BatchIterDataset": "next(iter(loader.BatchIterDataset(texts(task_encoder=Bad()))))",
}
_TORCH = {
    "torch get_train_dataset": "torch_texts(path='nowhere')",
    "torch next": "next(egt.get_savable_loader(torch_texts(task_encoder=TorchBad())))",
    "torch load_state_dict": "egt.get_savable_loader(torch_texts()).load_state_dict({})",
    "torch DataLoader": "next(iter(torch_texts(task_encoder=TorchBad())))",
}
_PROGRAM = """
import json, logging, sys, traceback
import energon_grain as eg
from energon_grain import prepare
IMPORTS

logging.disable(logging.CRITICAL)
threads = eg.WorkerConfig(rank=0, world_size=1, num_workers=2)
SHUFFLE = {"batch_size": 2, "shuffle_buffer_size": None, "max_samples_per_sequence": None}

def texts(path="texts", **options):
    return eg.get_train_dataset(path, **{**SHUFFLE, **options})

def torch_texts(path="texts", **options):
    return egt.get_train_dataset(path, **{**SHUFFLE, **options})

def hook(sample):
    raise KeyError("no such tokenizer")

class Bad(eg.DefaultTaskEncoder):
    @eg.stateless
    def encode_sample(self, sample):
        return hook(sample)

ADDED

found = {}
for name, expression in json.loads(sys.argv[1]).items():
    try:
        eval(expression)
    except eg.EnergonGrainError:
        found[name] = traceback.format_exc()
print(json.dumps(found))
"""
_TORCH_ENCODER = """
class TorchBad(egt.DefaultTaskEncoder):
    encode_sample = Bad.encode_sample
"""


def _tracebacks(
    run_script: RunScript, folder: Path, expressions: dict[str, str], *, imports: str = "", added: str = "", how: str
) -> dict[str, str]:
    (folder / "wrong.yaml").write_text("splits:\n  train:\n    path: nowhere\n")
    program = _PROGRAM.replace("IMPORTS", imports).replace("ADDED", added)
    ran = run_script(program, json.dumps(expressions), env={"ENERGON_GRAIN_TRACEBACK": how})
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found.keys() == expressions.keys()
    return found


@pytest.fixture
def folder(text_dataset: Callable[..., Path], tmp_path: Path) -> Path:
    (tmp_path / "texts").symlink_to(text_dataset(12))
    return tmp_path


def _check_short(tracebacks: dict[str, str]) -> None:
    for name, text in tracebacks.items():
        head = text.partition("\nenergon_grain.errors.")[0]
        own = [line for line in head.splitlines() if line.startswith("  File")]
        assert len(head.splitlines()) <= 8, f"{name}:\n{text}"
        assert own, text
        theirs = ('script.py"', '"<string>"', "/grain/_src/core/traceback_util.py")  # Grain says that it cut its own
        assert all(any(each in line for each in theirs) for line in own), f"{name}:\n{text}"


def test_errors_of_public_functions_show_the_frames_of_the_program_alone(run_script: RunScript, folder: Path) -> None:
    _check_short(_tracebacks(run_script, folder, _APIS, how=""))


@pytest.mark.parametrize(
    ("expressions", "imports", "added"),
    [
        (_GRAIN, "import energon_grain.loader as loader", ""),
        (_TORCH, "import energon_grain_torch as egt", _TORCH_ENCODER),
    ],
    ids=["grain", "torch"],
)
def test_errors_of_the_backends_are_short_too(
    run_script: RunScript, folder: Path, expressions: dict[str, str], imports: str, added: str
) -> None:
    pytest.importorskip(imports.split()[1] if "torch" in imports else "grain")
    _check_short(_tracebacks(run_script, folder, expressions, imports=imports, added=added, how=""))


def test_the_full_traceback_is_there_on_demand(run_script: RunScript, folder: Path) -> None:
    [text] = _tracebacks(run_script, folder, {"next": _APIS["next"]}, how="full").values()
    assert text.count("/energon_grain/") > 5


_HOOK = """
import logging, traceback
import energon_grain as eg

logging.disable(logging.CRITICAL)

def tokenize(sample):
    raise TypeError("a bug of the program")

class Fails(eg.DefaultTaskEncoder):
    @eg.stateless(failure_tolerance=1)
    def encode_sample(self, sample):
        return tokenize(sample)

class Ends(eg.DefaultTaskEncoder):
    @eg.stateless
    def encode_sample(self, sample):
        raise eg.FatalSampleError("the program ends it")

for encoder in (Fails(), Ends()):
    loader = eg.get_savable_loader(
        eg.get_train_dataset(
            "texts", batch_size=2, shuffle_buffer_size=None, max_samples_per_sequence=None, task_encoder=encoder,
        )
    )
    try:
        next(loader)
    except eg.FatalSampleError:
        print(traceback.format_exc())
    loader.close()

try:
    raise LookupError("of the program")
except LookupError:
    try:
        eg.get_savable_loader(3)
    except eg.ConfigError:
        print(traceback.format_exc())
"""


def test_frames_of_hooks_and_earlier_errors_of_the_program_stay(run_script: RunScript, folder: Path) -> None:
    ran = run_script(_HOOK, env={"ENERGON_GRAIN_TRACEBACK": ""})
    assert ran.returncode == 0, ran.stderr
    assert "in encode_sample\n    return tokenize(sample)" in ran.stdout
    assert "in tokenize\n" in ran.stdout
    assert "TypeError: a bug of the program" in ran.stdout
    assert 'raise eg.FatalSampleError("the program ends it")' in ran.stdout
    assert "LookupError: of the program\n\nDuring handling of the above exception" in ran.stdout
    assert "/energon_grain/" not in ran.stdout
