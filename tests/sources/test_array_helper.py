"""Rows in processes that were forked after arrays were read: the same as elsewhere, whatever becomes of the helper."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import tensorstore
from arrays import numbered, write_array, write_group
from patience import PATIENCE_S

BEGIN = """
import os, signal, sys, traceback
import numpy as np
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from energon_grain.errors import *
from energon_grain.sources.array import ArraySource
from energon_grain.sources.array_group import ArrayGroupSource
from energon_grain.sources.helper_process import helper_process

folder = Path(sys.argv[1])
HELPER = "energon_grain.sources.array_helper"

def rows(source, indices):
    return {name: np.stack(column).tolist() for name, column in source.read(np.array(indices)).columns.items()}

source = ArrayGroupSource(folder / "g", start=2)
expected = rows(source, range(40))
child = os.fork()
if child:
    os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
try:
"""
END = """
except BaseException:
    traceback.print_exc()
    os._exit(1)
os._exit(0)
"""


def forked(folder: Path, program: str) -> str:
    """Run the lines in a child of a process that has read the group."""
    write_group(folder / "g", "zarr3", image=numbered(50, 3, 2), label=np.arange(50), mask=numbered(50, 5) > 20)
    text = BEGIN + "".join(f"    {line}\n" for line in program.strip().splitlines()) + END
    done = subprocess.run([sys.executable, "-c", text, str(folder)], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_rows_in_any_order_in_threads(tmp_path: Path) -> None:
    said = forked(
        tmp_path,
        """
assert rows(source, range(40)) == expected
batch = source.read(np.array([7, 3, 7]))
assert [int(value) for value in batch.columns["label"]] == [9, 5, 9]
row = batch.columns["image"][0]
assert (row.shape, row.dtype, row.flags.owndata, row.flags.writeable) == ((3, 2), np.float32, True, True)
assert batch.columns["label"][0].shape == ()
with ThreadPoolExecutor(8) as pool:
    found = pool.map(lambda index: rows(source, [index])["label"], range(40))
    assert list(found) == [[index + 2] for index in range(40)]
assert len(source.read(np.array([], np.int64))) == 0
print(helper_process(HELPER).pid)
""",
    )
    deadline = time.monotonic() + PATIENCE_S
    while psutil.pid_exists(int(said)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not psutil.pid_exists(int(said)), "the helper outlives the process that it reads for"


def test_a_helper_that_is_killed(tmp_path: Path) -> None:
    forked(
        tmp_path,
        """
for _ in range(2):
    assert rows(source, range(40)) == expected
    os.kill(helper_process(HELPER).pid, signal.SIGKILL)
    os.waitpid(helper_process(HELPER).pid, 0)
assert rows(source, range(40)) == expected
""",
    )


def test_errors_come_through(tmp_path: Path) -> None:
    write_array(tmp_path / "a", numbered(4, 2), chunk=(2, 2))
    write_array(tmp_path / "b", numbered(4, 2), "zarr", chunk=(2, 2))
    (tmp_path / "b" / "1.0").write_bytes(b"damaged")
    values = numbered(4, 3, dtype=np.int64).astype(tensorstore.dtype("bfloat16").numpy_dtype)
    write_array(tmp_path / "bfloat16", values)
    forked(
        tmp_path,
        """
def refused(error, says, read):
    try:
        read()
    except error as found:
        assert says in str(found), found
    else:
        raise AssertionError(says)

broken, changed = ArraySource(folder / "b"), ArraySource(folder / "a")
refused(ReadError, "b: rows 2 to 3", lambda: broken.read(np.array([3, 2])))
assert broken.read(np.array([1]))[0].tolist() == [2, 3]
refused(IndexError, "row 4 asked for", lambda: broken.read(np.array([4])))
(folder / "a" / "zarr.json").write_text((folder / "a" / "zarr.json").read_text().replace("[4,2]", "[9,2]"))
refused(StaleIndexError, "is float32[9, 2] now", lambda: changed.read(np.array([0])))
refused(WorkerError, "forked", lambda: broken.chunk_rows)
assert [float(value) for value in ArraySource(folder / "bfloat16").read(np.array([2]))[0]] == [6, 7, 8]
""",
    )
