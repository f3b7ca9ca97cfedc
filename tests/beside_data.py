"""What lies beside prepared data, read as anybody would: by `json` and `yaml`, not by what wrote it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import yaml
from braceexpand import braceexpand


def shard_counts(root: Path) -> dict[str, int]:
    """How many samples `.info.json` gives to each shard, in the order of the shards."""
    return json.loads((root / ".nv-meta/.info.json").read_text())["shard_counts"]


def split_parts(root: Path, name: str = "split.yaml") -> dict[str, list[str]]:
    """Which shards a split file gives to each part."""
    parts = yaml.safe_load((root / ".nv-meta" / name).read_text())["split_parts"]
    return {part: [shard for written in shards for shard in braceexpand(written)] for part, shards in parts.items()}


def described(root: Path, name: str = "dataset.yaml") -> dict[str, Any]:
    """What a description says, its class and its field map among it."""
    return yaml.safe_load((root / ".nv-meta" / name).read_text())


@contextlib.contextmanager
def being_prepared(root: Path) -> Generator[None]:
    """As if another process prepared the dataset: that has a lock on its folder."""
    folder = os.open(root / ".nv-meta", os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(folder)
