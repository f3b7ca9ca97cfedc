"""`examples/hub/train.py` on a dataset that is served over loopback."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hub_server import running_hub

PROGRAM = Path(__file__).parents[2] / "examples" / "hub" / "train.py"
URL = "hf://datasets/team/moods/train.jsonl"


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled, unavailable or uninitialized")
def test_it_learns_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("hub_example", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    program: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    moods = [("aha ", 1), ("oh no ", 0)]
    rows = [{"text": moods[number % 2][0] * (number % 7 + 1), "label": moods[number % 2][1]} for number in range(500)]
    with running_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        hub.commit("team/moods", {"train.jsonl": "".join(json.dumps(row) + "\n" for row in rows).encode()})
        torch.manual_seed(1)
        assert program.train(URL, tmp_path / "whole.pt", 40) < 0.1
        torch.manual_seed(1)
        program.train(URL, tmp_path / "parts.pt", 20)
        program.train(URL, tmp_path / "parts.pt", 40)
        assert hub.count("cdn") == 1  # what was read once is kept
    whole, parts = (torch.load(tmp_path / name) for name in ("whole.pt", "parts.pt"))
    assert whole["loader"] == parts["loader"]
    torch.testing.assert_close(whole["model"], parts["model"])
