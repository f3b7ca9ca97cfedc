"""What tests of resolving share."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent

import pytest
from metadatasets import FRAME, Write


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a V2 metadataset with the splits given as YAML."""

    def write(name: str, splits: str) -> Path:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{FRAME}splits:\n" + indent(splits, "  "))
        return file

    return write
