"""Columns that are measured: of datasets of every kind, resumed, attached, and what is refused."""

from __future__ import annotations

import io
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from arrays import write_array, write_group
from cli_runs import run
from metadatasets import write_v2
from object_server import Bucket
from patience import PATIENCE_S
from table_forms import write_arrow, write_mds, write_tokens
from web_server import running_web_server

from energon_grain import WorkerConfig, column_function, get_loader, get_val_dataset, measure_dataset, open_columns
from energon_grain.conversion import convert_dataset
from energon_grain.errors import ConfigError, FatalSampleError, FormatError, KeyNotFoundError, RefusedError
from energon_grain.formats.data_folder import look_again, open_folder
from energon_grain.prepare import MeasureProgress, prepare_dataset
from energon_grain.prepare.writing import preparation_lock
from energon_grain.storage.settings import storage_settings
from energon_grain.stores.object_client import shared_client
from energon_grain.testing import make_text_dataset, write_tars

N = 700
WORDS = [n % 13 + 1 for n in range(N)]


def samples() -> Iterator[dict[str, Any]]:
    for n, words in enumerate(WORDS):
        yield {"__key__": f"{n:04d}", "txt": " ".join(["word"] * words)} | ({"json": {"n": n}} if n % 2 else {})


def words(parts: dict[str, bytes]) -> int:
    return len(parts["txt"].split())


def number(parts: dict[str, bytes]) -> float | None:
    return json.loads(parts["json"])["n"] / 2 if "json" in parts else None


@column_function(version=3, batched=True)
def words_of_many(samples: list[dict[str, bytes]]) -> np.ndarray:
    return np.array([words(parts) for parts in samples], np.int32)


class Longest:
    """A callable that is no function."""

    column_version = 2

    def __init__(self, least: int) -> None:
        self.least = least

    def __call__(self, parts: dict[str, bytes]) -> bool:
        return words(parts) >= self.least


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_tars(tmp_path / "data", samples(), shards=3)
    prepare_dataset(tmp_path / "data", split_ratio=(1,), crude=True, num_workers=0)
    return tmp_path / "data"


