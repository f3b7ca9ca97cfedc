"""Paths of either kind: the same methods give the same, on a disk, in a bucket and in memory."""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cli_runs import run
from hypothesis import given, strategies as st
from metadatasets import v2
from object_server import Bucket, Fault
from patience import PATIENCE_S
from web_server import running_web_server

from energon_grain import (
    EPath,
    MissingObjectError,
    ReadError,
    StorageSettings,
    StoreSettings,
    Stream,
    WebdatasetFileStore,
    WebDatasetSource,
    WorkerConfig,
    get_train_dataset,
    load_dataset,
    prepare_metadataset,
    traverse_metadataset,
    use_storage,
)
from energon_grain.errors import ConfigError
from energon_grain.kinds.jsonl.prepare import prepare_jsonl
from energon_grain.prepare import prepare_dataset
from energon_grain.prepare.lint import lint_dataset
from energon_grain.prepare.summary import summarize_dataset
from energon_grain.storage.epath import folders_of_glob, glob_to_regex
from energon_grain.testing import make_text_dataset

TEXT = "Zeile\r\n\n見\n"


@pytest.fixture(params=["path", "s3", "memory", "msc"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, bucket: Bucket) -> EPath:
    if request.param == "path":
        return EPath(tmp_path / "folder")
    if request.param == "msc":
        use_storage(StorageSettings(stores={"msc://team": StoreSettings(location=f"{bucket.url}/prefix")}))
        return EPath("msc://team/folder")
    return EPath(f"{bucket.url if request.param == 's3' else f'memory://{bucket.name}'}/folder")


def test_what_is_written_is_read(folder: EPath) -> None:
    file = folder / "sub/a b.txt"
    assert not file.exists()
    assert not folder.is_dir()
    file.write_text(TEXT)
    assert file.read_bytes() == TEXT.encode()
    assert file.read_text() == TEXT
    assert file.size() == file.stat().content_length == len(TEXT.encode())
    assert abs(file.stat().last_modified.timestamp() - time.time()) < PATIENCE_S
    assert (file.is_file(), file.is_dir(), file.exists()) == (True, False, True)
    assert (folder.is_file(), folder.is_dir(), folder.exists()) == (False, True, True)
    (folder / "empty").write_bytes(b"")
    assert (folder / "empty").is_file()
    assert (folder / "empty").read_bytes() == b""
    file.write_bytes(b"other")
    assert file.read_text() == "other"
    file.unlink()
    assert not file.exists()


def test_files_are_opened_as_pythons_are(folder: EPath) -> None:
    content = os.urandom(3 << 20)
    with (folder / "x").open("wb") as file:
        for start in range(0, len(content), 1 << 20):
            file.write(content[start : start + (1 << 20)])
    for prefetch in (False, True):
        with (folder / "x").open("rb", prefetch_file=prefetch) as file:
            assert file.read(10) == content[:10]
            assert file.seek(-5, os.SEEK_END) == len(content) - 5
            assert file.read() == content[-5:]
            assert file.seek(1 << 20) == 1 << 20
            assert file.read(100) == content[1 << 20 : (1 << 20) + 100]
            assert file.seek(10, os.SEEK_CUR) == file.tell() == (1 << 20) + 110
            assert file.read(1) == content[(1 << 20) + 110 :][:1]
            file.seek(len(content) + 5)
            assert file.read() == b""
            with pytest.raises((ValueError, OSError)):
                file.seek(-1)
    with (folder / "t").open("w") as text:
        text.write(TEXT)
    for prefetch in (False, True):
        with (folder / "t").open(prefetch_file=prefetch) as text:
            assert list(text) == TEXT.splitlines(keepends=True)
    with pytest.raises(ConfigError, match="mode 'a'"):
        (folder / "x").open("a")  # type: ignore[call-overload]


@pytest.mark.parametrize("mode", ["w", "wb"])
def test_an_object_of_which_writing_fails_stays_as_it_was(bucket: Bucket, mode: str) -> None:
    path = EPath(bucket.url) / "x"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), path.open(mode) as file:  # type: ignore[call-overload]
        file.write("new" if mode == "w" else b"new")
        raise ZeroDivisionError
    assert path.read_text() == "old"


def test_what_is_not_there_is_a_file_not_found(folder: EPath) -> None:
    for read in (EPath.read_bytes, EPath.size, EPath.stat, lambda path: path.open("rb"), lambda path: path.open()):
        with pytest.raises(FileNotFoundError, match="nothing"):
            read(folder / "nothing")


def put(folder: EPath, *names: str) -> None:
    for name in names:
        (folder / name).write_text(name)


