"""Damaged files of every form of tables, by the thousand: each one reads equal, or is refused by an error of ours.

    python tests/fuzz_tables.py [--inputs 4482] [--seed 1] [FORM …]

prints for each form how many inputs read equal, were refused, read different without an error, and ended otherwise (a
raw error, a signal, 20 s). Damage is a flipped bit, a changed byte, a cut, zeros, inserted bytes or two pieces swapped.
Where a form has checksums, differences from damage within what they cover count as `different`, and others as
`uncovered`. Inputs are read in forked children with a limit on memory.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import resource
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from form_fuzzing import container_source
from parquet_files import FILE, features, files, write_parquet
from table_forms import write_arrow, write_feather, write_mds, write_tokens

from energon_grain.errors import EnergonGrainError
from energon_grain.testing import write_tars

_SECONDS_AN_INPUT = 20
_MEMORY_BYTES = 4 << 30
_INPUTS_A_CHILD = 100
_ROWS = 60
_PLAIN: dict[str, Any] = {
    "n": list(range(_ROWS)),
    "text": [f"text {number} {'x' * (number % 7)}" for number in range(_ROWS)],
    "raw": [bytes([number]) * (number % 40) for number in range(_ROWS)],
}
_RICH: dict[str, Any] = {
    **_PLAIN,
    "lists": pa.array([[number] * (number % 3) for number in range(_ROWS)]),
    "kind": pa.array(["a", "b", "c"] * (_ROWS // 3)).dictionary_encode(),
    "picture": pa.array(files([b"P%d" % number for number in range(_ROWS)]), FILE),
    "inner": pa.array([{"a": [number]} if number % 4 else None for number in range(_ROWS)]),
}
_MEDIA = features(picture={"_type": "Image"})


def _parquet(**options: Any) -> Callable[[Path], Path]:
    return lambda folder: write_parquet(folder / "x.parquet", _RICH, metadata=_MEDIA, row_group_size=20, **options)


def _tar(folder: Path) -> Path:
    samples = ({"__key__": f"{number:04d}", "txt": _PLAIN["text"][number]} for number in range(_ROWS))
    write_tars(folder, samples, shards=1)
    return next(folder.glob("*.tar"))


def _lines(folder: Path) -> Path:
    folder.mkdir(parents=True)
    path = folder / "x.jsonl"
    path.write_text("".join(json.dumps({"n": n, "text": text}) + "\n" for n, text in enumerate(_PLAIN["text"])))
    return path


def _tokens(folder: Path) -> Path:
    return write_tokens(folder / "x", [range(number % 9) for number in range(_ROWS)], sequence=3)


def _pages(data: bytes) -> tuple[int, int]:
    """Of a Parquet file, what is before the footer."""
    return 4, len(data) - 8 - int.from_bytes(data[-8:-4], "little")


@dataclass(frozen=True, kw_only=True)
class FuzzedForm:
    """One form of tables.

    Attributes:
        write: Writes a good one into a folder, and gives its path.
        damaged: Names of its files that are damaged, in turn.
        covered: First byte and one past the last of those that checksums cover, where the form has any.
    """

    write: Callable[[Path], Path]
    damaged: tuple[str, ...]
    covered: Callable[[bytes], tuple[int, int]] | None = None


FORMS: dict[str, FuzzedForm] = {
    "parquet": FuzzedForm(write=_parquet(compression="none"), damaged=("x.parquet",)),
    "parquet-snappy": FuzzedForm(write=_parquet(compression="snappy"), damaged=("x.parquet",)),
    "parquet-zstd": FuzzedForm(write=_parquet(compression="zstd"), damaged=("x.parquet",)),
    "parquet-checksums": FuzzedForm(
        write=_parquet(compression="snappy", write_page_checksum=True), damaged=("x.parquet",), covered=_pages
    ),
    "arrow-stream": FuzzedForm(
        write=lambda folder: write_arrow(folder / "x.arrow", _RICH, metadata=_MEDIA, rows=20), damaged=("x.arrow",)
    ),
    "arrow-file": FuzzedForm(
        write=lambda folder: write_feather(folder / "x.feather", _RICH, rows=20), damaged=("x.feather",)
    ),
    "arrow-zstd": FuzzedForm(
        write=lambda folder: write_feather(folder / "x.feather", _RICH, rows=20, compression="zstd"),
        damaged=("x.feather",),
    ),
    "mds": FuzzedForm(write=lambda folder: write_mds(folder, _PLAIN), damaged=("shard.00000.mds", "index.json")),
    "mds-zstd": FuzzedForm(
        write=lambda folder: write_mds(folder, _PLAIN, compression="zstd"), damaged=("shard.00000.mds.zstd",)
    ),
    "mds-hashes": FuzzedForm(
        write=lambda folder: write_mds(folder, _PLAIN, hashes=("xxh64",)),
        damaged=("shard.00000.mds",),
        covered=lambda data: (0, len(data)),
    ),
    "tar": FuzzedForm(write=_tar, damaged=("*.tar",)),
    "tokens": FuzzedForm(write=_tokens, damaged=("x.idx", "x.bin")),
    "jsonl": FuzzedForm(write=_lines, damaged=("x.jsonl",)),
}
NO_DIFFERENCE = ("parquet-checksums", "mds-hashes")
"""Forms of which no input may read different within what checksums cover."""
NO_SHORTER = ("arrow-file", "arrow-zstd")
"""Forms with a footer, of which no cut may be read without an error."""

Damaged = tuple[str, bytes, tuple[int, int]]
"""The way, the bytes, and the first byte and one past the last of the good file that it touched."""


def _flip(data: bytes, rng: random.Random) -> Damaged:
    at = rng.randrange(len(data))
    return "flip", data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :], (at, at + 1)


def _byte(data: bytes, rng: random.Random) -> Damaged:
    at = rng.randrange(len(data))
    return "byte", data[:at] + bytes([rng.choice([0, 255, rng.randrange(256)])]) + data[at + 1 :], (at, at + 1)


def _cut(data: bytes, rng: random.Random) -> Damaged:
    at = rng.randrange(len(data))
    return "cut", data[:at], (at, len(data))


def _zeros(data: bytes, rng: random.Random) -> Damaged:
    at, size = rng.randrange(len(data)), rng.choice([1, 8, 64, 512])
    end = min(len(data), at + size)
    return "zeros", data[:at] + bytes(end - at) + data[end:], (at, end)


def _insertion(data: bytes, rng: random.Random) -> Damaged:
    at, size = rng.randrange(len(data)), rng.choice([1, 8, 64])
    return "insertion", data[:at] + rng.randbytes(size) + data[at:], (at, len(data))


def _swap(data: bytes, rng: random.Random) -> Damaged:
    size = rng.choice([1, 8, 64])
    first, second = sorted(rng.randrange(max(1, len(data) - size)) for _ in range(2))
    second = max(second, min(first + size, len(data)))
    ends = first + size, second + size
    changed = data[:first] + data[second : ends[1]] + data[ends[0] : second] + data[first : ends[0]] + data[ends[1] :]
    return "swap", changed, (first, min(len(data), ends[1]))


WAYS = (_flip, _byte, _cut, _zeros, _insertion, _swap)


def _input(form: str, good: dict[str, bytes], number: int, seed: int) -> tuple[str, Damaged]:
    """Which file is damaged in an input of a form, and how."""
    names = FORMS[form].damaged
    pattern = names[number % len(names)]
    name = next(each for each in good if Path(each).match(pattern))
    rng = random.Random(f"{seed} {form} {number}")
    return name, WAYS[number // len(names) % len(WAYS)](good[name], rng)


def _shown(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    return bytes(value) if isinstance(value, memoryview | bytearray) else value


def rows_of(path: Path) -> list[Any]:
    """The key and all parts of each row, and all columns of numbers. Raises as reading does."""
    source = container_source(path)
    try:
        count = min(len(source), 1000)
        batches = (source.read(np.arange(begin, min(begin + 7, count))) for begin in range(0, count, 7))
        rows = [(row.key, {name: _shown(part) for name, part in row.parts.items()}) for each in batches for row in each]
        columns = [(name, _shown(np.asarray(source.column(name, np.arange(count))))) for name in source.columns]
        return [*rows, *columns]
    finally:
        source.close()


def _outcome(form: str, path: Path, name: str, damaged: Damaged, good: list[Any], covered: Any) -> str:
    way, _, touched = damaged
    signal.alarm(_SECONDS_AN_INPUT)
    try:
        found = rows_of(path)
    except EnergonGrainError as error:
        named = name in str(error) or path.name in str(error) or str(path) in str(error)
        return "refused" if named else f"raw: names no file: {type(error).__name__}: {error}"
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        return f"raw: {type(error).__name__}: {error} ({Path(at.filename).name}:{at.lineno})"
    finally:
        signal.alarm(0)
    if found == good:
        return "equal"
    if way == "cut" and form in NO_SHORTER:
        return "different: cut"
    if covered is not None and not (covered[0] <= touched[0] and touched[1] <= covered[1]):
        return "uncovered"
    return f"different: {way} @ {touched[0]}"


def _copied(good: dict[str, bytes], folder: Path) -> None:
    for name, data in good.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def _outcomes(form: str, folder: Path, numbers: range, seed: int) -> Iterator[str]:
    """How inputs of a form end, of which each has a folder of its own."""
    written = FORMS[form].write(folder / "good")
    good = {str(each.relative_to(folder / "good")): each.read_bytes() for each in (folder / "good").rglob("*.*")}
    expected = rows_of(written)
    for number in numbers:
        name, damaged = _input(form, good, number, seed)
        covers = FORMS[form].covered
        covered = None if covers is None else covers(good[name])
        own = folder / str(number)
        _copied({**good, name: damaged[1]}, own)
        yield _outcome(form, own / written.relative_to(folder / "good"), name, damaged, expected, covered)


def _child(form: str, numbers: range, seed: int, pipe: int) -> None:
    """Write how inputs end, a line each, and end the process."""
    logging.disable(logging.CRITICAL)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with os.fdopen(pipe, "w") as lines, tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = f"{folder}/cache"
        for outcome in _outcomes(form, Path(folder, "data"), numbers, seed):
            lines.write(outcome.replace("\n", " ") + "\n")
            lines.flush()


def fuzz(form: str, count: int, seed: int) -> list[str]:
    """How each input of a form ends. What ends a child, a signal or too much time, is the outcome of its input."""
    found: list[str] = []
    while len(found) < count:
        numbers = range(len(found), min(count, len(found) + _INPUTS_A_CHILD))
        read, write = os.pipe()
        child = os.fork()
        if not child:
            status = 1
            try:
                os.close(read)
                _child(form, numbers, seed, write)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        os.close(write)
        with os.fdopen(read) as lines:
            found += [line.rstrip("\n") for line in lines]
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status > 0:
            raise RuntimeError(f"{form}: a child ended with {status}")
        if status < 0:
            found.append(f"raw: {signal.Signals(-status).name}")
    return found


KINDS = ("equal", "refused", "different", "uncovered", "raw")


def run(forms: list[str], inputs: int, seed: int) -> dict[str, list[str]]:
    """How the inputs of all forms end, of each about as many."""
    shares = [inputs // len(forms) + (place < inputs % len(forms)) for place in range(len(forms))]
    return {form: fuzz(form, share, seed) for form, share in zip(forms, shares, strict=True)}


def faults(found: dict[str, list[str]]) -> list[str]:
    """What must not be: raw errors in any form, and differences in those of `NO_DIFFERENCE` and `NO_SHORTER`."""
    wrong = {form: ["raw"] for form in found}
    for form in NO_DIFFERENCE:
        wrong.setdefault(form, []).append("different")
    for form in NO_SHORTER:
        wrong.setdefault(form, []).append("different: cut")
    return [
        f"{form} {number}: {outcome}"
        for form, outcomes in found.items()
        for number, outcome in enumerate(outcomes)
        if outcome.startswith(tuple(wrong[form]))
    ]


def main() -> None:
    """Fuzz all forms, or some, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("forms", nargs="*", metavar="FORM", help=", ".join(FORMS))
    parser.add_argument("--inputs", type=int, default=4482)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    found = run(options.forms or list(FORMS), options.inputs, options.seed)
    print(f"{'form':<20}{'inputs':>8}" + "".join(f"{kind:>11}" for kind in KINDS))
    total = Counter[str]()
    for form, outcomes in found.items():
        counts = Counter(outcome.partition(":")[0] for outcome in outcomes)
        total += counts
        print(f"{form:<20}{len(outcomes):>8}" + "".join(f"{counts[kind]:>11}" for kind in KINDS))
    print(f"{'all':<20}{total.total():>8}" + "".join(f"{total[kind]:>11}" for kind in KINDS))
    wrong = faults(found)
    print("\n".join(wrong), end="\n" if wrong else "")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