def left(root: Path) -> list[str]:
    """What lies beside columns that is none."""
    return [path.name for path in (root / ".nv-meta/columnar").iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("workers", [0, 2, "executor"])
def test_functions_say_a_number_of_every_sample(root: Path, workers: int | str) -> None:
    told: list[MeasureProgress] = []
    wanted: dict[str, Any] = {"words": words, "half": number, "many": words_of_many, "is_long": Longest(7)}
    with ThreadPoolExecutor(3) as pool:
        how: dict[str, Any] = {"executor": pool} if workers == "executor" else {"num_workers": workers}
        report = measure_dataset(root, wanted, progress=told.append, **how)
    columns = open_columns(root)
    assert columns["words"].tolist() == columns["many"].tolist() == WORDS
    halves = [n / 2 if n % 2 else np.nan for n in range(N)]
    assert np.array_equal(columns["half"], halves, equal_nan=True)
    assert columns["is_long"].tolist() == [each >= 7 for each in WORDS]
    assert [columns[name].dtype.name for name in wanted] == ["int64", "float64", "int64", "int64"]
    made = {name: (stored.function, stored.version) for name, stored in columns.stored.items()}
    here = __name__
    assert made == {
        "words": (f"{here}:words", 1),
        "half": (f"{here}:number", 1),
        "many": (f"{here}:words_of_many", 3),
        "is_long": (f"{here}:Longest", 2),
    }
    assert (report.samples, report.samples_reused, report.columns["half"].missing) == (N, 0, N // 2)
    assert (told[0], told[-1]) == (MeasureProgress(done=0, total=N), MeasureProgress(done=N, total=N))
    assert left(root) == []


def test_only_the_parts_that_are_asked_for_are_given(root: Path) -> None:
    measure_dataset(root, {"parts": len}, parts=["txt"], num_workers=0, version=9)
    assert set(open_columns(root)["parts"].tolist()) == {1}
    assert (open_columns(root).stored["parts"].function, open_columns(root).stored["parts"].version) == (
        "builtins:len",
        9,
    )
    taken = {"words": lambda parts: words({"txt": parts.pop("txt")}), "parts": len}
    measure_dataset(root, {**taken, "many": column_function(batched=True)(lambda samples: list(map(len, samples)))})
    columns = open_columns(root)
    assert columns["words"].tolist() == WORDS
    assert columns["parts"].tolist() == columns["many"].tolist() == [1 + n % 2 for n in range(N)]
    with pytest.raises(ConfigError, match=r"has no part 'jpg'; the parts are txt, json"):
        measure_dataset(root, {"parts": len}, parts=["jpg"])


def test_columns_outlive_another_index_of_the_same_samples_and_no_others(root: Path, tmp_path: Path) -> None:
    measure_dataset(root, {"words": words, "gone": words}, num_workers=0)
    measure_dataset(root, {"words": words_of_many}, num_workers=0)  # replaced; the other stays
    prepare_dataset(root, split_ratio=(1,), force_overwrite=True, num_workers=0)
    assert open_columns(root)["words"].tolist() == open_columns(root)["gone"].tolist() == WORDS
    assert len([*(root / ".nv-meta/columnar/columns").iterdir()]) == 2
    write_tars(root, [*samples()][::-1], shards=3)
    prepare_dataset(root, split_ratio=(1,), force_overwrite=True, num_workers=0)
    assert open_columns(root).stale == ("words", "gone")
    again = rf"create it again: `energon-grain measure {root} --column gone={__name__}:words`"
    with pytest.raises(KeyNotFoundError, match=again):
        open_columns(root)["gone"]
    measure_dataset(root, {"words": words}, num_workers=0)
    assert open_columns(root)["words"].tolist() == WORDS[::-1]
    assert "The column 'gone' was measured for samples that have changed or are missing" in run("lint", root).stdout


def test_only_appended_samples_are_measured(root: Path) -> None:
    """And a few of the others: where the function says something else of these, all are."""
    measure_dataset(root, {"words": words, "half": number}, num_workers=0)
    measure_dataset(root, {"half": number}, attach={"rank": np.arange(N)}, num_workers=0)
    half = open_columns(root)["half"].copy()
    write_tars(root, ({**each, "__key__": f"more {each['__key__']}"} for each in samples()), name="more.tar")
    report = prepare_dataset(root, append=True, num_workers=0)
    assert [note.split(" lack values for the new samples; run")[0] for note in report.notes] == [
        f"the columns {name}" for name in ("words", "half", "rank")
    ]
    assert f"`energon-grain measure {root} --column words={__name__}:words` before" in report.notes[0]
    assert f"`energon-grain measure {root} --attach rank=FILE` before" in report.notes[2]
    with pytest.raises(KeyNotFoundError, match="column 'words' belongs to other samples"):
        open_columns(root)["words"]

    seen: list[str] = []

    def spying(function: Callable[..., Any]) -> Callable[..., Any]:
        def spy(parts: dict[str, bytes]) -> Any:
            seen.append(function.__name__)
            return function(parts)

        spy.__qualname__, spy.__module__ = function.__qualname__, function.__module__
        return spy

    done = measure_dataset(root, {"words": spying(words), "half": spying(number)}, num_workers=0)
    assert done.samples_reused == N
    assert N < seen.count("words") == seen.count("number") < N + 50
    columns = open_columns(root)
    assert columns["words"].dtype == np.int64
    assert columns["words"].tolist() == 2 * WORDS
    assert np.array_equal(columns["half"], np.tile(half, 2), equal_nan=True)
    # Of the samples that are there a column is measured anew.
    assert measure_dataset(root, {"words": words}, num_workers=0).samples_reused == 0

    write_tars(root, [{"__key__": "last", "txt": "one two"}], name="zlast.tar")
    prepare_dataset(root, append=True, num_workers=0)

    def more(parts: dict[str, bytes]) -> int:
        return 1 + words(parts)

    more.__qualname__ = "words"
    assert measure_dataset(root, {"words": more}, num_workers=0).samples_reused == 0
    assert open_columns(root)["words"].tolist() == [*(count + 1 for count in 2 * WORDS), 3]
    assert measure_dataset(root, {"half": number}, version=2, num_workers=0).samples_reused == 0


def test_records_and_lines_have_columns_too(root: Path, tmp_path: Path) -> None:
    pytest.importorskip("array_record")
    convert_dataset(root, tmp_path / "records", num_workers=0)
    measure_dataset(tmp_path / "records", {"words": words}, num_workers=0)
    assert open_columns(tmp_path / "records")["words"].tolist() == WORDS
    lines = tmp_path / "x.jsonl"
    lines.write_text("".join(f'{{"n": {n}}}\n' for n in range(N)))
    measure_dataset(lines, {"half": number}, num_workers=0)
    assert open_columns(lines)["half"].tolist() == [n / 2 for n in range(N)]
    assert [*open_columns(lines)] == ["bytes", "bytes.json", "half"]
    shown = run("info", lines).stdout
    row = next(line for line in shown.splitlines() if line.startswith("  half")).split("  ")
    assert [each.strip() for each in row if each.strip()] == [
        *("half", "700 values", "mean 174.75 (0 to 349.5)"),
        *("█" * 24, f"{__name__}:number"),
    ]
    lines.write_text(lines.read_text() + '{"n": 0}\n')
    assert run("prepare", lines).exit_code == 0
    assert "Outdated columns, whose samples have changed: half." in run("info", lines).stdout
    assert "The column 'half' was measured for samples that have changed or are missing" in run("lint", lines).stdout
    measure_dataset(lines, {"half": number}, num_workers=0)
    assert "No problems in 701 samples" in run("lint", lines, f"--trust-module={__name__}").stdout
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys.modules[__name__], "number", words_of_many)
        assert "The column 'half' cannot be measured again: " in run("lint", lines, f"--trust-module={__name__}").stdout


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (
            lambda parts: 1 / (words(parts) - 13),
            r"shard_000.tar: 0012: .*raised ZeroDivisionError: division by zero",
        ),
        (lambda parts: "long" if words(parts) == 13 else 1, r"0012: .*returned 'long' \(str\), which is not a number"),
        (lambda parts: [1, 2], r"0000: .*returned \[1, 2\] \(list\), which is not a number"),
        (
            column_function(batched=True)(lambda many: [0] * (len(many) - 1)),
            r"called with 16 samples from this one on, returned 15",
        ),
        (
            column_function(batched=True)(lambda many: many[99]),
            r"called with 16 samples from .* raised IndexError: list index",
        ),
    ],
)
def test_what_is_no_number_is_named(root: Path, function: Callable[..., Any], said: str) -> None:
    with pytest.raises(FatalSampleError, match=rf"(?s){said}.* Finished results are kept"):
        measure_dataset(root, {"odd": function})
    assert [*open_columns(root).stored] == []


