from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from cli_runs import run
from metadatasets import write_v2
from patience import PATIENCE_S

from energon_grain import ConfigError
from energon_grain.formats.nv_meta import read_info
from energon_grain.metadataset.documents import json_schema
from energon_grain.testing import make_text_dataset


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Datasets a (55 samples) and b (31)."""
    root = tmp_path_factory.mktemp("info")
    for name, n in (("a", 55), ("b", 31)):
        make_text_dataset(root / name, n=n, shards=2, seed=n)
        shards = list(read_info(root / name).shard_counts)
        (root / name / ".nv-meta" / "split.yaml").write_text(
            yaml.safe_dump({"split_parts": {"train": shards}, "exclude": []})
        )
    return root


SCHEDULED = {
    "blend": [{"path": "a", "name": "<pictures & more>"}, {"path": "b"}],
    "schedule": [{"from_position": 0, "weights": [1, 0]}, {"from_position": 4800, "weights": [1, 3]}],
}


def test_the_tree_is_shown(folder: Path) -> None:
    inner = {"weight": 1, "concat": [{"path": "a"}, {"path": "b"}]}
    path = write_v2(folder, train={"blend": [{"path": "b", "weight": 3, "subflavors": {"kind": "text"}}, inner]})
    shown = run("info", path)
    assert shown.exit_code == 0, shown.output
    assert [re.sub(r" {2,}", "|", line.strip()) for line in shown.output.splitlines()] == [
        f"{path}, split train: 3 datasets, 117 samples, endless",
        "",
        "samples|weight|share|seen in 1,000,000",
        "blend|117|100%",
        "├─ b #1|31|3|75%|24,194",
        "└─ concat|86|1|25%",
        "├─ a|55|15.99%|2,907",
        "└─ b #2|31|9.012%|2,907",
        "",
        "Subflavors",
        "b #1: kind=text",
    ]


def test_epochs_and_schedules_are_shown(folder: Path) -> None:
    shown = run(
        "info", write_v2(folder, train={"blend_epochized": [{"path": "a", "repetitions": 0.7}, {"path": "b"}]})
    ).output
    assert "69 positions an epoch" in shown
    assert re.search(r"├─ a +55 +0\.7 +55\.4% +0\.7\n", shown)
    shown = run("info", write_v2(folder, train=SCHEDULED)).output
    assert re.search(r"└─ b +31 +0 → 3 +0% → 75% +0 → 24,194\n", shown)
    assert shown.endswith("Shares change at position 4,800.\n")


def test_shares_in_both_units_are_shown_of_a_blend_inside(folder: Path) -> None:
    inner = {"blend": [{"path": "a"}, {"path": "b"}], "weight_unit": "bytes.txt", "weight": 1}
    path = write_v2(folder, train={"blend": [inner, {"path": "b", "weight": 3}]})
    lines = [re.sub(r" {2,}", "|", line.strip()) for line in run("info", path).output.splitlines()][2:7]
    assert lines[:3] == [
        "samples|weight|of bytes.txt|of samples|seen in 1,000,000",
        "blend|117|100%",
        "├─ blend|86|1|100%|25%",
    ]
    halves = [float(line.split("|")[4].rstrip("%")) for line in lines[3:5]]
    assert halves == pytest.approx([50, 50], abs=0.1)
    shown = json.loads(run("info", path, "--json").output)
    assert shown["weight_unit"] == "bytes.txt"
    assert [len(leaf["cost_shares"]) for leaf in shown["leaves"]] == [1, 1, 0]


def test_another_split(folder: Path) -> None:
    path = write_v2(folder, train={"path": "a"}, heldout={"path": "b", "split_part": "train"})
    assert "split heldout: 1 dataset, 31 samples" in run("info", path, "--split", "heldout").output


def test_json(folder: Path) -> None:
    summary = json.loads(run("info", write_v2(folder, train=SCHEDULED), "--json").output)
    assert summary["endless"] is True
    assert summary["leaves"][1]["shares"][1] == {"from_position": 4800, "share": 0.75, "exact": "3/4"}
    assert [child["leaf"] for child in summary["tree"]["children"]] == [0, 1]
    assert summary["leaves"][0]["name"] == "<pictures & more>"


def test_options_that_do_not_fit_are_refused(folder: Path) -> None:
    path = write_v2(folder, train={"path": "a"})
    for arguments, message in (
        ((path, "--dataset-config", "x.yaml"), "is a metadataset"),
        ((folder / "a", "--split", "val"), "no metadataset"),
    ):
        outcome = run("info", *arguments)
        assert isinstance(outcome.exception, ConfigError)
        assert message in str(outcome.exception)


def test_mistakes_are_one_red_line(folder: Path) -> None:
    path = write_v2(folder, train={"blend": [{"path": "a", "wieght": 2}]})
    done = subprocess.run(
        [sys.executable, "-m", "energon_grain.cli", "info", path],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert (done.returncode, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert "meta.yaml: $.splits.train.blend[0].wieght: there is no such key. Did you mean `weight`?" in line


def test_which_names_the_dataset_of_each_sample(folder: Path) -> None:
    path = write_v2(folder, train={"blend": [{"path": "a"}, {"path": "b"}]})
    first, _, *rows = run("which", path, "--step", "0", "--batch-size", "8").output.splitlines()
    assert first == f"Below {folder}/"
    assert {row.split()[-1].partition("/")[0] for row in rows} == {"a", "b"}


def test_schema() -> None:
    shown = run("schema")
    assert shown.exit_code == 0
    assert json.loads(shown.output) == json_schema()
