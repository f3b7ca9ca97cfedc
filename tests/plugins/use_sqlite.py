"""Uses an installed kind in every way; `first` saves a state, `second` goes on."""

import json
import sqlite3
import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from typer.testing import CliRunner

from energon_grain import (
    Cooker,
    DefaultTaskEncoder,
    FileStore,
    Sample,
    WorkerConfig,
    basic_sample_keys,
    get_savable_loader,
    get_train_dataset,
    stateless,
)
from energon_grain.cli.app import app
from energon_grain.sources.kinds import kind_at
from energon_grain.testing import check_kind, make_text_dataset

COUNT = 40
PLAIN = {
    "batch_size": None,
    "shuffle_buffer_size": None,
    "max_samples_per_sequence": None,
    "repeat": False,
}
SETS = {
    "blend": "blend: [{weight: 2, path: rows.sqlite3}, {weight: 1, path: texts}]",
    "aux": "{path: lines.jsonl, aux: {rows: rows.sqlite3}}",
    "join": "join: [{path: rows.sqlite3}, {path: lines.jsonl}]\n"
    "    joiner: {__module__: __main__, __class__: Joined}",
}
HEAD = """
__module__: megatron.energon
__class__: MetadatasetV2
splits:
  train:
    """


@dataclass
class Joined(Sample):
    text: str
    number: int

    @staticmethod
    def from_joined(rows, lines):
        return Joined(
            **basic_sample_keys(rows), text=rows["txt"], number=lines["json"]["n"]
        )


@stateless
def cook(sample, rows: FileStore):
    """The text of the row that the line names."""
    text = rows.get(f"{sample['json']['n']}.txt", sample)
    return {**basic_sample_keys(sample), "text": text}


class Encoder(DefaultTaskEncoder):
    cookers = (Cooker(cook),)


def write() -> None:
    with closing(sqlite3.connect("rows.sqlite3")) as file:
        file.execute(
            "CREATE TABLE samples (txt TEXT, bin BLOB, score REAL, n INTEGER)"
        )
        rows = [
            (
                f"text {i} ä",
                None if i % 3 else bytes(i),
                None if i % 5 == 0 else i / 7,
                i,
            )
            for i in range(COUNT)
        ]
        file.executemany("INSERT INTO samples VALUES (?, ?, ?, ?)", rows)
        file.commit()
    Path("lines.jsonl").write_text("".join(f'{{"n": {i}}}\n' for i in range(COUNT)))
    for name, text in SETS.items():
        Path(f"{name}.yaml").write_text(HEAD + text)
    make_text_dataset("texts", n=30, shards=2)


def command(*arguments: str) -> str:
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, (arguments, done.output, done.exception)
    return done.output


def train(path: str, **options):
    dataset = get_train_dataset(
        path,
        worker_config=WorkerConfig(0, 1, 0),
        trusted_modules=["__main__"],
        **{**PLAIN, **options},
    )
    return get_savable_loader(dataset)


def read(path: str, **options):
    with train(path, **options) as loader:
        return list(loader)


def use() -> None:
    kind = kind_at("rows.sqlite3")
    assert kind.name == "sqlite"
    check_kind(kind, "rows.sqlite3")
    assert sorted(sample["txt"] for sample in read("rows.sqlite3")) == sorted(
        f"text {i} ä" for i in range(COUNT)
    )
    kept = read("rows.sqlite3", where="score > 3 and n % 2 == 0")
    assert {sample["txt"] for sample in kept} == {
        f"text {i} ä" for i in range(22, COUNT, 2) if i % 5
    }
    parts = [
        {
            sample["__key__"]
            for sample in read(
                "rows.sqlite3", split_part=part, split_ratio="train:3,val:1"
            )
        }
        for part in ("train", "val")
    ]
    assert len(parts[0] | parts[1]) == COUNT
    assert [len(part) for part in parts] == [30, 10]
    assert "40 samples" in command("info", "rows.sqlite3")
    assert json.loads(command("info", "--json", "rows.sqlite3"))["samples"] == COUNT
    assert "No problems in 40 samples" in command("lint", "rows.sqlite3")
    assert "text 0" in command("preview", "rows.sqlite3")
    command("convert", "rows.sqlite3", "tars")
    command("convert", "tars", "records")
    assert "40 samples" in command("info", "records")
    cooked = read("aux.yaml", task_encoder=Encoder())
    assert sorted(sample["text"] for sample in cooked) == sorted(
        f"text {i} ä" for i in range(COUNT)
    )
    joined = read("join.yaml")
    assert len(joined) == COUNT
    assert all(sample.text == f"text {sample.number} ä" for sample in joined)


def steps(loader) -> list:
    found = [next(loader) for _ in range(7)]
    return [[sample["__key__"], str(sample["__restore_key__"])] for sample in found]


if __name__ == "__main__":
    endless = {"repeat": True}
    if sys.argv[1] == "first":
        write()
        use()
        with train("blend.yaml", **endless) as loader:
            steps(loader)
            Path("state.json").write_text(json.dumps(loader.save_state_rank()))
            Path("expected.json").write_text(json.dumps(steps(loader)))
    else:
        with train("blend.yaml", **endless) as loader:
            loader.restore_state_rank(json.loads(Path("state.json").read_text()))
            assert json.loads(json.dumps(steps(loader))) == json.loads(
                Path("expected.json").read_text()
            )
