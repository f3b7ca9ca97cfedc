"""Read the shards back as dicts, to write the same samples in a peer's format. Standard library only."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator


def tar_samples(path: str) -> Iterator[dict[str, bytes]]:
    """Each sample of one shard as {part: payload}."""
    with tarfile.open(path) as tar:
        key = None
        sample: dict[str, bytes] = {}
        for member in tar:
            name, _, part = member.name.partition(".")
            if name != key and sample:
                yield sample
                sample = {}
            key = name
            file = tar.extractfile(member)
            assert file is not None
            sample[part] = file.read()
        if sample:
            yield sample
