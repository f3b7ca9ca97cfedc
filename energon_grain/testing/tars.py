"""Writing samples as tar shards."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from energon_grain.errors import ConfigError


def write_tars(
    root: str | os.PathLike[str],
    samples: Iterable[Mapping[str, Any]],
    *,
    shards: int | None = None,
    samples_per_shard: int | None = None,
    name: str = "shard_{:03d}.tar",
    tar_format: int = tarfile.GNU_FORMAT,
) -> list[Path]:
    """Write samples as tar shards below `root`, the same bytes for the same samples.

    A sample is a mapping with its key at `__key__` and its parts by name. Parts that are bytes are written as they are;
    text as UTF-8, integers as text, arrays as `.npy` files, lists and mappings as JSON.

    Args:
        root: The folder, made where it is missing.
        samples: The samples, in order. With `samples_per_shard` they are consumed one shard at a time.
        shards: Number of shards; the samples are cut into that many runs, whose lengths differ by at most one.
        samples_per_shard: Samples of each shard but the last; give this or `shards`. One shard if neither is given.
        name: File name by shard number, relative to `root`; may hold folders.
        tar_format: `tarfile.USTAR_FORMAT`, `GNU_FORMAT` or `PAX_FORMAT`.

    Returns:
        The tars, in order.

    Raises:
        ConfigError: Both or impossible numbers are given, or a sample has no key.
    """
    if shards is not None and samples_per_shard is not None:
        raise ConfigError("Give `shards` or `samples_per_shard`, not both")
    if (shards is not None and shards < 1) or (samples_per_shard is not None and samples_per_shard < 1):
        raise ConfigError(f"shards={shards}, samples_per_shard={samples_per_shard}: must be at least 1")
    paths: list[Path] = []
    runs = _runs_of(samples, samples_per_shard) if samples_per_shard else _cut(list(samples), shards or 1)
    for number, run in enumerate(runs):
        path = Path(root) / name.format(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(path, "w", format=tar_format) as tar:
            for sample in run:
                _add_sample(tar, sample)
        paths.append(path)
    return paths


def encode_part(value: Any) -> bytes:
    """Return the bytes of a part: see `write_tars`."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, np.ndarray):
        buffer = io.BytesIO()
        np.save(buffer, value, allow_pickle=False)
        return buffer.getvalue()
    return json.dumps(value, ensure_ascii=False).encode()


def _add_sample(tar: tarfile.TarFile, sample: Mapping[str, Any]) -> None:
    if "__key__" not in sample:
        raise ConfigError(f"A sample with the parts {sorted(sample)} has no `__key__`")
    for part, value in sample.items():
        if part == "__key__":
            continue
        payload = encode_part(value)
        member = tarfile.TarInfo(f"{sample['__key__']}.{part}")  # time 0, owner 0: nothing depends on the machine
        member.size = len(payload)
        tar.addfile(member, io.BytesIO(payload))


def _runs_of(samples: Iterable[Mapping[str, Any]], length: int) -> Iterator[list[Mapping[str, Any]]]:
    run: list[Mapping[str, Any]] = []
    for sample in samples:
        run.append(sample)
        if len(run) == length:
            yield run
            run = []
    if run:
        yield run


def _cut(samples: Sequence[Mapping[str, Any]], shards: int) -> Iterator[Sequence[Mapping[str, Any]]]:
    for shard in range(shards):
        yield samples[shard * len(samples) // shards : (shard + 1) * len(samples) // shards]