def test_what_was_measured_before_an_error_is_not_measured_again(root: Path) -> None:
    seen: list[bytes] = []
    fails = [True]

    def careful(parts: dict[str, bytes]) -> int:
        seen.append(parts["txt"])
        if fails and len(seen) == 500:
            raise KeyError("later")
        return words(parts)

    with pytest.raises(FatalSampleError, match="raised KeyError: 'later'"):
        measure_dataset(root, {"words": careful})
    fails.clear()
    assert left(root) != []
    report = measure_dataset(root, {"words": careful})
    assert 0 < report.samples_reused < 500
    assert N < len(seen) < 500 + N
    assert open_columns(root)["words"].tolist() == WORDS
    assert left(root) == []
    seen.clear()
    measure_dataset(root, {"words": careful})
    assert len(seen) == N, "what is asked for again is measured again"


KILLED = """
import os, signal, sys
calls = 0
def words(parts):
    global calls
    calls += 1
    if calls == int(os.environ.get("KILL_AT", 0)):
        os.kill(os.getpid(), signal.SIGKILL)
    return len(parts["txt"].split())
"""


def test_a_run_that_was_killed_is_taken_up(root: Path, tmp_path: Path) -> None:
    (tmp_path / "killed_words.py").write_text(KILLED)
    command = [sys.executable, "-m", "energon_grain.cli", "measure", str(root), "--column=words=killed_words:words"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command.append("--num-workers=0")
    for kill_at in (300, 150):
        killed = subprocess.run(
            command, cwd=tmp_path, env={**environment, "KILL_AT": str(kill_at)}, timeout=PATIENCE_S, check=False
        )
        assert killed.returncode == -signal.SIGKILL
        assert [*open_columns(root).stored] == []
    log = next((root / ".nv-meta/columnar").glob(".measure-*.log"))
    log.write_bytes(log.read_bytes() + b"EGSCAN2\n half a record")
    done = subprocess.run([*command, "--json"], cwd=tmp_path, env=environment, timeout=PATIENCE_S, capture_output=True)
    assert done.returncode == 0, done.stderr
    reused = json.loads(done.stdout)["samples_reused"]
    assert 256 <= reused < 450
    assert open_columns(root)["words"].tolist() == WORDS
    assert left(root) == []


class Dying(Executor):
    """An executor whose first workers for each piece die."""

    def __init__(self, deaths: int) -> None:
        self.deaths = deaths

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        if self.deaths:
            self.deaths -= 1
            future.set_exception(MemoryError("no more"))
        else:
            future.set_result(fn(*args, **kwargs))
        return future


def test_a_piece_whose_worker_died_is_tried_again(root: Path) -> None:
    measure_dataset(root, {"words": words}, executor=Dying(1), num_workers=1)
    assert open_columns(root)["words"].tolist() == WORDS
    with pytest.raises(RuntimeError, match=r"measuring samples 0 to 255 failed 2 times, last with MemoryError"):
        measure_dataset(root, {"words": words}, executor=Dying(99), num_workers=1)


def test_names_and_functions_that_do_not_fit(root: Path, tmp_path: Path) -> None:
    for name in ("bytes", "bytes.txt", "1st", "a-b", "", "a..b"):
        with pytest.raises(ConfigError, match="is not a valid column name"):
            measure_dataset(root, {name: words})
    for function, said in (
        ("nowhere:f", "nowhere cannot be imported: No module named 'nowhere'"),
        ("json:nothing", "the module json has no function 'nothing'"),
        ("words", "write module:function"),
        (3, "3 is not callable"),
    ):
        with pytest.raises(ConfigError, match=said):
            measure_dataset(root, {"words": function})  # type: ignore[dict-item]
    with pytest.raises(ConfigError, match="no column to measure; pass one"):
        measure_dataset(root)
    with pytest.raises(ConfigError, match="move them into a module, or measure with num_workers=0"):
        measure_dataset(root, {"words": lambda _: 1}, num_workers=2)
    for arguments, said in (
        ([], "pass --column NAME=module:function, --attach NAME=FILE, or --digest"),
        (["--column=words"], "write a name and its source, as tokens=my_module:count_tokens"),
        (["--column=words=builtins:len", "--column=words=builtins:len"], "is given twice"),
    ):
        assert said in str(run("measure", root, *arguments).exception)


def test_two_do_not_measure_at_once(root: Path) -> None:
    with preparation_lock(root / ".nv-meta"), pytest.raises(RefusedError, match="another process is preparing"):
        measure_dataset(root, {"words": words})


_file = io.BytesIO()
np.savez(_file, a=np.arange(N))
ARCHIVE = _file.getvalue()

ATTACHED: list[tuple[str, str]] = [
    ("scores.csv", "key,score\n0001,1.5\n0003,7\nother,2\n0000,\n"),
    ("of-a-spreadsheet.csv", "\ufeffkey,score\n0001,1.5\n0003,7\nother,2\n"),
    ("scores.jsonl", '{"__key__": "0001", "score": 1.5}\n{"__key__": "0003", "score": 7}\n{"__key__": "other"}\n'),
]


@pytest.mark.parametrize(("name", "text"), ATTACHED)
def test_tables_are_attached_by_key(root: Path, tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, "utf-8")
    report = measure_dataset(root, attach={"score": tmp_path / name, "same": f"{tmp_path / name}:score"})
    expected = np.full(N, np.nan)
    expected[[1, 3]] = 1.5, 7
    columns = open_columns(root)
    assert np.array_equal(columns["score"], expected, equal_nan=True)
    assert np.array_equal(columns["same"], expected, equal_nan=True)
    assert report.notes[0] == f"score: 1 of the {3 + (name == 'scores.csv')} keys in {name} match no sample."
    assert columns.stored["same"].function == f"attached {name}:score"
    assert f"attached {name}" in run("info", root).stdout


def test_parquet_is_attached(root: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    keys = [f"{n:04d}" for n in range(N)][::-1]
    table = pyarrow.table({"key": keys, "n": range(N), "s": [None, *range(1, N)], "text": keys})
    parquet.write_table(table, tmp_path / "t.parquet")
    measure_dataset(root, attach={"n": tmp_path / "t.parquet", "s": tmp_path / "t.parquet"})
    columns = open_columns(root)
    assert columns["n"].tolist() == [*range(N)][::-1]
    assert columns["n"].dtype == np.int64
    assert np.array_equal(columns["s"], [*range(N - 1, 0, -1), np.nan], equal_nan=True)
    with pytest.raises(ConfigError, match=r"row 1 holds '0699', which is not a number"):
        measure_dataset(root, attach={"text": tmp_path / "t.parquet"})
    with pytest.raises(ConfigError, match=r"the file has no field 'm'; it has key, n, s, text"):
        measure_dataset(root, attach={"m": tmp_path / "t.parquet"})
    (tmp_path / "u.parquet").write_bytes(b"PAR1")
    with pytest.raises(FormatError, match="cannot be read as a Parquet file"):
        measure_dataset(root, attach={"m": tmp_path / "u.parquet"})


def test_arrays_are_attached_by_row(root: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(N, dtype=np.uint16))
    np.save(tmp_path / "u.npy", np.arange(2**63 - N, 2**63, dtype=np.uint64))
    np.save(tmp_path / "f.npy", np.linspace(0, 1, N, dtype=np.float32))
    (tmp_path / "rows.csv").write_text("half\n" + "".join(f"{n / 2}\n" for n in range(N)))
    measure_dataset(root, attach={"held": np.arange(N) % 3})
    assert open_columns(root)["held"].tolist() == [n % 3 for n in range(N)]
    files = {"a": tmp_path / "a.npy", "f": tmp_path / "f.npy", "u": tmp_path / "u.npy", "half": tmp_path / "rows.csv"}
    done = run("measure", root, *(f"--attach={name}={path}" for name, path in files.items()), "--column=n=builtins:len")
    assert done.exit_code == 0, done.output + str(done.exception)
    columns = open_columns(root)
    assert columns["a"].tolist() == [*range(N)]
    assert (columns["a"].dtype, columns["f"].dtype) == (np.int64, np.float64)
    assert columns["u"].tolist() == [*range(2**63 - N, 2**63)]
    assert columns["half"].tolist() == [n / 2 for n in range(N)]
    assert columns["n"].tolist() == [1 + n % 2 for n in range(N)]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.npy", np.arange(N - 1), r"expected one number for each of the 700 samples, got int64\[699\]"),
        ("a.npy", np.array(["x"] * N), r"expected one number for each of the 700 samples, got <U1\[700\]"),
        ("a.npy", b"none", "cannot be attached, it is not a NumPy array"),
        ("a.npy", ARCHIVE, "holds several arrays; save one array"),
        (
            "a.npy",
            np.full(N, 2**63, np.uint64),
            r"row 1 holds .*9223372036854775808.*, which is not a num",
        ),
        ("a.csv", b"key,a\n" + b"x" * 200_000 + b",1\n", "cannot be read as CSV: field larger than field limit"),
        (
            "a.csv",
            b"key,a\n0001,9223372036854775808\n",
            r"row 1 holds 9223372036854775808, which is not a number \(ints end at 2\*\*63\)",
        ),
        ("a.csv", b"key,a\n0001,1\n0001,2\n", "has the key '0001' twice"),
        ("a.csv", b"key,b\n0001,1\n", "the file has no field 'a'; it has key, b"),
        ("a.csv", b"key,a\n0001,long\n", "row 1 holds 'long', which is not a number"),
        (
            "a.csv",
            b"key,a\nx,1\n",
            "no sample has one of the file's 1 keys, such as 'x'; the samples' keys are '0000', '0001'",
        ),
        (
            "a.csv",
            b"a\n1\n",
            "without a field `key`, the file must have one row for each of the 700 samples, but it has 1",
        ),
        ("a.jsonl", b"{", "is not valid JSONL: Expecting property name"),
        ("a.jsonl", b"3\n", "has lines that are not JSON objects"),
        ("a.txt", b"3\n", r"expected a \.npy, \.parquet, \.csv or \.jsonl file"),
        ("b.npy", None, "there is no file"),
    ],
)
def test_files_that_cannot_be_attached(root: Path, tmp_path: Path, name: str, content: Any, said: str) -> None:
    if isinstance(content, np.ndarray):
        np.save(tmp_path / name, content)
    elif content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises((ConfigError, FormatError), match=said):
        measure_dataset(root, attach={"a": tmp_path / name})
    assert left(root) == []


