"""A store whose reads wait until a test lets them, and waiting for what other threads do."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from patience import PATIENCE_S

from energon_grain import SourceInfo, SystemFileStore


class SlowStore(SystemFileStore):
    """Notes what is read, and reads nothing before it may."""

    def __init__(self, base_dir: Path) -> None:
        super().__init__(base_dir)
        self.reads: list[str] = []
        self.may_read = threading.Event()

    def read(self, keys: Sequence[str]) -> list[tuple[bytes, SourceInfo]]:
        self.reads += keys
        assert self.may_read.wait(PATIENCE_S)
        return super().read(keys)


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)
