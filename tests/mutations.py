"""What the tests find: small faults in order, state, tars, kinds and pools, each applied to a copy and tested.

    python tests/mutations.py [--slice all|commit|0..3] [NUMBER …]

prints, for each fault, the first test that fails, and exits with 1 if one is not found. Faults are found by their text,
wherever the module is; text that is missing or not unique is an error, so a fault cannot be skipped unnoticed.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """A small change of the source that must not survive.

    Attributes:
        area: What it breaks.
        before: Text that is in the package once.
        after: What takes its place.
        tests: Test modules or folders, below `tests`, that must notice.
    """

    area: str
    before: str
    after: str
    tests: str


SAMPLERS, STATES = (
    "samplers",
    "stream/test_cursor.py stream/test_passes.py golden/test_states.py stream/operators/test_packing.py",
)
TARS = "formats/test_shard_scan.py sources/test_webdataset.py sources/test_index_damage.py"
FAULTS = [
    Fault(
        area="order: stretches of lanes",
        before="    length = base + (stretch < longer)\n",
        after="    length = base + (stretch <= longer)\n",
        tests=SAMPLERS,
    ),
    Fault(
        area="order: the short block",
        before="np.where(slot == short, count - one, number)",
        after="np.where(slot == short, number, number)",
        tests=SAMPLERS,
    ),
    Fault(
        area="order: passes of later laps",
        before="signed(turn + operand(lap) * operand(row.passes))",
        after="signed(turn + operand(lap))",
        tests=SAMPLERS,
    ),
    Fault(
        area="order: cycle walking",
        before="outside = outside[walked >= operand(at(sizes, outside))]",
        after="outside = outside[:0]",
        tests=SAMPLERS,
    ),
    Fault(
        area="order: excluded samples",
        before='raw += np.searchsorted(self._kept_before, indices, side="right")',
        after='raw += np.searchsorted(self._kept_before, indices, side="left")',
        tests=SAMPLERS,
    ),
    Fault(
        area="state: history of merged hosts",
        before='history = max((cursor["history"] for cursor in ordered)',
        after='history = min((cursor["history"] for cursor in ordered)',
        tests=STATES,
    ),
    Fault(
        area="state: packed integers",
        before="            continue\n        value |= (byte & 0x7F) << shift",
        after="            continue\n        value |= (byte & 0x3F) << shift",
        tests=STATES,
    ),
    Fault(
        area="state: the last step of a pass",
        before="item + self.global_batch > self.length if self.drops_last",
        after="item + self.global_batch >= self.length if self.drops_last",
        tests=STATES,
    ),
    Fault(
        area="state: values that repeat",
        before="new = key not in same or same[key] != value",
        after="new = key not in same",
        tests=STATES,
    ),
    Fault(
        area="state: the end of a pass",
        before='"ended": progress.ended,',
        after='"ended": False,',
        tests=STATES,
    ),
    Fault(
        area="tar: padding",
        before="return -(-size_bytes // BLOCK) * BLOCK",
        after="return (size_bytes // BLOCK + 1) * BLOCK",
        tests=TARS,
    ),
    Fault(
        area="tar: sizes in PAX headers",
        before="if size is not None and self.size is None:",
        after="if size is not None and self.size is not None:",
        tests=TARS,
    ),
    Fault(
        area="tar: reads of one part",
        before="return self._read_spans(file, offset, offset + size)",
        after="return self._read_spans(file, offset, offset + size - 1)",
        tests=TARS,
    ),
    Fault(
        area="tar: shards that changed",
        before="np.unique(shard[~verified]).tolist()",
        after="np.unique(shard[verified]).tolist()",
        tests=TARS,
    ),
    Fault(
        area="tar: sizes in other forms",
        before="sizes[~valid] = -1",
        after="sizes[~valid] = 0",
        tests=TARS,
    ),
    Fault(
        area="kinds: lines after blank ones",
        before="blank = len(text) - len(text.lstrip())",
        after="blank = 0",
        tests="sources/test_webdataset.py test_kits.py formats/test_jsonl.py",
    ),
    Fault(
        area="kinds: rows in row groups",
        before="within = (numbers[at] - self._first[number]).tolist()",
        after="within = (numbers[at] - numbers[at].min()).tolist()",
        tests="test_kits.py sources/test_parquet.py",
    ),
    Fault(
        area="kinds: documents of several sequences",
        before="first, last = self._documents[numbers], self._documents[numbers + 1]",
        after="first, last = self._documents[numbers], self._documents[numbers] + 1",
        tests="test_kits.py sources/test_forms_without_preparation.py",
    ),
    Fault(
        area="kinds: ids of subsets",
        before="{self._rows.digest}-{fold(chosen.start, chosen.stop, *chosen.digest)",
        after="{self._rows.digest}-{fold(chosen.stop, *chosen.digest)",
        tests="test_kits.py sources/test_webdataset.py sources/test_arrays.py",
    ),
    Fault(
        area="kinds: the first index out of range",
        before="int(found.view(np.uint64).max()) >= count",
        after="int(found.view(np.uint64).max()) > count",
        tests="test_kits.py",
    ),
    Fault(
        area="kinds: split parts",
        before="return kind(rows, start=start, stop=stop, where=where, runs=runs)",
        after="return kind(rows, start=start, stop=stop, where=where)",
        tests="test_kits.py",
    ),
    Fault(
        area="pools: the order of chunks",
        before="task = self._in_flight[0]\n",
        after="task = self._in_flight[-1]\n",
        tests="test_kits.py",
    ),
    Fault(
        area="pools: a worker that was killed",
        before="raise Lost(self.death, worker",
        after="raise RuntimeError(self.death, worker",
        tests="test_kits.py",
    ),
]


def place_of(fault: Fault, root: Path) -> Path:
    """The module that holds the text. Raises ValueError if none or several do."""
    modules = [path for package in ("energon_grain", "adapters") for path in sorted((root / package).rglob("*.py"))]
    found = [path for path in modules for _ in range(path.read_text(encoding="utf-8").count(fault.before))]
    if len(found) != 1:
        raise ValueError(f"{fault.area}: {fault.before!r} is {len(found)} times in the package, expected once")
    return found[0]


def first_failure(root: Path, fault: Fault, options: list[str]) -> tuple[int, str]:
    """pytest's exit code, and the first test that failed."""
    names = [f"tests/{name}" for name in fault.tests.split()]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-W", "error", "-p", "no:cacheprovider", *options, *names]
    paths = os.pathsep.join([str(root), str(root / "adapters")])
    environment = {**os.environ, "PYTHONPATH": paths, "HYPOTHESIS_PROFILE": "unshrunk"}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", done.stdout, re.MULTILINE)
    return done.returncode, failed[1] if failed else done.stdout[-2000:]


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Apply seeded faults one at a time, and run the tests that must find them."
    )
    parser.add_argument("numbers", nargs="*", type=int, help="faults to try; default: all")
    parser.add_argument("--slice", default="all", help="as for pytest: all, commit, or a quarter from 0 to 3")
    arguments = parser.parse_args()
    numbers = arguments.numbers or range(len(FAULTS))
    missed: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "copy"
        for name in ("energon_grain", "adapters", "tests"):
            shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__", ".hypothesis"))
        shutil.copy(ROOT / "pyproject.toml", root)
        every = " ".join(sorted({name for number in numbers for name in FAULTS[number].tests.split()}))
        whole_run = Fault(area="no fault", before="", after="", tests=every)
        status, said = first_failure(root, whole_run, [f"--slice={arguments.slice}"])
        if status != 0:  # else such a failure would pass for finding a fault
            raise RuntimeError(f"without any fault, pytest ends with {status}: {said}")
        for number in numbers:
            fault = FAULTS[number]
            path = place_of(fault, root)
            whole = path.read_text(encoding="utf-8")
            path.write_text(whole.replace(fault.before, fault.after), encoding="utf-8")
            status, said = first_failure(root, fault, [f"--slice={arguments.slice}"])
            path.write_text(whole, encoding="utf-8")
            if status not in (0, 1, 2):
                raise RuntimeError(f"pytest ended with {status} on fault {number}: {said}")
            if status == 0:
                missed.append(number)
            print(
                f"{number:3}  {'MISSED' if status == 0 else 'found '}  {fault.area:42} {'' if status == 0 else said}",
                flush=True,
            )
    print(
        f"{len(numbers) - len(missed)} of {len(numbers)} found, --slice={arguments.slice}; missed: {missed or 'none'}"
    )
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