def test_files_below_are_listed(folder: EPath) -> None:
    put(folder, "b.tar", "a.tar", "sub/c.tar", "sub/deep/d.tar", "sub/e.txt", ".hidden/f.tar")
    put(folder.parent, "folder2/a.tar")

    def names(paths: Iterator[EPath]) -> list[str]:
        return sorted(path.relative_to(folder) for path in paths)

    assert names(folder.walk()) == [".hidden/f.tar", "a.tar", "b.tar", "sub/c.tar", "sub/deep/d.tar", "sub/e.txt"]
    assert [path.name for path in folder.iterdir()] == [".hidden", "a.tar", "b.tar", "sub"]
    assert names(folder.glob("*.tar")) == ["a.tar", "b.tar"]
    assert names(folder.glob("sub/*")) == ["sub/c.tar", "sub/e.txt"]
    assert names(folder.glob("**/*.tar")) == [".hidden/f.tar", "a.tar", "b.tar", "sub/c.tar", "sub/deep/d.tar"]
    assert names(folder.glob("[ab].tar")) == ["a.tar", "b.tar"]
    assert names((folder / "a.tar").walk()) == []


@pytest.mark.parametrize("there", ["path", "memory", "s3"])
def test_files_and_folders_are_copied_between_kinds(folder: EPath, bucket: Bucket, tmp_path: Path, there: str) -> None:
    target = {
        "path": EPath(tmp_path / "t"),
        "memory": EPath(f"memory://{bucket.name}/t"),
        "s3": EPath(bucket.url) / "t",
    }
    put(folder, "a", "sub/b")
    (folder / "a").copy(target[there] / "copy")
    assert (target[there] / "copy").read_text() == "a"
    folder.copy(target[there] / "all")
    assert sorted(path.relative_to(target[there]) for path in target[there].walk()) == ["all/a", "all/sub/b", "copy"]
    (folder / "a").move(target[there] / "moved")
    assert ((target[there] / "moved").read_text(), (folder / "a").exists()) == ("a", False)
    folder.move(target[there] / "rest")
    assert (target[there] / "rest/sub/b").read_text() == "sub/b"
    assert list(folder.walk()) == []


def test_what_is_not_there_is_neither_copied_nor_moved(folder: EPath, tmp_path: Path) -> None:
    target = EPath(tmp_path / "copy")
    for act in ((folder / "nothing").copy, (folder / "nothing").move):
        with pytest.raises(FileNotFoundError, match=rf"^{folder}/nothing: nothing to copy"):
            act(target)
    assert not target.exists()


def test_an_empty_folder_is_copied_as_nothing(tmp_path: Path) -> None:
    EPath(tmp_path).copy(EPath("memory://test/empty"))
    assert list(EPath("memory://test/empty").walk()) == []


def test_folders_are_made_on_this_machine_only(tmp_path: Path, bucket: Bucket) -> None:
    EPath(tmp_path / "a/b").mkdir()
    assert (tmp_path / "a/b").is_dir()
    path = EPath(bucket.url) / "a/b"
    path.mkdir()
    assert not path.exists()


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("s3://bucket/a/b.tar.idx", ("b.tar.idx", "b.tar", ".idx", "s3://bucket/a")),
        ("s3://bucket/a", ("a", "a", "", "s3://bucket")),
        ("s3://bucket", ("", "", "", "s3://bucket")),
        ("/a/b.tar", ("b.tar", "b", ".tar", "/a")),
        ("/", ("", "", "", "/")),
    ],
)
def test_steps(path: str, expected: tuple[str, ...]) -> None:
    given = EPath(path)
    assert (given.name, given.stem, given.suffix, str(given.parent)) == expected
    assert given.display_name == given.name
    assert given.url == str(given) == os.fspath(given) == path


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("s3://bucket/a//b/./c/", "s3://bucket/a/b/c"),
        ("s3://bucket/a/../b", "s3://bucket/b"),
        ("file:///a/../b", "/b"),
        ("msc://default/a/b", "/a/b"),
        ("a", os.path.abspath("a")),
        (Path("a/../b"), os.path.abspath("b")),
        (EPath("s3://bucket/a"), "s3://bucket/a"),
    ],
)
def test_paths_are_tidied(path: str | Path | EPath, text: str) -> None:
    assert str(EPath(path)) == text
    assert repr(EPath(path)) == f"EPath({text!r})"


