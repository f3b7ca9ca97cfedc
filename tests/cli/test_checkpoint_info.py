"""`energon-grain checkpoint info`: what a saved state says, in every form that states are saved in."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from cli_runs import run
from metadatasets import write_v2
from patience import PATIENCE_S

from energon_grain import (
    ConfigError,
    DefaultTaskEncoder,
    SkipSample,
    StateError,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
)
from energon_grain.testing import make_text_dataset


@pytest.fixture(scope="module")
def mix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("states")
    make_text_dataset(root / "large", n=60, shards=3)
    make_text_dataset(root / "small", n=15, shards=3)
    return write_v2(root, train={"blend": [{"path": "large", "weight": 3}, {"path": "small", "weight": 1}]})


def loader(path: Path, host: int = 0, hosts: int = 1, **options: Any) -> Any:
    config = WorkerConfig(rank=host, world_size=hosts, num_workers=0)
    given = {"shuffle_buffer_size": None, "max_samples_per_sequence": None, "batch_size": 8, **options}
    return get_savable_loader(get_train_dataset(path, worker_config=config, **given))


def saved(path: Path, steps: int, **options: Any) -> tuple[dict[str, Any], Counter[str]]:
    """A state, and how often a sample of each dataset was drawn until then."""
    drawn: Counter[str] = Counter()
    with loader(path, **options) as made:
        for _ in range(steps):
            drawn += Counter(Path(str(info[0].dataset_path)).name for info in next(made).__sources__)
        return made.save_state_rank(), drawn


def told(*arguments: str | Path, status: int = 0) -> Any:
    done = run("checkpoint", "info", *arguments, "--json")
    assert done.exit_code == status, done.output
    return json.loads(done.stdout)


@pytest.fixture
def state(mix: Path, tmp_path: Path) -> Path:
    (tmp_path / "state.json").write_text(json.dumps(saved(mix, 40)[0]))
    return tmp_path / "state.json"


def test_where_a_run_stands(mix: Path, state: Path) -> None:
    found = told(state)
    assert (found["step"], found["item"], found["lanes"], found["seed"], found["endless"]) == (40, 320, 48, 0, True)
    assert (found["host"], found["hosts"], found["fits_hosts"], found["dropped"]) == (None, 1, None, 0)
    assert found["batches"] == [[0, 8]]
    _, drawn = saved(mix, 40)
    assert [leaf["name"] for leaf in found["leaves"]] == ["path/large/train//0", "path/small/train//0"]
    for leaf, samples in zip(found["leaves"], (40, 10), strict=True):
        assert leaf["samples"] == samples
        assert abs(leaf["draws"] - drawn[leaf["name"].split("/")[1]]) <= 17
        assert leaf["epochs"] == leaf["draws"] / samples
    shown = run("checkpoint", "info", state).output
    assert "next step    40" in shown
    assert "restores on  any number of hosts, with lanes=48" in shown
    assert "large/train       40        75.00%    240    6.00\n" in shown


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_every_form_says_the_same(mix: Path, state: Path, tmp_path: Path) -> None:
    import orbax.checkpoint as ocp
    import torch
    import torch.distributed.checkpoint as dcp

    from energon_grain.loader import EnergonCheckpointSave
    from energon_grain_torch import get_savable_loader as torch_loader

    cursor = json.loads(state.read_text())
    expected = told(state)
    forms: dict[str, Path] = {}

    def form(name: str, value: Any) -> None:
        forms[name] = tmp_path / f"{name}.json"
        forms[name].write_text(json.dumps(value))

    form("hosts", [saved(mix, 40, hosts=2, host=host, batch_size=4)[0] for host in range(2)])
    form("of a trainer", {"weights": {"w": [1, 2]}, "data": cursor})
    form("text", {"energon_grain": json.dumps(cursor)})
    form("nested text", {"loader": {"energon_grain": json.dumps(cursor)}, "epoch": 3})
    with loader(mix) as made:
        made.restore_state_rank(cursor)
        with ocp.CheckpointManager(tmp_path / "orbax") as manager:
            manager.save(9, args=ocp.args.Composite(data=EnergonCheckpointSave(made)))
        with ocp.CheckpointManager(tmp_path / "orbax-json") as manager:
            manager.save(9, args=ocp.args.Composite(data=ocp.args.JsonSave(made.save_state_rank())))
    (tmp_path / "grain").mkdir()
    (tmp_path / "grain" / "process_0-of-1.json").write_text(json.dumps(cursor))
    forms["grain"] = tmp_path / "grain"
    forms["orbax"] = tmp_path / "orbax"
    forms["orbax, its step"] = tmp_path / "orbax" / "9"
    forms["orbax, as JSON"] = tmp_path / "orbax-json"
    config = WorkerConfig(rank=0, world_size=1, num_workers=0)
    dataset = get_train_dataset(
        mix, worker_config=config, batch_size=8, shuffle_buffer_size=None, max_samples_per_sequence=None
    )
    with torch_loader(dataset) as made:
        made.restore_state_rank(cursor)
        content = {"model": {"w": torch.zeros(3)}, "data": made.state_dict(), "code": Path("x")}
        for name, state in {"stateful": made, "of a dictionary": {"state": made.state_dict()}, "raw": cursor}.items():
            forms[f"distributed, {name}"] = tmp_path / "steps" / name
            dcp.save({"w": torch.zeros(3), "loader": state}, checkpoint_id=forms[f"distributed, {name}"])
        forms["distributed, of many steps"] = tmp_path / "run"
        dcp.save({"loader": made, "step": 40}, checkpoint_id=tmp_path / "run" / "step-40")
    for name, zipped in {"torch": True, "torch of old": False}.items():
        forms[name] = tmp_path / f"{name}.pt"
        torch.save(content, forms[name], _use_new_zipfile_serialization=zipped)
    asked = ["which", mix, "--step", "45", "--batch-size", "8", "--json"]
    batch = run(*asked).stdout
    for name, file in forms.items():
        found = told(file)
        assert found["place"].startswith(str(file)), name
        assert {**found, "place": ""} == {**expected, "place": ""}, name
        assert run(*asked, "--state", file).stdout == batch


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_checkpoints_are_read_without_the_packages_that_wrote_them(mix: Path, state: Path, tmp_path: Path) -> None:
    import torch
    import torch.distributed.checkpoint as dcp

    content = {"loader": {"energon_grain": state.read_text()}, "model": torch.nn.Linear(2, 2).state_dict()}
    dcp.save(content, checkpoint_id=tmp_path / "distributed")
    torch.save(content, tmp_path / "one.pt")
    (tmp_path / "orbax").mkdir()
    (tmp_path / "orbax" / "energon_grain.json").write_text(state.read_text())
    program = (
        "import sys\n"
        "class Missing:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in ('torch', 'orbax', 'jax', 'grain'):\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Missing())\n"
        "from energon_grain.cli import main\n"
        "main()\n"
    )
    for name in ("distributed", "one.pt", "orbax"):
        command = [sys.executable, "-c", program, "checkpoint", "info", str(tmp_path / name), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["step"] == 40, name


class Harmful:
    """A pickle of it makes a file where it is loaded."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return Path.touch, (self.file,)


