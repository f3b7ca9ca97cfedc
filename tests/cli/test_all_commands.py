"""What all commands have in common: `--json`, help, completion, and modules of the current folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cli_runs import commands, run
from metadatasets import write_v2
from patience import PATIENCE_S

from energon_grain import WorkerConfig, get_savable_loader, get_val_dataset
from energon_grain.cli.app import COMMANDS, Later, Listed
from energon_grain.testing import make_captioning_dataset, make_text_dataset

ENCODER = """
from energon_grain import DefaultTaskEncoder

class Talking(DefaultTaskEncoder):
    print("imported")

    def encode_sample(self, sample):
        print("encoded")
        return sample
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("all")
    make_text_dataset(root / "text", n=24, shards=4)
    make_captioning_dataset(root / "broken", n=24, shards=4, broken={3})
    make_text_dataset(root / "fresh", n=24, shards=4, prepared=False)
    (root / "lines.jsonl").write_text('{"a": 1}\n')
    (root / "talking.py").write_text(ENCODER)
    (root / "kept/pages").mkdir(parents=True)
    config = WorkerConfig(rank=0, world_size=1, num_workers=0)
    with get_savable_loader(get_val_dataset(root / "text", batch_size=2, worker_config=config)) as loader:
        next(loader)
        (root / "state.json").write_text(json.dumps(loader.save_state_rank()))
    (root / "losses.csv").write_text("step,loss\n" + "".join(f"{step},{step % 3}\n" for step in range(40)))
    join = {"join": [{"path": "text"}, {"path": "text"}]}
    write_v2(root, "mix.yaml", train={"blend": [join, {"path": "text"}]})
    return root


RUNS: list[tuple[list[str], dict[str, Any]]] = [
    (["prepare", "fresh", "--non-interactive", "--split-ratio", "1", "--crude"], {"samples": 24, "root": "fresh"}),
    (["prepare", "text", "--tar-index-only"], {"samples": 24}),
    (["prepare-media", "text", "--media-metadata-by-header"], {"samples": 24}),
    (["prepare", "lines.jsonl"], {"samples": 1, "path": "lines.jsonl"}),
    (["prepare", "mix.yaml"], {"removed": []}),
    (["measure", "text", "--column", "parts=builtins:len"], {"samples": 24, "path": "text"}),
    (["measure", "text", "--digest"], {"datasets": ["text"], "files": 4}),
    (["receipt", "state.json", "text", "--validation", "-o", "receipt.json"], {"step": 1, "batch": 2, "version": 1}),
    (["verify", "receipt.json", "text", "--validation"], {"differences": [], "configuration": True, "files": 4}),
    (["convert", "text", "records"], {"samples": 24, "container": "array-record", "target": "records"}),
    (["info", "text"], {"samples": 24, "path": "text"}),
    (["info", "mix.yaml", "--plot", "mix.svg"], {"samples": 36, "endless": True}),
    (["lint", "text"], {}),
    (["which", "text", "--step", "0", "--batch-size", "2"], {}),
    (["preview", "text", "--html", "page.html"], {"path": "text", "html": "page.html"}),
    (["checkpoint", "info", "state.json"], {"step": 1, "seed": 0}),
    (["blame", "state.json", "text", "--validation", "--losses", "losses.csv"], {"steps": 40, "replayed": False}),
    (["rewind", "state.json", "text", "--validation", "--to", "0", "-o", "old.json"], {"step": 0, "item": 0}),
    (["cache", "check", "kept"], {"pages": 0, "damaged_pages": 0}),
    (
        ["bench", "text", "--seconds", "0.01", "--workers", "0", "--task-encoder", "talking:Talking"],
        {"path": "text", "batch_size": 32},
    ),
    (["schema"], {"$schema": "http://json-schema.org/draft-07/schema#"}),
]


def test_every_command_is_tried() -> None:
    assert {arguments[0] for arguments, _ in RUNS} == commands()


