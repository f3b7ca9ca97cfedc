"""Whether the program is over: then requests that are under way are given up, and no further ones begin.

Python waits for the threads of executors before it ends, and before it calls what is registered with `atexit`. A
request that stalls, or is tried again and again, would hold up the end of a program for minutes.
"""

from __future__ import annotations

import threading
from concurrent.futures import thread as executor_threads
from typing import Any

_over = threading.Event()


def program_ends() -> bool:
    """Whether the main thread has come to its end."""
    return _over.is_set() or not threading.main_thread().is_alive()


# There is no public hook that early. What was registered last is called first: before executors wait for their threads.
_register: Any = getattr(threading, "_register_atexit", None)
if _register is not None and executor_threads:
    _register(_over.set)