@pytest.mark.parametrize(
    ("folder", "other", "found"),
    [
        ("s3://bucket/a", "b/c", "s3://bucket/a/b/c"),
        ("s3://bucket/a", "../b", "s3://bucket/b"),
        ("s3://bucket", "b", "s3://bucket/b"),
        ("s3://bucket", "/b", "/b"),
        ("s3://bucket", "gs://other/b", "gs://other/b"),
        ("/a", "../b", "/b"),
        ("/a", "s3://bucket/b", "s3://bucket/b"),
    ],
)
def test_joining(folder: str, other: str, found: str) -> None:
    assert str(EPath(folder) / other) == found
    assert EPath(folder) / EPath(found) == EPath(found)


def test_nothing_leads_out_of_a_bucket() -> None:
    for path in ("s3://bucket/../other", "s3://bucket/a/../../b"):
        with pytest.raises(ConfigError, match="leads out of the bucket"):
            EPath(path)
    with pytest.raises(ConfigError, match="leads out of the bucket"):
        EPath("s3://bucket/a") / "../../other"
    with pytest.raises(ValueError, match="is not below"):
        EPath("s3://bucket/a").relative_to(EPath("s3://other"))
    with pytest.raises(ValueError, match="'/b'"):
        EPath("s3://bucket/a").relative_to(EPath("s3://bucket/b"))


def test_names_are_changed(tmp_path: Path) -> None:
    assert str(EPath("s3://bucket/a.tar").with_suffix(".idx")) == "s3://bucket/a.idx"
    assert str(EPath("/x/a.tar").with_name("b")) == "/x/b"
    assert EPath(tmp_path).local_path() == tmp_path
    assert EPath(tmp_path).is_local()
    with pytest.raises(ValueError, match="s3://bucket is in an object store"):
        EPath("s3://bucket").local_path()


def test_they_are_values() -> None:
    one, same, other = EPath("s3://b/x/"), EPath("s3://b/x"), EPath("s3://b/a")
    assert one == same
    assert len({one, same, other, "s3://b/x"}) == 3
    assert sorted([one, other]) == [other, one]
    assert one >= other
    assert pickle.loads(pickle.dumps(one)) == one
    with pytest.raises(AttributeError, match="immutable"):
        one.url2 = "x"  # type: ignore[attr-defined]


def test_a_pickle_holds_no_settings() -> None:
    use_storage(StorageSettings(stores={"s3://b": StoreSettings(endpoint="http://secret")}))
    assert b"secret" not in pickle.dumps(EPath("s3://b/x"))


def test_failures_name_the_object(bucket: Bucket) -> None:
    use_storage(StorageSettings(attempts=1))
    path = EPath(bucket.url) / "x"
    failing: list[Callable[[], object]] = [path.is_file, path.is_dir, path.read_bytes, lambda: list(path.walk())]
    for call in failing:
        bucket.server.inject(Fault("status", times=None))
        with pytest.raises(ReadError, match=str(path)):
            call()
    bucket.server.reset()
    with pytest.raises(MissingObjectError):
        path.size()


def test_what_was_read_comes_out_of_the_cache(bucket: Bucket) -> None:
    path = EPath(bucket.url) / "x"
    path.write_bytes(os.urandom(2 << 20))
    for turn in range(2):
        bucket.server.reset()
        with path.open("rb") as file:
            file.read()
        sent = sum(request.sent_bytes for request in bucket.server.requests("/x"))
        assert (sent >= 2 << 20) == (turn == 0)


def test_a_web_server_has_files_and_no_lists(tmp_path: Path) -> None:
    (tmp_path / "x").write_text(TEXT)
    with running_web_server(tmp_path) as server:
        path = EPath(server.url) / "x"
        assert (path.is_file(), path.read_text(), path.size()) == (True, TEXT, len(TEXT.encode()))
        assert not (path.parent / "y").is_file()
        with pytest.raises(ReadError, match="does not support listing"):
            list(path.parent.walk())


def test_it_is_made_without_loading_what_reads_stores() -> None:
    script = (
        "import sys, energon_grain; energon_grain.EPath('s3://b/x').parent; "
        "assert not {'tensorstore', 'obstore', 'yaml', 'multistorageclient', 'boto3'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", script], check=True, timeout=PATIENCE_S)