@pytest.mark.parametrize(("arguments", "told"), RUNS, ids=[" ".join(arguments[:2]) for arguments, _ in RUNS])
def test_json_is_one_document_on_stdout(
    folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], told: dict[str, Any]
) -> None:
    """Whatever is said besides, by the command or by modules of the user, is said on stderr."""
    monkeypatch.chdir(folder)
    done = run(*arguments, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert {name: found[name] for name in told} == told
    assert ("encoded" in done.stderr) == ("bench" in arguments)


def test_findings_are_a_document_with_status_1(folder: Path) -> None:
    done = run("lint", folder / "broken", "--json", "--limit", "1")
    assert done.exit_code == 1
    (finding,) = json.loads(done.stdout)
    assert finding["where"] == "shard_000.tar/000003"


def test_of_an_error_stdout_has_nothing(folder: Path) -> None:
    for arguments in (["info", "nowhere"], ["prepare", "text"], ["which", "text"], ["info", "--no-such-option"]):
        done = command(*arguments, "--json", cwd=folder)
        assert done.returncode in (1, 2)
        assert done.stdout == ""
        assert done.stderr


def test_questions_go_to_stderr(folder: Path) -> None:
    done = run("prepare", folder / "fresh", "--force-overwrite", "--skip-dataset-yaml", "--json", answers="1,1,0\n")
    assert done.exit_code == 0, done.output
    assert {len(shards) for shards in json.loads(done.stdout)["split_parts"].values()} == {2}
    assert "Ratio of train, val and test" in done.stderr


def command(*arguments: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join(sys.path)
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "energon_grain.cli", *arguments],
        env={**os.environ, "PYTHONPATH": paths, "COLUMNS": "120", **environment},
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def test_help_has_headings() -> None:
    shown = command("-h").stdout
    for heading in ("Make datasets", "Look at datasets and mixtures", "Options"):
        assert f"\n\n{heading}:\n" in shown
    shown = command("prepare", "--help").stdout
    headings = ("Arguments", "Options", "Split", "Samples", "How it runs")
    places = [shown.index(f"\n\n{heading}:\n") for heading in headings]
    assert places == sorted(places)
    assert places[2] < shown.index("--split-ratio <") < places[3] < shown.index("--sample-type <") < places[4]
    assert '\'{"image": "jpg", "caption": "txt"}\'' in shown  # nothing is taken for markup
    assert "energon-grain prepare [OPTIONS]" in shown


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete(shell: str) -> None:
    variable = "_ENERGON_GRAIN_COMPLETE"
    script = command(**{variable: f"source_{shell}"}).stdout
    assert variable in script
    asked = {
        "bash": {"COMP_WORDS": "energon-grain in", "COMP_CWORD": "1"},
        "zsh": {"_TYPER_COMPLETE_ARGS": "energon-grain in"},
        "fish": {"_TYPER_COMPLETE_ARGS": "energon-grain in", "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
    }[shell]
    assert "info" in command(**{variable: f"complete_{shell}"}, **asked).stdout
    if shell == "bash":
        asked = {"COMP_WORDS": "energon-grain convert a b --to ", "COMP_CWORD": "5"}
        assert command(**{variable: "complete_bash"}, **asked).stdout.split() == ["array-record", "tar", "tars"]


def command_beside(folder: Path, *arguments: str, answers: str = "") -> subprocess.CompletedProcess[str]:
    """The command as it is installed: Python itself does not look in the current folder then (-P)."""
    program = [sys.executable, "-P", "-c", "from energon_grain.cli import main; main()", *arguments]
    return subprocess.run(
        program, cwd=folder, input=answers, text=True, capture_output=True, timeout=PATIENCE_S, check=False
    )


def test_modules_of_the_current_folder_are_found_where_an_option_names_them(tmp_path: Path) -> None:
    make_captioning_dataset(tmp_path / "data", n=24, shards=4, prepared=False)
    (tmp_path / "my_types.py").write_text(
        "from dataclasses import dataclass\nfrom energon_grain import Sample\n\n\n"
        "@dataclass\nclass Photo(Sample):\n    image: object\n    caption: str\n"
    )
    fields = '{"image": "jpg", "caption": "txt"}'
    split = ("prepare", "data", "--non-interactive", "--split-ratio", "1")
    done = command_beside(tmp_path, *split, "--sample-type", "my_types:Photo", "--field-map", fields)
    assert done.returncode == 0, done.stderr
    (tmp_path / "mixture.yaml").write_text(
        "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits: {train: {path: data}}\n"
    )
    for arguments in (
        ("lint", "data"),
        ("which", "data", "--step", "0", "--batch-size", "4"),
        ("info", "mixture.yaml"),
        ("bench", "data", "--seconds", "0.01", "--workers", "0"),
        ("lint", "mixture.yaml"),
    ):
        done = command_beside(tmp_path, *arguments, "--trust-module", "my_types")
        assert done.returncode == 0, (arguments, done.stderr)

    refused = command_beside(tmp_path, "which", "data", "--step", "0", "--batch-size", "4")
    assert (refused.returncode, "--trust-module my_types" in refused.stderr) == (1, True)
    missing = command_beside(
        tmp_path, *split, "--force-overwrite", "--sample-type", "not_here:Photo", "--field-map", fields
    )
    assert (missing.returncode, "not_here" in missing.stderr) == (2, True)

    missing = command_beside(
        tmp_path, "which", "data", "--step", "0", "--batch-size", "4", "--task-encoder", "not_here:Encoder"
    )
    assert missing.returncode == 2
    said = " ".join(missing.stderr.replace("│", " ").split())
    assert "not_here cannot be imported" in said
    assert "in the folder of not_here" in said

    answers = "y\n1\ny\nnot_here:Photo\nmy_types:Photo\njpg\ntxt\n"
    asked = command_beside(tmp_path, "prepare", "data", answers=answers)
    assert asked.returncode == 0, (asked.stdout, asked.stderr)
    assert "my_types" in (tmp_path / "data" / ".nv-meta" / "dataset.yaml").read_text()


@pytest.mark.parametrize(("name", "listed"), [each for group in COMMANDS.values() for each in group.items()])
def test_the_list_says_of_each_command_what_its_own_help_begins_with(name: str, listed: Listed) -> None:
    """The summary is kept beside the name, so that `--help` imports no command."""
    with Later(name, listed).make_context(name, [], resilient_parsing=True) as context:
        assert context.command.help.split("\n\n")[0] == listed.summary
