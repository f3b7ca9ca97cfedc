# SPDX-License-Identifier: Apache-2.0
"""The folder of a test dataset: emptied, filled with shards, damaged if requested, prepared."""

from __future__ import annotations

import io
import json
import os
import shutil
import tarfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, Unpack

import numpy as np

from energon_grain.errors import ConfigError
from energon_grain.formats.nv_meta import META_FOLDER
from energon_grain.formats.splits import DEFAULT_SPLIT_CONFIG, SplitConfig, write_split_config
from energon_grain.prepare.preparation import prepare_dataset


def write_tars(
    root: str | os.PathLike[str],
    samples: Iterable[Mapping[str, Any]],
    *,
    shards: int | None = None,
    samples_per_shard: int | None = None,
    name: str = "shard_{:03d}.tar",
    tar_format: int = tarfile.GNU_FORMAT,
) -> list[Path]:
    """Write samples as tar shards below `root`, with the same bytes for the same samples.

    A sample is a mapping with its key at `__key__` and its parts by name. Bytes are written unchanged, text as UTF-8,
    integers as text, arrays as `.npy` files, lists and mappings as JSON.

    Args:
        root: The folder, created if missing.
        samples: The samples, in order. With `samples_per_shard` they are consumed one shard at a time.
        shards: Number of shards; the samples are divided into that many runs, whose lengths differ by at most one.
        samples_per_shard: Samples of each shard except the last; use this or `shards`. Default: one shard.
        name: File name by shard number, relative to `root`; may contain folders.
        tar_format: `tarfile.USTAR_FORMAT`, `GNU_FORMAT` or `PAX_FORMAT`.

    Returns:
        The tars, in order.

    Raises:
        ConfigError: Both numbers are set, a number is invalid, or a sample has no key.
    """
    if shards is not None and samples_per_shard is not None:
        raise ConfigError("shards and samples_per_shard are both set: use only one of them")
    if (shards is not None and shards < 1) or (samples_per_shard is not None and samples_per_shard < 1):
        raise ConfigError(f"shards={shards}, samples_per_shard={samples_per_shard}: expected at least 1")
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
    """Return the bytes of a part; see `write_tars`."""
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
        raise ConfigError(f"a sample with the parts {sorted(sample)} has no `__key__`: add one")
    for part, value in sample.items():
        if part == "__key__":
            continue
        payload = encode_part(value)
        member = tarfile.TarInfo(f"{sample['__key__']}.{part}")  # time 0, owner 0: independent of the machine
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


_MARK = ".energon-grain-test-data"


class Options(TypedDict, total=False):
    """Options of every dataset in `energon_grain.testing`."""

    n: int
    shards: int
    seed: int
    prepared: bool
    broken: Collection[int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """How the samples of a kind of dataset are made.

    Attributes:
        parts: Makes the parts of sample i with its own random generator.
        breaks: The part that is damaged in broken samples; None if no part is decoded.
        sample_type: The sample type in `dataset.yaml`; None for a crude dataset.
        field_map: Its field map.
    """

    parts: Callable[[int, np.random.Generator], Mapping[str, Any]]
    breaks: str | None
    sample_type: str | None = None
    field_map: Mapping[str, str] | None = None


def write_dataset(root: str | os.PathLike[str], recipe: Recipe, **options: Unpack[Options]) -> Path:
    """Write a dataset from `recipe`; for the options, see `energon_grain.testing`.

    Raises:
        ConfigError: The options contradict each other, or `root` contains files that such a call did not write.
    """
    root = Path(root)
    unknown = options.keys() - Options.__annotations__.keys()
    if unknown:
        raise TypeError(f"unknown option {sorted(unknown)[0]!r}. Known options: {', '.join(Options.__annotations__)}")
    n, shards, broken = options.get("n", 100), options.get("shards", 4), frozenset(options.get("broken", ()))
    if not 1 <= shards <= n:
        raise ConfigError(f"n={n}, shards={shards}: expected at least one shard, and one sample per shard")
    if broken and recipe.breaks is None:
        raise ConfigError("broken=...: the parts of this dataset stay bytes, so none of them can fail to decode")
    if not all(0 <= number < n for number in broken):
        raise ConfigError(f"broken={sorted(broken)}: expected sample numbers from 0 to {n - 1}")
    _empty(root)
    paths = write_tars(root, _samples(recipe, n, options.get("seed", 0), broken), shards=shards)
    if options.get("prepared", True):
        _prepare(root, recipe, [path.name for path in paths])
    return root


def _samples(recipe: Recipe, n: int, seed: int, broken: Collection[int]) -> Iterator[dict[str, Any]]:
    for i in range(n):
        parts = {name: encode_part(value) for name, value in recipe.parts(i, np.random.default_rng((seed, i))).items()}
        if i in broken and recipe.breaks is not None:
            parts[recipe.breaks] = _break(parts[recipe.breaks])
        yield {"__key__": f"{i:06d}", **parts}


def _break(payload: bytes) -> bytes:
    """Return bytes that are invalid as image, JSON, integer, array and UTF-8."""
    return payload[: len(payload) // 8] + b"\xff\x00 broken on purpose"


def _prepare(root: Path, recipe: Recipe, shards: list[str]) -> None:
    ratio = {"train": len(shards) - 1, "val": 1} if len(shards) > 1 else {"train": 1}
    prepare_dataset(
        root,
        shards=shards,
        split_ratio=ratio,
        sample_type=recipe.sample_type,
        field_map=recipe.field_map,
        crude=recipe.sample_type is None,
        num_workers=0,
    )
    if len(shards) == 1:
        config = SplitConfig(split_parts={"train": tuple(shards), "val": tuple(shards)})
        write_split_config(root / META_FOLDER / DEFAULT_SPLIT_CONFIG, config)


def _empty(root: Path) -> None:
    """Make `root` a folder that contains only the mark."""
    root.mkdir(parents=True, exist_ok=True)
    if (root / _MARK).exists():
        for path in root.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
    if any(root.iterdir()):
        raise ConfigError(f"{root}: contains files that energon_grain.testing did not write: use a new or empty folder")
    (root / _MARK).write_text("Written by energon_grain.testing, which replaces this folder when it runs again.\n")