def test_lint_measures_a_few_samples_again(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = f"counting_{tmp_path.name}"
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / f"{module}.py").write_text("def words(parts):\n    return len(parts['txt'].split())\n")
    np.save(tmp_path / "a.npy", np.arange(N))
    measure_dataset(root, {"words": f"{module}:words"}, attach={"a": tmp_path / "a.npy"}, num_workers=0)
    fine = run("lint", root, f"--trust-module={module}")
    assert "No problems in 700 samples" in fine.stdout
    assert "column" not in fine.stdout
    untrusted = run("lint", root).stdout
    assert (
        f"The column 'words' was not measured again: {module}:words is called only if its module is trusted"
        in untrusted
    )
    assert f"pass --trust-module {module}" in untrusted
    monkeypatch.setattr(sys.modules[module], "words", lambda parts: len(parts["txt"]))
    odd = run("lint", root, f"--trust-module={module}")
    assert odd.exit_code == 0, "it loads all the same"
    assert f"The column 'words' holds 1 for shard_000.tar: 0000, but {module}:words now returns 4; " in odd.stdout
    assert "of the 32 samples that were measured again differ" in odd.stdout
    assert f"make it again: `energon-grain measure {root} --column words={module}:words`" in odd.stdout
    monkeypatch.delattr(sys.modules[module], "words")
    assert "The column 'words' cannot be measured again" in run("lint", root, f"--trust-module={module}").stdout