def test_all_that_takes_a_path_takes_one(bucket: Bucket, tmp_path: Path) -> None:
    for folder in (EPath(tmp_path / "here"), EPath(bucket.url)):
        EPath(make_text_dataset(tmp_path / "bare", n=20, shards=2, prepared=False)).copy(folder / "set")
        prepare_dataset(folder / "set", split_ratio=(1, 0, 0), sample_type="TextSample", field_map={"text": "txt"})
        (folder / "lines.jsonl").write_text('{"a": 1}\n{"a": 2}\n')
        prepare_jsonl(folder / "lines.jsonl")
        leaf = {"path": "set"}
        splits = {
            "train": {"concat": [leaf, {"path": "lines.jsonl"}]},
            "join": {"join": [leaf, leaf], "split_part": "train"},
        }
        (folder / "both.yaml").write_text(json.dumps(v2(**splits)))
        prepare_metadataset(folder / "both.yaml")
        for name, count in (("set", 20), ("both.yaml", 22), ("lines.jsonl", 2)):
            dataset = get_train_dataset(
                folder / name,
                worker_config=WorkerConfig(0, 1, 0),
                batch_size=None,
                shuffle_buffer_size=None,
                max_samples_per_sequence=None,
            )
            assert len(dataset) == count
            with Stream.of(dataset) as stream:
                next(stream)
        assert load_dataset(folder / "both.yaml").file == str(folder / "both.yaml")
        found = traverse_metadataset(folder / "both.yaml", split_part="train")
        assert [str(each.path) for each in found] == [str(folder / "set"), str(folder / "lines.jsonl")]
        assert len(WebDatasetSource(folder / "set")) == 20
        assert summarize_dataset(folder / "set").samples == 20
        assert lint_dataset(folder / "set").findings == ()
        assert run("lint", folder / "both.yaml").exit_code == 0
        assert WebdatasetFileStore(folder / "set")["000000.txt"]


def test_glob_looks_only_where_something_may_match(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.tar", "sub/b.tar", "sub/deep/c.tar", "other/d.tar", "other/deep/e.tar"):
        EPath(tmp_path / name).write_bytes(b"")
    listed: list[str] = []
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: listed.append(os.path.relpath(path, tmp_path)) or scandir(path))
    folder = EPath(tmp_path)
    for pattern, found, looked in (
        ("*.tar", ["a.tar"], ["."]),
        ("sub/*.tar", ["sub/b.tar"], [".", "sub"]),
        ("*/deep/*", ["other/deep/e.tar", "sub/deep/c.tar"], [".", "other", "other/deep", "sub", "sub/deep"]),
        ("s**c.tar", ["sub/deep/c.tar"], [".", "sub", "sub/deep"]),
        ("none/*", [], ["."]),
    ):
        listed.clear()
        assert [path.relative_to(folder) for path in folder.glob(pattern)] == found
        assert listed == looked


@pytest.mark.parametrize("pattern", ["*.tar", "**/*.tar", "**"])
def test_loops_of_links_end(tmp_path: Path, pattern: str) -> None:
    folder = tmp_path / "data"
    EPath(folder / "sub" / "a.tar").write_bytes(b"")
    EPath(folder / "b.tar").write_bytes(b"")
    for name in ("self", "again", "sub/up", "sub/here"):
        (folder / name).symlink_to(folder / name.rpartition("/")[0] if "here" in name else folder)
    elsewhere = tmp_path / "elsewhere"
    EPath(elsewhere / "c.tar").write_bytes(b"")
    (elsewhere / "back").symlink_to(folder)
    (folder / "linked").symlink_to(elsewhere)
    found = [path.relative_to(EPath(folder)) for path in EPath(folder).glob(pattern)]
    assert found == (["b.tar"] if pattern == "*.tar" else ["b.tar", "linked/c.tar", "sub/a.tar"])
    assert [path.relative_to(EPath(folder)) for path in EPath(folder).walk()] == ["b.tar", "linked/c.tar", "sub/a.tar"]


@given(st.text("ab/.*?[]!{}&~|^\\", max_size=8))
def test_globs_are_always_regular_expressions(glob: str) -> None:
    re.compile(glob_to_regex(glob))


@given(st.lists(st.sampled_from("ab.+()|^$/"), min_size=1).map("".join))
def test_plain_text_matches_itself_only(text: str) -> None:
    pattern = re.compile(glob_to_regex(text))
    assert pattern.fullmatch(text)
    assert not pattern.fullmatch(f"{text}a")


PIECES = ["a", "b", "/", "*", "**", "**/", "?", "[ab]", "[!a]", "[a/]", ".", "c"]


@given(st.lists(st.sampled_from(PIECES)).map("".join), st.lists(st.sampled_from(["a", "b", "ab", ".c"]), min_size=1))
def test_what_matches_lies_in_folders_that_may_hold_it(glob: str, steps: list[str]) -> None:
    if re.fullmatch(glob_to_regex(glob), "/".join(steps)):
        may_hold = re.compile(folders_of_glob(glob)).fullmatch
        assert all(may_hold("/".join(steps[:depth]) + "/") for depth in range(1, len(steps)))
