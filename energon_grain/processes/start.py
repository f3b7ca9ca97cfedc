# SPDX-License-Identifier: Apache-2.0
"""The first code of a worker process: it watches the parent before any slow import."""

from __future__ import annotations

import os
import sys
import threading
import time

_POLL_SECONDS = 0.2
_CLOSED_SECONDS = 0.05
"""When a process ends, the system closes its files a moment before its children get another parent."""


def end_with(parent: int) -> None:
    """End this process soon after its parent has ended, whatever the main thread does.

    A parent that was killed cannot end a worker that is still importing, or busy in a hook.

    Args:
        parent: Process ID of the parent. If it has ended already, this process ends at once.
    """
    threading.Thread(target=_watch, args=(parent,), name="energon-grain-parent", daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_POLL_SECONDS)
    os._exit(1)


def main() -> None:
    """End this interpreter with its parent, whose process ID is the last argument."""
    end_with(int(sys.argv[-1]))


def end_without_parent() -> None:
    """End this process at once if its parent has ended: an orderly exit takes seconds on a busy machine."""
    time.sleep(_CLOSED_SECONDS)
    if os.getppid() != int(sys.argv[-1]):
        os._exit(1)
