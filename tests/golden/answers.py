"""What is recorded besides streams: files that preparing writes, answers of commands, public names, reads by index."""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import grain
from cli_runs import run
from golden import golden_hooks as hooks
from golden.configurations import FULL, Bench
from golden.streams import digest_of

import energon_grain
from energon_grain import EpochIndex, MultiEpochDatasetResampler, MultiEpochLeaf
from energon_grain.loader import BatchIterDataset, BatchMapDataset, EnergonDataSource

_RANDOM = re.compile(
    r"(?<=/)g[0-9a-f]{16}(?=[/\"])|\"g[0-9a-f]{16}\"|(?<=join_)(index_)?[0-9a-f]{64}"
    r"|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|(?<= at )0x[0-9a-f]+"
)
"""Names of generations of an index, of a join's, uuids, and addresses of objects: anew each time."""


def files(root: Path) -> dict[str, str]:
    """Digest of every file that was written beside the data, by path; names that are random are masked in both."""
    found: dict[str, list[str]] = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if not path.is_file() or not re.search(r"\.nv-meta/|\.idx$|\.yaml\.cache/|\.array_record$", name):
            continue
        found.setdefault(_RANDOM.sub("*", name), []).append(_content(path))
    return {name: " ".join(sorted(digests)) for name, digests in found.items()}


def _content(path: Path) -> str:
    content = path.read_bytes()
    if path.suffix == ".sqlite":  # the library's version and its count of changes: bytes 24 to 28 and 92 to 100
        content = content[:24] + content[28:92] + content[100:]
    elif path.suffix in (".json", ".uuid"):
        text = _RANDOM.sub("*", content.decode())
        if ".yaml.cache" in path.parts[-3]:  # what was joined goes by random names, and so do sums over them
            text = re.sub(r'"[0-9a-f]{16,64}"', '"*"', text)
        content = text.encode()
    elif path.suffix == ".bin":
        content = b"%d" % len(content)  # Energon's join index holds hashes of uuids
    return hashlib.blake2b(content, digest_size=8).hexdigest()


def commands() -> dict[str, Any]:
    """JSON of every command that prints it; of measurements, the form."""
    found: dict[str, Any] = {}
    which = ["--batch-size", "8", "--world-size", "2", "--json"]
    for arguments in (
        ["info", "web", "--json"],
        ["info", "crude", "--json"],
        ["info", "images", "--json"],
        ["info", "records", "--json"],
        ["info", "lines.jsonl", "--json"],
        ["info", "digits.zarr", "--json"],
        *(["info", name, "--json"] for name in ("blend.yaml", "epochs.yaml", "nested.yaml", "schedule.yaml")),
        ["info", "concat.yaml", "--json"],
        ["info", "old.yaml", "--json"],
        ["info", "join.yaml", "--trust-module", hooks.__name__, "--json"],
        ["which", "web", "--step", "81234", *which, "--max-samples-per-sequence", "10"],
        ["which", "blend.yaml", "--step", "123", *which],
        ["which", "lines.jsonl", "--step", "7", *which],
        ["lint", "web", "--json"],
        ["lint", "nested.yaml", "--json"],
        ["schema"],
    ):
        found[" ".join(arguments)] = _answer(arguments)
    broken = ["lint", "images", "--json"]  # two of its pictures are broken
    found[" ".join(broken)] = _answer(broken, status=1)
    bench = ["bench", "web", "--seconds", "0.01", "--workers", "0,1", "--no-progress", "--json"]
    found["bench"] = _form(_answer(bench))
    return found


def _answer(arguments: list[str], *, status: int = 0) -> Any:
    result = run(*arguments)
    assert result.exit_code == status, result.output
    return json.loads(_RANDOM.sub("*", result.stdout.replace(str(Path.cwd()), ".")))


def _form(value: Any) -> Any:
    """Keys and types of a JSON document; of a list, those of its first entry."""
    if isinstance(value, dict):
        return {key: _form(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_form(value[0])] if value and isinstance(value[0], dict) else "list"
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__


def names(api: ModuleType) -> list[str]:
    """A line for each public name, and for each public member of a class: with its signature."""
    lines: list[str] = []
    for name in api.__all__:
        value = getattr(api, name)
        lines.append(f"{name}{_told(value)}")
        if inspect.isclass(value) and not issubclass(value, enum.Enum):
            lines += [f"{name}.{member}" for member in _members(value)]
    return lines


def _members(owner: type[Any]) -> Iterator[str]:
    for name in sorted(set(dir(owner))):
        ours = next((c.__module__ for c in owner.__mro__ if name in vars(c)), "").startswith("energon_grain")
        if name.startswith("_") or not ours:
            continue
        value = inspect.getattr_static(owner, name)
        yield f"{name}{_told(value)}"
    for field in dataclasses.fields(owner) if dataclasses.is_dataclass(owner) else ():
        yield f"{field.name} (field)"


def _told(value: Any) -> str:
    if isinstance(value, staticmethod | classmethod):
        return f"{_told(value.__func__)} ({type(value).__name__})"
    if isinstance(value, property):
        return " (property)"
    if inspect.isclass(value) and issubclass(value, BaseException):
        bases = ", ".join(base.__name__ for base in value.__bases__)
        return f" ({bases})"
    if isinstance(value, FunctionType) or inspect.isclass(value):
        try:
            signature = inspect.signature(value)
        except ValueError:
            return ""
        parameters = [each.replace(annotation=inspect.Parameter.empty) for each in signature.parameters.values()]
        told = str(signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty))
        return re.sub(r" at 0x[0-9a-f]+|<function ([\w.]+)>", r"\1", told)
    return ""


def map_style() -> dict[str, str]:
    """Digests of what is read by index, and through Grain's datasets."""
    bench = Bench(energon_grain, 0, 1)
    source = EnergonDataSource("web", split_part="train")
    leaf = MultiEpochLeaf(bench.train("code", batch_size=None, **FULL))
    resampled = MultiEpochDatasetResampler(leaf, num_epochs=3, seed=5)
    batches = BatchMapDataset(bench.train("web", repeat=False))
    mapped = batches.to_iter_dataset(grain.ReadOptions(num_threads=2, prefetch_buffer_size=4))
    iterated = BatchIterDataset(bench.train("blend.yaml"))
    return {
        "EnergonDataSource": digest_of([source[i] for i in range(0, len(source), 7)]),
        "MultiEpochLeaf": digest_of([leaf[EpochIndex(i % 4, i)] for i in range(len(leaf))]),
        "MultiEpochDatasetResampler": digest_of(resampled.__getitems__(list(range(len(resampled))))),
        "BatchMapDataset": digest_of([batches[i] for i in range(len(batches))]),
        "BatchMapDataset, iterated": digest_of(list(mapped)),
        "BatchIterDataset": digest_of([batch for batch, _ in zip(iterated, range(100), strict=False)]),
    }
