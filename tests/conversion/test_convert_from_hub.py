"""Data of the Hub become shards of this machine, whenever the conversion is killed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hub_server import running_hub
from parquet_files import write_numbers
from records import msgpack_record, write_shards

from energon_grain import get_train_dataset
from energon_grain.prepare import prepare_dataset
from energon_grain.testing import make_text_dataset

KILLS = int(os.environ.get("KILLS", "4"))
"""In each form: 20 in `KILLS=20 python -m pytest tests/conversion/test_convert_from_hub.py`."""
PROGRAM = """
import random, shutil, sys
from pathlib import Path
import energon_grain.conversion, pyarrow.parquet, urllib3
from killing import _files, _run
url, folder, to, kills = sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
def convert(root):
    energon_grain.conversion.convert_dataset(
        url, root / "new", to=to, shard_samples=4 if sys.argv[5] == "cut" else None, num_workers=0, sqlite=False
    )
folder.mkdir()
(folder / "whole").mkdir()
status, told = _run(folder / "whole", convert)
assert status == 0, told
expected, root, done, finished = _files(folder / "whole"), folder / "killed", 0, 0
chosen = random.Random(url)
while done < kills or not finished:
    root.mkdir(exist_ok=True)
    status, told = _run(root, convert, kill_at=chosen.randrange(1, 60) if done < kills else None)
    assert status in (0, -9), (status, told)
    done += status == -9
    if status == 0:
        assert _files(root) == expected, sorted(expected.items() ^ _files(root).items())
        finished += 1
        shutil.rmtree(root)
print(done, finished)
"""


def _lines(root: Path) -> None:
    (root / "x.jsonl").write_text("".join(f'{{"text": "line {i}"}}\n' for i in range(24)))


def _records(root: Path) -> None:
    samples = [{"__key__": f"{i:04d}", "txt": f"text {i}".encode()} for i in range(24)]
    write_shards(root / "x", [msgpack_record(sample) for sample in samples], 6)
    prepare_dataset(root / "x", records="msgpack", crude=True, split_ratio=[1], num_workers=0)


FORMS: dict[str, tuple[Callable[[Path], object], str, str, str]] = {
    "parquet": (lambda root: write_numbers(root / "x.parquet", 24), "x.parquet", "tar", "cut"),
    "lines": (_lines, "x.jsonl", "array-record", "cut"),
    "bare tars": (lambda root: make_text_dataset(root / "x", n=24, shards=3, prepared=False), "x", "tar", "cut"),
    "prepared tars": (lambda root: make_text_dataset(root / "x", n=24, shards=6), "x", "array-record", ""),
    "array records": (_records, "x", "tar", ""),
}


def keys(path: str, **more: Any) -> list[str]:
    shuffle: dict[str, Any] = {"shuffle_buffer_size": None, "max_samples_per_sequence": None, "repeat": False}
    return sorted(sample["__key__"] for sample in get_train_dataset(path, batch_size=None, **shuffle, **more))


@pytest.mark.parametrize("form", FORMS)
def test_a_conversion_from_the_hub_goes_on_whenever_it_is_killed(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, name, to, cut = FORMS[form]
    (tmp_path / "data").mkdir()
    make(tmp_path / "data")
    with running_hub() as hub:
        hub.commit("team/x", tmp_path / "data")
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])}
        command = [sys.executable, "-c", PROGRAM, f"hf://datasets/team/x/{name}", tmp_path / "new", to, str(KILLS), cut]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    assert int(done.stdout.split()[0]) >= KILLS
    assert keys(str(tmp_path / "new/whole/new")) == keys(str(tmp_path / "data" / name))