def test_datasets_in_buckets(bucket: Bucket, tmp_path: Path) -> None:
    make_text_dataset(tmp_path / "data", n=300, shards=2)
    (tmp_path / "x.jsonl").write_text("".join(f'{{"n": {n}}}\n' for n in range(300)))
    bucket.upload(tmp_path)
    for url, function in ((f"{bucket.url}/data", "builtins:len"), (f"{bucket.url}/x.jsonl", f"{__name__}:number")):
        done = run("measure", url, f"--column=n={function}", "--num-workers=0")
        assert done.exit_code == 0, done.output + str(done.exception)
        expected = [2] * 300 if function == "builtins:len" else [n / 2 for n in range(300)]
        assert open_columns(url)["n"].tolist() == expected
        measure_dataset(url, {"n": "builtins:len"}, num_workers=0)
        assert set(open_columns(url)["n"].tolist()) == {1 + ("data" in url)}
        kind = url.rpartition("/")[2]
        names = [name for name in shared_client(storage_settings()).list(bucket.url) if name.startswith(kind)]
        assert len([name for name in names if "columns/n-" in name]) == 1


def test_pieces_that_take_long_come_back_in_parts(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a kill costs seconds, however slow a function is: with no time at all, a read is a part."""
    monkeypatch.setattr("energon_grain.prepare.measure._BUDGET_S", 0.0)
    told: list[int] = []
    measure_dataset(root, {"words": words}, num_workers=0, progress=lambda now: told.append(now.done))
    assert open_columns(root)["words"].tolist() == WORDS
    assert {later - before for before, later in itertools.pairwise(told)} <= set(range(1, 17))


ROWS = 30
HOST = WorkerConfig(rank=0, world_size=1, num_workers=0)
FUNCTIONS = """
def length(parts):
    return sum(len(part) for part in parts.values() if isinstance(part, bytes))

def parts_count(parts):
    return len(parts) + 2**60
"""


def tars(folder: Path, times: int = 1, samples: int = ROWS) -> Path:
    write_tars(
        folder, [{"__key__": f"{n:03d}", "txt": "x" * n * times, "bin": b"12"} for n in range(samples)], shards=3
    )
    return folder


def prepared(folder: Path, times: int = 1, samples: int = ROWS) -> Path:
    prepare_dataset(tars(folder, times, samples), split_ratio={"train": 1}, num_workers=0, crude=True)
    return folder


def join(folder: Path) -> tuple[str, str, str]:
    prepared(folder / "images")
    prepared(folder / "texts", 10, ROWS - 5)
    members = {"images": {"path": "images"}, "texts": {"path": "texts", "nonmatch": "none"}}
    return str(write_v2(folder, train={"join": members})), "txt,texts.txt", "texts.txt"


def parquet(folder: Path) -> str:
    rows = pa.table({"txt": ["x" * n for n in range(ROWS)], "bin": [b"12"] * ROWS, "n": list(range(ROWS))})
    (folder / "rows").mkdir()
    pq.write_table(rows, folder / "rows" / "rows.parquet", row_group_size=7)
    return str(folder / "rows")


KINDS: dict[str, Callable[[Path], tuple[str, str, str]]] = {
    "join": join,
    "folder of Parquet": lambda folder: (parquet(folder), "txt", "txt"),
    "Parquet file": lambda folder: (f"{parquet(folder)}/rows.parquet", "txt", "txt"),
    "pattern of Parquet": lambda folder: (f"{parquet(folder)}/*.parquet", "txt", "txt"),
    "tars": lambda folder: (str(tars(folder / "bare")), "txt", "txt"),
    "pattern of tars": lambda folder: (f"{tars(folder / 'bare')}/*.tar", "txt", "txt"),
    "prepared": lambda folder: (str(prepared(folder / "data")), "txt", "txt"),
}


@pytest.fixture(autouse=True)
def functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "of_kinds.py").write_text(FUNCTIONS)
    monkeypatch.syspath_prepend(tmp_path / "code")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delitem(sys.modules, "of_kinds", raising=False)
    return tmp_path / "code"


def keys(path: str, where: str) -> list[int]:
    """The numbers of the samples that a condition keeps."""
    dataset = get_val_dataset(path, split_part="train", worker_config=HOST, batch_size=None, where=where)
    with get_loader(dataset) as loader:
        return [int(sample["__key__"].rpartition("/")[2]) for sample in loader]


@pytest.mark.parametrize("kind", KINDS)
def test_all_kinds_are_measured_alike(kind: str, tmp_path: Path) -> None:
    path, parts, one = KINDS[kind](tmp_path)
    lengths = [n * 11 if kind == "join" and n < ROWS - 5 else n for n in range(ROWS)]
    report = measure_dataset(path, {"length": "of_kinds:length"}, parts=parts.split(","), num_workers=2)
    assert report.samples == ROWS
    assert report.columns["length"].mean == pytest.approx(np.mean(lengths))
    measured = run("measure", path, "--column=count=of_kinds:parts_count", f"--parts={one}", "--num-workers=0")
    assert measured.exit_code == 0, measured.output
    assert keys(path, "length >= 20 and count > 1") == [n for n in range(ROWS) if lengths[n] >= 20]
    columns = open_columns(path)
    assert (columns["length"].tolist(), [*columns.stored], columns.samples) == (lengths, ["length", "count"], ROWS)
    assert not columns["length"].flags.writeable
    linted = run("lint", path, "--trust-module=of_kinds")
    assert linted.exit_code == 0, linted.output
    assert "The column" not in linted.output
    sys.modules["of_kinds"].parts_count = lambda parts: len(parts) + 2**60 + 8  # type: ignore[attr-defined]
    said = run("lint", path, "--trust-module=of_kinds").output  # as a float it is the same number
    assert f"The column 'count' holds {2**60 + 1} for" in said
    assert f"now returns {2**60 + 9}; {ROWS} of the {ROWS} samples that were measured again differ" in said
    assert f"--column count=of_kinds:parts_count --parts {one}" in said
    with pytest.raises(KeyNotFoundError, match=r"no (numeric )?column"):
        keys(path, "lengths > 1")


def test_rows_of_a_join_have_the_parts_of_all_members(tmp_path: Path) -> None:
    prepared(tmp_path / "images", samples=6)
    prepared(tmp_path / "texts", 2, 6)
    write_array(tmp_path / "vectors.zarr", np.arange(12.0).reshape(6, 2))
    members = {"images": {"path": "images"}, "captions": {"path": "texts"}, "vectors": {"array": "vectors.zarr"}}
    path = write_v2(tmp_path, train={"join": members})
    seen: list[dict[str, object]] = []
    measure_dataset(path, {"number": lambda parts: seen.append(parts) or len(seen)}, num_workers=0)
    assert set(seen[3]) == {"txt", "bin", "captions.txt", "captions.bin", "vectors"}
    assert (seen[3]["captions.txt"], np.asarray(seen[3]["vectors"]).tolist()) == (b"x" * 6, [6.0, 7.0])
    with pytest.raises(ConfigError, match=r"has no part 'captions\.jpg'; the parts are txt, bin, captions.txt"):
        measure_dataset(path, {"number": len}, parts=["captions.jpg"])
    (folder,) = Path(f"{path}.cache").glob(".join_*/columns.json")
    assert folder.parent.joinpath("columns").is_dir()
    measure_dataset(tmp_path / "texts", {"words": len})
    with pytest.raises(
        ConfigError, match=r"already has its own column 'captions\.words'; choose another name for the new one"
    ):
        measure_dataset(path, {"captions.words": len})
    measure_dataset(path, attach={"rank": np.arange(6)})


def test_what_was_measured_of_a_join_outlives_its_damaged_rows(tmp_path: Path) -> None:
    path, _, _ = join(tmp_path)
    measure_dataset(path, attach={"rank": np.arange(ROWS)})
    (rows,) = Path(f"{path}.cache").glob(".join_*/*.npy")
    damaged = bytearray(rows.read_bytes())
    damaged[-8] ^= 1
    rows.write_bytes(damaged)
    assert run("prepare", path).exit_code == 0
    assert keys(path, "rank >= 27") == [27, 28, 29]


def test_which_join_is_measured(tmp_path: Path) -> None:
    for times, name in enumerate(("a", "b", "c")):
        prepared(tmp_path / name, times, 6)
    pairs = [{"join": [{"path": "a"}, {"path": other}]} for other in ("b", "c")]
    of_train = [{"path": name, "split_part": "train"} for name in ("a", "b")]
    two = write_v2(tmp_path, "two.yaml", train={"concat": pairs}, val={"join": of_train})
    with pytest.raises(ConfigError, match="has 2 joins in the split 'train'"):
        measure_dataset(two, {"n": len})
    assert measure_dataset(two, {"n": len}, split_part="val", num_workers=0).samples == 6
    none = write_v2(tmp_path, "none.yaml", train={"path": "a"})
    with pytest.raises(ConfigError, match=r"has no joins in the split 'train'.* measure datasets by their own paths"):
        measure_dataset(none, {"n": len})


def test_where_columns_of_parquet_files_lie(tmp_path: Path) -> None:
    folder = parquet(tmp_path)
    measure_dataset(folder, {"length": "of_kinds:length"}, parts=["txt"], num_workers=0)
    measure_dataset(f"{folder}/rows.parquet", {"other": "of_kinds:length"}, num_workers=0)
    assert sorted(os.listdir(folder)) == [".columns", "rows.parquet", "rows.parquet.columns"]
    assert keys(folder, "length >= 27") == [27, 28, 29]
    with pytest.raises(ConfigError, match="already has its own column 'n'"):
        measure_dataset(folder, {"n": len})
    assert "length" in run("info", folder).output
    pattern = f"{folder}/*.parquet"
    measure_dataset(pattern, {"length": "of_kinds:length"}, num_workers=0)
    assert len([*(tmp_path / "cache").rglob("columns.json")]) == 1
    rows = pa.table({"txt": ["y"] * ROWS, "bin": [b"12"] * ROWS, "n": list(range(ROWS))})
    pq.write_table(rows, f"{folder}/rows.parquet")  # other rows
    for path in (pattern, folder):
        with pytest.raises(KeyNotFoundError, match=r"'length' belongs to other samples; create it again"):
            keys(path, "length > 1")
    with pytest.raises(KeyNotFoundError, match="no numeric column 'lengths'"):
        keys(folder, "lengths > 1")
    assert open_columns(folder)["n"].tolist() == [*range(ROWS)]
    assert (open_columns(folder).stale, [*open_columns(folder)]) == (("length",), ["bytes", "n"])


def test_columns_of_members_of_a_join_and_of_what_is_not_measured(tmp_path: Path) -> None:
    path, _, _ = join(tmp_path)
    rows = open_columns(path)
    assert rows["bytes.txt"].tolist() == [*range(ROWS)]
    assert rows["texts.bytes.txt"].tolist() == [10 * n for n in range(ROWS - 5)] + [0] * 5
    assert sum(map(len, rows.blocks("texts.bytes.txt"))) == ROWS
    with pytest.raises(ConfigError, match="there is no split 'val'"):
        open_columns(path, split_part="val")
    group = open_columns(write_group(tmp_path / "group", score=np.arange(6.0), vector=np.ones((6, 2))))
    assert (group["score"].tolist(), [*group.stored]) == ([*range(6)], [])
    documents = open_columns(f"{write_tokens(tmp_path / 'corpus', [[1, 2, 3], [4], [5, 6]])}.bin")
    assert documents["tokens"].tolist() == [3, 1, 2]
    tables = open_columns(write_mds(tmp_path / "mds", {"n": [3, 1, 2], "text": ["a", "b", "c"]}))
    assert tables["n"].tolist() == [3, 1, 2]
    assert open_columns(write_arrow(tmp_path / "x.arrow", {"n": [3, None, 2]}))["n"][::2].tolist() == [3, 2]


def test_where_nothing_can_be_written_beside_columns_are_kept_for_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(prepared(tmp_path / "data"), tmp_path / "web" / "data")
    (tmp_path / "web" / "x.jsonl").write_text("".join(f'{{"n": {n}}}\n' for n in range(10, 10 + ROWS)))
    (tmp_path / "web" / "y.jsonl").write_text("".join(f'{{"n": {n}}}\n' for n in range(50, 50 + ROWS)))
    with running_web_server(tmp_path / "web") as server:
        for name, parts in (("data", ["txt"]), ("x.jsonl", None)):
            path = f"{server.url}/{name}"
            report = measure_dataset(path, {"length": "of_kinds:length"}, parts=parts, num_workers=0)
            assert "on this machine only: measure them on every other host of a run, too" in report.notes[0]
            assert f"{tmp_path}/cache" in report.notes[0]
            columns = open_columns(path)
            assert columns["length"].tolist() == (([*range(ROWS)]) if name == "data" else [10] * ROWS)
        assert keys(f"{server.url}/data", "length >= 27") == [27, 28, 29]
        # Lines of the same lengths have the same content id, and are others all the same.
        with pytest.raises(KeyNotFoundError, match="no column 'length'"):
            open_columns(f"{server.url}/y.jsonl")["length"]
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "of another host"))
        with pytest.raises(KeyNotFoundError, match=r"`energon-grain measure .*so each machine stores .* on every host"):
            keys(f"{server.url}/data", "length >= 27")
    assert {path.name for path in (tmp_path / "web").iterdir()} == {"data", "x.jsonl", "y.jsonl"}


def test_columns_of_this_machine_stand_before_those_beside_the_data(tmp_path: Path) -> None:
    data = prepared(tmp_path / "web")
    measure_dataset(data, {"length": "of_kinds:length", "count": "of_kinds:parts_count"}, num_workers=0)
    with running_web_server(tmp_path) as server:
        url = f"{server.url}/web"
        of_owner = open_columns(url)
        assert of_owner["length"].tolist() == [n + 2 for n in range(ROWS)]
        measure_dataset(url, {"length": "of_kinds:length"}, parts=["txt"], num_workers=0)
        assert open_columns(url)["length"].tolist() == [*range(ROWS)]
        assert open_columns(url)["count"].tolist() == of_owner["count"].tolist()
        tars(data, samples=6)
        prepare_dataset(data, force_overwrite=True, split_ratio={"train": 1}, num_workers=0, crude=True)
        look_again(open_folder(url))
        assert open_columns(url).stale == ("length", "count")


def test_columns_stay_when_tars_are_indexed_again(tmp_path: Path) -> None:
    path = str(tars(tmp_path / "bare"))
    measure_dataset(path, {"length": "of_kinds:length"}, parts=["txt"], num_workers=0)
    for tar in Path(path).glob("*.tar"):
        os.utime(tar, (1, 1))
    assert keys(path, "length >= 25") == [25, 26, 27, 28, 29]
    write_tars(Path(path), [{"__key__": "new", "txt": "x"}], name="zzz_{}.tar")
    with pytest.raises(KeyNotFoundError, match=r"belongs to other samples; create it again"):
        keys(path, "length >= 25")
