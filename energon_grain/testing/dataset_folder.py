"""The folder of a test dataset: emptied, filled with shards, damaged where asked, prepared."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, Unpack

import numpy as np

from energon_grain.errors import ConfigError
from energon_grain.formats.nv_meta import META_FOLDER
from energon_grain.formats.splits import DEFAULT_SPLIT_CONFIG, SplitConfig, write_split_config
from energon_grain.testing.tars import encode_part, write_tars

_MARK = ".energon-grain-test-data"


class Options(TypedDict, total=False):
    """What every dataset of `energon_grain.testing` can be asked for."""

    n: int
    shards: int
    seed: int
    prepared: bool
    broken: Collection[int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """How the samples of a kind of dataset are made.

    Attributes:
        parts: Makes the parts of sample i with a generator that is its own.
        breaks: The part that is damaged in broken samples; None where nothing is ever decoded.
        sample_type: The type that `dataset.yaml` names; None for a crude dataset.
        field_map: Its field map.
    """

    parts: Callable[[int, np.random.Generator], Mapping[str, Any]]
    breaks: str | None
    sample_type: str | None = None
    field_map: Mapping[str, str] | None = None


def write_dataset(root: str | os.PathLike[str], recipe: Recipe, **options: Unpack[Options]) -> Path:
    """Write a dataset by `recipe`; `energon_grain.testing` says what the options are.

    Raises:
        ConfigError: The options do not fit each other, or `root` holds files that such a call did not write.
    """
    root = Path(root)
    unknown = options.keys() - Options.__annotations__.keys()
    if unknown:
        raise TypeError(f"there is no option {sorted(unknown)[0]!r}; there are {', '.join(Options.__annotations__)}")
    n, shards, broken = options.get("n", 100), options.get("shards", 4), frozenset(options.get("broken", ()))
    if not 1 <= shards <= n:
        raise ConfigError(f"n={n}, shards={shards}: every shard needs at least one sample, and there must be one shard")
    if broken and recipe.breaks is None:
        raise ConfigError("broken=...: the parts of this dataset stay bytes, so none of them can fail to decode")
    if not all(0 <= number < n for number in broken):
        raise ConfigError(f"broken={sorted(broken)}: samples are numbered from 0 to {n - 1}")
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
    """Return bytes that neither an image decoder nor JSON, integers, arrays or UTF-8 make anything of."""
    return payload[: len(payload) // 8] + b"\xff\x00 broken on purpose"


def _prepare(root: Path, recipe: Recipe, shards: list[str]) -> None:
    from energon_grain.prepare import prepare_dataset

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
    """Make `root` a folder that holds nothing but our mark."""
    root.mkdir(parents=True, exist_ok=True)
    if (root / _MARK).exists():
        for path in root.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
    if any(root.iterdir()):
        raise ConfigError(f"{root}: holds files that energon_grain.testing did not write; give a new or empty folder")
    (root / _MARK).write_text("Written by energon_grain.testing, which replaces this folder when asked again.\n")
