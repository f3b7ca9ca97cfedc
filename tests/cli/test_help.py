"""`--help` of every command: whole option names at 80 columns, descriptions, examples that run, exit codes."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from cli_runs import run
from metadatasets import write_v2
from preview_data import picture

from energon_grain import WorkerConfig, get_savable_loader, get_val_dataset
from energon_grain.cli.app import COMMANDS, EXAMPLES, PROGRAM, app
from energon_grain.testing import make_captioning_dataset

NAMES = [() if group == PROGRAM else (group,) for group in COMMANDS]
NAMES += [(*(() if group == PROGRAM else (group,)), name) for group, names in COMMANDS.items() for name in names]


def command_of(names: tuple[str, ...]) -> Any:
    """The command object, with its parameters."""
    context: Any = typer.main.get_command(app).make_context(PROGRAM, [], resilient_parsing=True)
    for name in names:
        found: Any = context.command.get_command(context, name)
        context = found.make_context(name, [], context, resilient_parsing=True)
    return context.command


def parameters() -> Iterator[tuple[tuple[str, ...], Any]]:
    for names in NAMES:
        yield from ((names, parameter) for parameter in command_of(names).params)


@pytest.mark.parametrize("columns", [80, 60, 200])
@pytest.mark.parametrize("names", NAMES, ids=" ".join)
def test_no_name_is_cut_and_no_line_is_too_long(
    names: tuple[str, ...], columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    shown = run(*names, "--help")
    assert shown.exit_code == 0, shown.output
    for parameter in command_of(names).params:
        for option in (*parameter.opts, *parameter.secondary_opts):
            wanted = option if option.startswith("-") else option.upper()
            assert re.search(rf"(?m)(^|[ ,/\[]){re.escape(wanted)}($|[ ,/\]])", shown.stdout), option
    assert "…:" not in shown.stdout
    examples = {f"  {example}" for example in command_of(names).examples}
    long = [line for line in shown.stdout.splitlines() if len(line) > min(columns, 100) and line not in examples]
    assert [line for line in long if not line.strip().startswith("--")] == []
    if columns == 80:
        assert long == []
        assert max(map(len, examples)) <= 80


def test_every_option_has_its_own_description() -> None:
    described: dict[str, set[str]] = {}
    for names, parameter in parameters():
        text = parameter.help or ""
        assert len(text) > 10, (names, parameter.name)
        assert not re.search(r"\bAs (in|to|for) ", text), (names, text)
        described.setdefault(f"{' '.join(names)}: {text}", set()).add(parameter.name)
    assert {text: options for text, options in described.items() if len(options) > 1} == {}


@pytest.mark.parametrize("names", NAMES, ids=" ".join)
def test_help_has_exit_codes_and_two_examples(names: tuple[str, ...]) -> None:
    shown = run(*names, "--help").stdout
    codes = shown.partition("Exit codes:\n")[2]
    assert [line.split()[0] for line in codes.splitlines()] == ["0", "1", "2", "130"]
    examples = shown.partition("Examples:\n")[2].partition("\n\n")[0].splitlines()
    assert len(examples) >= 2
    assert all(line.startswith(f"  {PROGRAM} {' '.join(names)}") for line in examples)


@pytest.mark.parametrize("names", NAMES, ids=" ".join)
def test_every_command_takes_quiet_verbose_and_json(names: tuple[str, ...]) -> None:
    options = {option for parameter in command_of(names).params for option in parameter.opts}
    is_group = names in ((), ("checkpoint",), ("cache",))
    assert is_group or {"-q", "--quiet", "-v", "--verbose", "--json"} <= options


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data that the examples name."""
    root = tmp_path_factory.mktemp("examples")
    make_captioning_dataset(root / "captions", n=96, shards=4)
    for name in ("tars", "more"):
        make_captioning_dataset(root / name, n=40, shards=10, prepared=False)
    for number in range(4):
        path = root / "photos" / ("cat" if number % 2 else "dog") / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture())
    keys = [f"{number:06d}" for number in range(96)]
    (root / "scores.csv").write_text("key,score\n" + "".join(f"{key},0.5\n" for key in keys))
    (root / "my_module.py").write_text("def count_tokens(parts):\n    return len(parts['txt'])\n")
    for pages in ("cache/pages", "cache/energon-grain/objects/pages"):
        (root / pages).mkdir(parents=True)
    write_v2(root, "mix.yaml", train={"blend": [{"path": "captions"}]})
    config = WorkerConfig(rank=0, world_size=1, num_workers=0)
    options: dict[str, Any] = {"batch_size": 2, "split_part": "train", "worker_config": config}
    with get_savable_loader(get_val_dataset(root / "captions", **options)) as loader:
        (root / "receipt.json").write_text(str(loader.receipt(allow_missing=True)))
        next(loader)
        (root / "state.json").write_text(json.dumps(loader.save_state_rank()))
    return root


