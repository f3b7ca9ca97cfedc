"""`energon-grain prepare`, of folders and of metadatasets."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from beside_data import being_prepared, described, shard_counts, split_parts
from cli_runs import run
from metadatasets import write_v2
from patience import PATIENCE_S
from typer.testing import Result

from energon_grain import DatasetWriter
from energon_grain.errors import ConfigError, DatasetNotFoundError, RefusedError, TarError
from energon_grain.testing import make_captioning_dataset, make_text_dataset, write_tars


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_captioning_dataset(tmp_path / "data", n=20, shards=10, prepared=False)


def prepare(root: Path, *arguments: str, answers: Sequence[str] = ()) -> Result:
    text = "".join(f"{answer}\n" for answer in answers)
    return run("prepare", root, "--num-workers", "0", *arguments, answers=text)


def split_sizes(root: Path) -> dict[str, int]:
    return {name: len(shards) for name, shards in split_parts(root).items()}


def test_non_interactive(root: Path) -> None:
    done = prepare(
        root,
        "--non-interactive",
        "--split-ratio=8,1,1",
        "--sample-type=CaptioningSample",
        '--field-map={"image": "jpg", "caption": "txt"}',
    )
    assert done.exit_code == 0, done.output
    assert "20 samples in 10 shards" in done.output
    assert "train: 16 samples in 8 shards" in done.output
    assert split_sizes(root) == {"train": 8, "val": 1, "test": 1}
    assert described(root)["field_map"] == {"image": "jpg", "caption": "txt"}
    assert (root / ".nv-meta/index.sqlite").exists()


def test_all_flags(root: Path) -> None:
    done = prepare(
        root,
        "--non-interactive",
        "--split-parts=train:glob:shard_{000..005}.tar",
        "--split-parts=val:re:00[67]",
        "--split-parts=test:shard_{008,009}",
        "--exclude=009",
        "--crude",
        "--dataset-yaml-name=mine.yaml",
        "--no-sqlite",
        "--no-progress",
    )
    assert done.exit_code == 0, done.output
    assert split_sizes(root) == {"train": 6, "val": 2, "test": 1}
    assert described(root, "mine.yaml")["__class__"] == "CrudeWebdataset"
    assert not (root / ".nv-meta/index.sqlite").exists()
    again = prepare(root, "--non-interactive", "--split-ratio=1,0,0")
    assert isinstance(again.exception, ConfigError)
    again = prepare(root, "--non-interactive", "--split-ratio=1", "--force-overwrite", "--shuffle-tars")
    assert again.exit_code == 0, again.output
    assert split_parts(root)["train"] != list(shard_counts(root))
    assert "dataset.yaml: not written" in again.output


def _files(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_a_dry_run_prints_what_is_written_and_writes_nothing(root: Path) -> None:
    options = ("--non-interactive", "--split-ratio=8,1,1", "--crude")
    before = _files(root)
    shown = prepare(root, *options, "--dry-run")
    assert shown.exit_code == 0, shown.output
    document = json.loads(prepare(root, *options, "--dry-run", "--json").stdout)
    assert _files(root) == before
    lines = shown.output.splitlines()
    assert lines[0] == f"Plan: prepare {root}. Nothing was written."
    assert "  scan    10 tar files: shard_000.tar … shard_009.tar" in lines
    assert "  split   val: 1 shard: shard_008.tar" in lines
    assert "  write   10 tar index files: shard_000.tar.idx … shard_009.tar.idx" in lines
    assert not any(line.startswith(("  ask", "  remove", "  keep")) for line in lines)
    assert prepare(root, *options).exit_code == 0
    added = {name for name in _files(root) if name not in before}
    assert {name for name in added if "/columnar/" not in name} == {*document["write"]} - {".nv-meta/columnar/"}
    assert document["split_parts"] == split_parts(root)


def test_a_dry_run_lists_the_questions_and_asks_none(root: Path) -> None:
    assert prepare(root, "--non-interactive", "--split-ratio=1", "--crude").exit_code == 0
    before = _files(root)
    lines = prepare(root, "--dry-run", "--no-sqlite").output.splitlines()
    assert lines[0] == f"Plan: prepare {root} again. Nothing was written."
    assert [line.split()[0] for line in lines[1:4]] == ["ask", "ask", "scan"]
    assert "  ask     the ratio of train, val and test; 8,1,1 is proposed" in lines
    assert "  ask     the sample type, after the scan" in lines
    assert "  remove  .nv-meta/index.sqlite" in lines
    assert isinstance(prepare(root, "--dry-run", "--append").exception, DatasetNotFoundError)
    shutil.copy(root / "shard_000.tar", root / "zz.tar")
    lines = prepare(root, "--dry-run", "--append").output.splitlines()
    assert lines[:3] == [
        f"Plan: append new shards to {root}. Nothing was written.",
        "  scan    1 tar file: zz.tar",
        "  keep    10 shards indexed before",
    ]
    (root / "zz.tar").unlink()
    assert _files(root) == before


def test_dry_runs_of_single_files(tmp_path: Path) -> None:
    lines = tmp_path / "x.jsonl"
    lines.write_text('{"a": 1}\n')
    make_text_dataset(tmp_path / "a", n=4)
    make_text_dataset(tmp_path / "b", n=6)
    joined = write_v2(tmp_path, train={"join": [{"path": "a"}, {"path": "b"}]})
    before = _files(tmp_path)
    said = run("prepare", lines, "--dry-run").output
    assert said.splitlines()[1:] == [f"  read    {lines}: 9 bytes", f"  write   {lines}.idx"]
    assert json.loads(run("prepare", lines, "--dry-run", "--json").stdout)["write"] == f"{lines}.idx"
    document = json.loads(run("prepare", joined, "--dry-run", "--json").stdout)
    said = run("prepare", joined, "--dry-run").output
    assert _files(tmp_path) == before
    assert f"  join    {joined}: $.splits.train: " in said
    assert f"  write   {document[0]['write']}, unless a valid index exists" in said.splitlines()
    prepare_joins(joined)
    assert Path(document[0]["write"]).is_dir()
    assert "it has no joins" in run("prepare", write_v2(tmp_path, train={"path": "a"}), "--dry-run").output


def test_tar_index_only(root: Path) -> None:
    prepare(root, "--non-interactive", "--split-ratio=1", "--crude")
    (root / "shard_003.tar.idx").unlink()
    done = prepare(root, "--tar-index-only")
    assert done.exit_code == 0, done.output
    assert (root / "shard_003.tar.idx").exists()
    assert described(root)["__class__"] == "CrudeWebdataset"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--split-ratio"),
        (["--split-ratio=1", "--split-parts=a:b"], "not both"),
        (["--split-ratio=x"], "three numbers"),
        (["--split-parts=a:glob:none*"], "matches none"),
        (["--split-ratio=1", "--field-map={"], "not JSON"),
        (["--split-ratio=1", "--sample-type=TextSample", "--field-map=[]"], "not a mapping"),
        (["--split-ratio=1", "--sample-type=TextSample"], "needs a field map"),
        (["--split-ratio=1", "--skip-dataset-yaml", "--crude"], "contradicts"),
        (["--tar-index-only", "--crude"], "--tar-index-only keeps"),
        (["--split-ratio=1", "--ray-address=10.0.0.1:6379"], "is for --runner ray"),
    ],
)
def test_wrong_options(root: Path, arguments: list[str], message: str) -> None:
    done = prepare(root, "--non-interactive", *arguments)
    assert isinstance(done.exception, ConfigError)
    assert message in str(done.exception)
    assert not (root / ".nv-meta/.info.json").exists()


def test_compressed(root: Path) -> None:
    (root / "more.tgz").touch()
    done = prepare(root, "--non-interactive", "--split-ratio=1")
    assert isinstance(done.exception, TarError)
    assert "gzip -dc more.tgz > more.tar" in str(done.exception)


def test_wizard_with_proposals(root: Path) -> None:
    """Enter at every question but the type."""
    done = prepare(root, answers=["", "", "CaptioningSample", "", ""])
    assert done.exit_code == 0, done.output
    assert split_sizes(root) == {"train": 8, "val": 1, "test": 1}
    assert described(root)["field_map"] == {"image": "jpg", "caption": "txt"}
    assert "Sample '000000' of shard_000.tar: jpg" in done.output


def test_enter_takes_the_proposal_and_the_command_shown_does_the_same(root: Path) -> None:
    done = prepare(root, "-v", answers=["", "", ""])
    assert done.exit_code == 0, done.output
    assert "Proposal for these parts: CaptioningSample (image from jpg, caption from txt)" in done.output
    made = described(root)
    assert made["sample_type"]["__class__"] == "CaptioningSample"
    assert made["field_map"] == {"image": "jpg", "caption": "txt"}
    before = split_parts(root)
    shown = done.output.partition("without questions:\n")[2].strip()
    assert "--num-workers=0" in shown
    shutil.rmtree(root / ".nv-meta")
    again = run(*shlex.split(shown)[1:])
    assert again.exit_code == 0, again.output
    assert (described(root), split_parts(root)) == (made, before)
    assert "without questions" not in again.output


@pytest.mark.parametrize(
    ("parts", "name", "fields"),
    [
        ({"jpg": b"", "cls": b"3"}, "ImageClassificationSample", {"image": "jpg", "label": "cls"}),
        ({"png": b"", "json": {"caption": "a"}}, "CaptioningSample", {"image": "png", "caption": "json[caption]"}),
        ({"txt": b""}, "TextSample", {"text": "txt"}),
        ({"mp4": b"", "wav": b""}, "CrudeWebdataset", None),
        ({"jpg": b"", "json": {"other": 1}}, "CrudeWebdataset", None),
    ],
)
def test_proposals_follow_the_parts(
    tmp_path: Path, parts: dict[str, object], name: str, fields: dict[str, str] | None
) -> None:
    write_tars(tmp_path, [{"__key__": "a", **parts}])
    done = prepare(tmp_path, answers=["", "", ""])
    assert done.exit_code == 0, done.output
    made = described(tmp_path)
    assert made.get("sample_type", made)["__class__"] == name
    assert made.get("field_map") == fields


def test_without_a_terminal_the_error_has_a_command_that_works(root: Path) -> None:
    done = prepare(root, "--no-sqlite")
    assert isinstance(done.exception, ConfigError)
    shown = str(done.exception).rpartition("\n")[2].strip()
    again = run(*shlex.split(shown)[1:])
    assert again.exit_code == 0, again.output
    assert described(root)["field_map"] == {"image": "jpg", "caption": "txt"}
    assert not (root / ".nv-meta/index.sqlite").exists()


def test_wizard_asks_again(root: Path) -> None:
    answers = ["x", "1,1,1,1", "train=9,extra=1", "y", "99", "Caption", "0", "jpeg", "jpg", "json[a]", "txt"]
    done = prepare(root, answers=answers)
    assert done.exit_code == 0, done.output
    assert split_sizes(root) == {"train": 9, "extra": 1}
    assert "Did you mean CaptioningSample" in done.output
    assert "There is no part 'jpeg'" in done.output
    assert "There is no part 'json'" in done.output


def test_wizard_optional_fields_and_json(tmp_path: Path) -> None:
    write_tars(tmp_path, [{"__key__": "a", "png": b"", "json": {"question": "what?", "answers": ["a", "b", "c", "d"]}}])
    done = prepare(tmp_path, answers=["", "y", "VQASample", "", "json[question]", "json[answers]", ""])
    assert done.exit_code == 0, done.output
    assert '"question": "what?"' in done.output
    assert described(tmp_path)["field_map"] == {
        "image": "png",
        "context": "json[question]",
        "answers": "json[answers]",
    }
    assert split_sizes(tmp_path) == {"train": 1}


def test_a_required_field_without_a_proposal_says_so(tmp_path: Path) -> None:
    """Enter does not repeat the question without a word."""
    write_tars(tmp_path, [{"__key__": "a", "png": b"", "json": {"q": "what?"}}])
    done = prepare(tmp_path, answers=["", "y", "VQASample", "", "", "", "json[q]", "", ""])
    assert done.exit_code == 0, done.output
    assert done.output.count("context is required, and no part fits it by name. Parts: png, json.") == 2
    assert described(tmp_path)["field_map"] == {"image": "png", "context": "json[q]"}


def test_wizard_crude_overwrite_and_no(root: Path) -> None:
    assert prepare(root, answers=["8,2,0", "n"]).exit_code == 0
    assert not (root / ".nv-meta/dataset.yaml").exists()
    assert prepare(root, answers=["n"]).exit_code == 1
    assert split_sizes(root) == {"train": 8, "val": 2}
    done = prepare(root, answers=["y", "1,1,1", "y", "CrudeWebdataset"])
    assert done.exit_code == 0, done.output
    assert described(root)["__class__"] == "CrudeWebdataset"
    assert split_sizes(root) == {"train": 4, "val": 3, "test": 3}


def test_wizard_with_the_type_given(root: Path) -> None:
    done = prepare(root, "--split-ratio=1", "--sample-type=ImageSample", answers=[""])
    assert done.exit_code == 0, done.output
    assert described(root)["field_map"] == {"image": "jpg"}


def test_input_that_ends_early(root: Path) -> None:
    for answers in ([], [""]):
        done = prepare(root, answers=answers)
        assert isinstance(done.exception, ConfigError)
        assert "not a terminal: give --non-interactive, with --split-ratio" in str(done.exception)
        assert not (root / ".nv-meta/.info.json").exists()
    done = prepare(root, "--non-interactive", "--split-ratio=1", "--skip-dataset-yaml")
    assert "10 shards had been scanned by an interrupted run" in done.output


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    line = [sys.executable, "-W", "error", "-m", "energon_grain.cli", *arguments]
    return subprocess.run(line, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)


def test_a_write_that_was_killed_before_its_first_shard(tmp_path: Path) -> None:
    writer = DatasetWriter(tmp_path / "new")
    writer.write({"__key__": "a", "txt": "x"})
    writer.abandon()
    done = prepare(tmp_path / "new", "--non-interactive", "--split-ratio=1")
    assert isinstance(done.exception, RefusedError)
    assert "a write into this folder is not finished" in str(done.exception)


def test_errors_are_one_line(tmp_path: Path) -> None:
    done = command("prepare", str(tmp_path), "--non-interactive", "--split-ratio=1")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"Error: {tmp_path}: no *.tar files")
    assert done.stderr.count("\n") == 1


def test_what_is_refused_has_status_1_and_what_is_wrong_status_2(root: Path) -> None:
    arguments = ("prepare", str(root), "--non-interactive", "--split-ratio=1", "--num-workers=0")
    for wrong in (["--split-ratio=x"], ["--no-such-option"], ["--skip-dataset-yaml", "--crude"]):
        assert command(*arguments, *wrong).returncode == 2
    assert command(*arguments).returncode == 0
    again = command(*arguments)
    assert (again.returncode, again.stderr.count("\n")) == (1, 1)
    assert "already prepared" in again.stderr
    with being_prepared(root):
        assert command(*arguments, "--force-overwrite").returncode == 1
    assert command("convert", str(root), str(root)).returncode == 1  # not an empty folder


def test_real_processes(tmp_path: Path) -> None:
    """Enough data for forked children."""
    write_tars(tmp_path, ({"__key__": f"{i:04d}", "bin": bytes(1 << 16)} for i in range(300)), samples_per_shard=60)
    done = command("prepare", str(tmp_path), "--non-interactive", "--split-ratio=3,1,1", "--crude", "--num-workers=3")
    assert (done.returncode, done.stderr) == (0, "")
    assert "300 samples in 5 shards" in done.stdout


def test_light_imports() -> None:
    """Numpy takes a tenth of a second, which `--help` need not."""
    program = (
        "import sys; from energon_grain.cli.app import app; print({'numpy', 'yaml', 'rich.progress'} & {*sys.modules})"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.stdout == "set()\n"
    helped = command("--help")
    assert helped.returncode == 0
    assert all(name in helped.stdout for name in ("prepare", "info", "lint", "which"))
    assert command("--version").stdout.startswith("energon-grain ")


def prepare_joins(path: Path) -> str:
    result = run("prepare", path)
    assert result.exit_code == 0, result.output
    return result.output


def test_joins_are_indexed_once(tmp_path: Path) -> None:
    make_text_dataset(tmp_path / "a", n=30, shards=3)
    make_text_dataset(tmp_path / "b", n=20, shards=2)
    join = {"join": [{"path": "a"}, {"path": "b", "nonmatch": "skip"}]}
    path = write_v2(tmp_path, train={"blend": [join, {"path": "a"}]})
    said = prepare_joins(path)
    assert ": 10 rows joined, in meta.yaml.cache" in said
    assert "10 samples of the first dataset without a row" in said
    cache = tmp_path / "meta.yaml.cache"
    files = {file: file.stat().st_mtime_ns for file in cache.rglob("*") if file.is_file()}
    assert files
    assert ": 10 rows up to date, in meta.yaml.cache" in prepare_joins(path)
    assert {file: file.stat().st_mtime_ns for file in cache.rglob("*") if file.is_file()} == files


def test_without_joins_there_is_nothing_to_do(tmp_path: Path) -> None:
    make_text_dataset(tmp_path / "a", n=5)
    assert "no joins, nothing to prepare" in prepare_joins(write_v2(tmp_path, train={"path": "a"}))


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    make_text_dataset(tmp_path / "a", n=30, shards=3)
    make_text_dataset(tmp_path / "b", n=20, shards=2)
    path = write_v2(tmp_path, train={"join": [{"path": "a"}, {"path": "b"}]})
    result = run("prepare", path)
    assert result.exit_code != 0
    assert "nonmatch" in str(result.exception or result.output)
