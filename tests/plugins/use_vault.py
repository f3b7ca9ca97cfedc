"""Uses an installed store in every way; `first` saves a state, `second` goes on."""

import json
import os
import sys
from pathlib import Path

from typer.testing import CliRunner

from energon_grain import EPath, WorkerConfig, get_savable_loader, get_train_dataset
from energon_grain.cli.app import app
from energon_grain.testing import check_object_store, make_text_dataset


def command(*arguments: str) -> str:
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, (arguments, done.output, done.exception)
    return done.output


def train(path: str, **options):
    dataset = get_train_dataset(
        path,
        worker_config=WorkerConfig(0, 1, **options),
        batch_size=4,
        shuffle_buffer_size=10,
        max_samples_per_sequence=4,
    )
    return get_savable_loader(dataset)


def steps(loader, count: int) -> list:
    return [list(next(loader)["__key__"]) for _ in range(count)]


def use() -> None:
    check_object_store("vault://checked/folder")
    make_text_dataset("texts", n=60, shards=3, prepared=False)
    for tar in Path("texts").glob("*.tar"):
        EPath(f"vault://texts/{tar.name}").write_bytes(tar.read_bytes())
    for path in ("vault://texts", "texts"):
        command(
            "prepare",
            path,
            "--non-interactive",
            "--crude",
            "--split-ratio",
            "1,0,0",
        )
    assert json.loads(command("info", "--json", "vault://texts"))["samples"] == 60
    assert "No problems in 60 samples" in command("lint", "vault://texts")
    assert "000000" in command("preview", "vault://texts")


if __name__ == "__main__":
    os.environ["VAULT"] = "vault.sqlite3"
    os.environ["XDG_CACHE_HOME"] = str(Path("cache").absolute())
    if sys.argv[1] == "first":
        use()
        with train("texts") as loader:
            expected = steps(loader, 12)
        with train("vault://texts", num_workers=2, worker_type="process") as loader:
            assert steps(loader, 5) == expected[:5]
            Path("state.json").write_text(json.dumps(loader.save_state_rank()))
            Path("expected.json").write_text(json.dumps(expected[5:]))
    else:
        with train("vault://texts") as loader:
            loader.restore_state_rank(json.loads(Path("state.json").read_text()))
            assert steps(loader, 7) == json.loads(Path("expected.json").read_text())