FASTER = {"bench": ["--seconds", "0.01"]}
STATUS = {  # the state is of another run: there are differences, no blend to amend, and no step 100
    "energon-grain blame state.json captions --losses losses.csv -o bad.json": 1,
    "energon-grain blame state.json captions --losses losses.csv --html bad.html": 1,
    "energon-grain rewind state.json --to 100 -o old.json": 1,
    "energon-grain rewind state.json captions --to 100 -o old.json": 1,
    "energon-grain checkpoint info state.json --dataset captions": 1,
    "energon-grain when state.json captions 000123": 1,
    "energon-grain when state.json mix.yaml 000123 000456 --dataset captions --json": 1,
    "energon-grain seen state.json captions -o seen.parquet": 1,
    "energon-grain seen state.json mix.yaml --until 5000": 1,
    "energon-grain receipt state.json captions -o receipt.json": 1,
    "energon-grain verify receipt.json captions --batch-size 16": 1,
    "energon-grain checkpoint amend state.json --to mix.yaml --dry-run": 1,
    "energon-grain checkpoint amend state.json --to mix.yaml --exclude bad.txt": 1,
}


@pytest.mark.parametrize("example", dict.fromkeys(each for names in NAMES for each in command_of(names).examples))
def test_every_example_runs(example: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    program, *arguments = shlex.split(example)
    assert program == PROGRAM
    if arguments[0] == "prepare" and (folder / "tars/.nv-meta").exists():
        arguments.append("--force-overwrite")
    done = run(*arguments, *FASTER.get(arguments[0], []), answers="\n" * 8)
    assert done.exit_code == STATUS.get(example, 0), (done.output, done.exception)


def test_groups_have_examples_of_their_commands() -> None:
    assert EXAMPLES.keys() == COMMANDS.keys()


def test_quiet_leaves_out_reports_and_verbose_logs(folder: Path) -> None:
    loud = run("prepare", folder / "more", "--non-interactive", "--split-ratio", "1", "--crude")
    assert loud.output.count("\n") > 2
    again = ("prepare", folder / "more", "--tar-index-only", "-q")
    assert run(*again).output == ""
    whole = ("prepare", folder / "more", "--non-interactive", "--split-ratio=1", "--crude", "--force-overwrite")
    assert run(*whole, "--quiet").output == ""
    assert json.loads(run(*again, "--json").stdout)["samples"] == 40
    assert "96 samples" in run("info", folder / "captions", "-q").output
    assert "contradict" in str(run("info", folder / "captions", "-q", "-v").exception)


def test_verbose_and_quiet_set_the_level_of_the_log(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    (folder / "logs.py").write_text(
        "import logging\n"
        "def length(parts):\n"
        "    for level in ('debug', 'info', 'warning', 'error'):\n"
        "        getattr(logging.getLogger('energon_grain'), level)(f'says {level}')\n"
        "    return 1\n"
    )
    levels = ["debug", "info", "warning", "error"]
    for options, first in (("-vv", 0), ("-v", 1), ("-q", 3)):
        column = f"n{options.replace('-', '')}"
        done = run("measure", "captions", "--column", f"{column}=logs:length", "--num-workers", "0", options)
        assert done.exit_code == 0, done.output
        assert [level for level in levels if f"says {level}" in done.stderr] == levels[first:], options