def test_no_checkpoint_runs_code(state: Path, tmp_path: Path) -> None:
    import torch

    harm = Harmful(tmp_path / "harm")
    torch.save({"data": json.loads(state.read_text()), "more": harm}, tmp_path / "one.pt")
    assert told(tmp_path / "one.pt")["step"] == 40
    (tmp_path / "distributed").mkdir()
    (tmp_path / "distributed" / ".metadata").write_bytes(pickle.dumps({"storage_data": harm}))
    done = run("checkpoint", "info", tmp_path / "distributed")
    assert isinstance(done.exception, StateError)
    assert "is damaged, or not of torch.distributed.checkpoint" in str(done.exception)
    assert not (tmp_path / "harm").exists()


def test_one_host_of_several(mix: Path, tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text(json.dumps(saved(mix, 3, hosts=4, host=1, batch_size=2)[0]))
    found = told(tmp_path / "one.json")
    assert (found["host"], found["hosts"], found["batches"]) == (1, 4, [[0, 8]])
    assert "host 1 of 4, for its lanes only" in run("checkpoint", "info", tmp_path / "one.json").output


class Dropping(DefaultTaskEncoder):
    def encode_sample(self, sample: Any) -> Any:
        if int(sample.__key__) % 4 == 0:
            raise SkipSample
        return sample


def test_drops_and_packs(mix: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state, _ = saved(mix, 20, task_encoder=Dropping())
    (tmp_path / "dropped.json").write_text(json.dumps(state))
    found = told(tmp_path / "dropped.json")
    assert found["dropped"] > 20
    assert found["fits_hosts"] == [1, 2, 3, 4, 6, 8, 12, 16, 24, 48]
    assert sum(leaf["draws"] for leaf in found["leaves"]) == pytest.approx(160 + found["dropped"])

    (tmp_path / "pairs_of_samples.py").write_text(
        "from energon_grain import DefaultTaskEncoder\n"
        "class Pairs(DefaultTaskEncoder):\n"
        "    def select_samples_to_pack(self, samples):\n"
        "        return [samples[at : at + 2] for at in range(0, len(samples), 2)]\n"
        "    def pack_selected_samples(self, samples):\n"
        "        return samples[0]\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    encoder = __import__("pairs_of_samples").Pairs()
    packed, _ = saved(mix, 30, task_encoder=encoder, packing_buffer_size=4, lanes=4)
    (tmp_path / "packed.json").write_text(json.dumps(packed))
    found = told(tmp_path / "packed.json")
    assert (found["held"], found["dropped"], [leaf["draws"] for leaf in found["leaves"]]) == (4, None, [None, None])
    assert "dropped samples are not counted" in run("checkpoint", "info", tmp_path / "packed.json").output
    options = ["--packing-buffer-size", "4", "--lanes", "4", "--task-encoder", "pairs_of_samples:Pairs"]
    compared = told(tmp_path / "packed.json", "--dataset", mix, *options)
    assert compared["differences"] == []
    drawn = [leaf["draws"] for leaf in compared["leaves"]]
    assert 480 <= sum(drawn) <= 480 + 8 * 4  # and what the lanes hold
    assert drawn[0] / sum(drawn) == pytest.approx(0.75, abs=0.05)


def test_what_differs_here(mix: Path, state: Path) -> None:
    assert told(state, "--dataset", mix)["differences"] == []
    found = told(state, "--dataset", mix, "--seed", "5", "--max-samples-per-sequence", "2", status=1)
    assert "seed: saved 0, now 5" in found["differences"]
    shown = run("checkpoint", "info", state, "--dataset", mix.parent / "large")
    assert shown.exit_code == 1
    assert "leaves.path/small/train//0: saved" in shown.output
    without = {
        name: value for name, value in json.loads(state.read_text()).items() if name not in ("manifest", "check")
    }
    state.write_text(json.dumps(without))
    assert told(state)["leaves"] == []
    assert "no manifest" in run("checkpoint", "info", state).output
    assert told(state, "--dataset", mix)["differences"] == []
    [line] = told(state, "--dataset", mix, "--seed", "5", status=1)["differences"]
    assert line.startswith("fingerprint: saved ")


def test_passes_of_validation(mix: Path, tmp_path: Path) -> None:
    config = WorkerConfig(rank=0, world_size=1, num_workers=0)
    dataset = get_val_dataset(mix.parent / "small", split_part="train", batch_size=4, worker_config=config)
    with get_savable_loader(dataset) as made:
        for _ in range(2):
            list(made)
        next(iter(made))
        (tmp_path / "val.json").write_text(json.dumps(made.save_state_rank()))
    found = told(tmp_path / "val.json")
    assert (found["pass_number"], found["pass_step"], found["item"], found["step"]) == (2, 1, 4, 7)
    assert found["leaves"][0]["epochs"] == pytest.approx(2.4)
    assert "step 1 of it" in run("checkpoint", "info", tmp_path / "val.json").output


def test_what_is_no_state(state: Path, mix: Path, tmp_path: Path) -> None:
    import torch

    cursor = json.loads(state.read_text())
    files: dict[str, tuple[Any, str]] = {
        "cut": ("{", "expected a saved state as JSON"),
        "none": ({"weights": {"w": 1}}, "holds no state of a loader"),
        "damaged": ({**cursor, "step": 41}, "damaged"),
        "part": ({name: cursor[name] for name in ("version", "step")}, "the state's"),
        "hosts": ([cursor, cursor], "of all hosts"),
        "text": ({"energon_grain": "{"}, "is not JSON"),
    }
    for name, (value, said) in files.items():
        file = tmp_path / f"{name}.json"
        file.write_text(value if isinstance(value, str) else json.dumps(value))
        done = run("checkpoint", "info", file)
        assert isinstance(done.exception, StateError), name
        assert said in str(done.exception), name
        assert str(file) in str(done.exception), name
    (tmp_path / "two.json").write_text(json.dumps({"train": cursor, "val": cursor}))
    assert [each["step"] for each in told(tmp_path / "two.json")] == [40, 40]
    done = run("which", mix, "--step", "0", "--batch-size", "8", "--state", tmp_path / "two.json")
    assert "two.json: train, " in str(done.exception)
    torch.save({"data": cursor}, tmp_path / "whole.pt")
    (tmp_path / "cut.pt").write_bytes((tmp_path / "whole.pt").read_bytes()[:500])
    done = run("checkpoint", "info", tmp_path / "cut.pt")
    assert isinstance(done.exception, StateError)
    assert "is damaged, or not a file of torch.save" in str(done.exception)
    (tmp_path / "weights.bin").touch()
    os.truncate(tmp_path / "weights.bin", (1 << 30) + 1)  # a hole, which nobody reads
    assert "it has more than 1 GiB" in str(run("checkpoint", "info", tmp_path / "weights.bin").exception)
    assert "no such file" in str(run("checkpoint", "info", tmp_path / "nowhere").exception)
    assert isinstance(run("checkpoint", "info", state, "--seed", "3").exception, ConfigError)
