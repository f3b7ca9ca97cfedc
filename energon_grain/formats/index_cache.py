"""Where the indices of datasets lie that nothing can be written beside."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


def index_cache_folder(path: Path, cache_dir: Path | None = None) -> Path:
    """Return the folder for the index of the dataset at `path` if that is read-only; another one for each real path.

    Args:
        path: The dataset.
        cache_dir: The folder of all of them; default: `$XDG_CACHE_HOME/energon-grain`.
    """
    if cache_dir is None:
        base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        cache_dir = Path(base) / "energon-grain"
    name = hashlib.blake2b(os.fsencode(os.path.realpath(path)), digest_size=16).hexdigest()
    return cache_dir / name
