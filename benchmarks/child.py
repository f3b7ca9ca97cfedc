"""The child's side of a measurement: `python -m benchmarks.MODULE '{"call": …, …}'` answers with one line of JSON.

Standard library only, because it also runs in the peers' interpreter.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

ANSWER_PREFIX = "benchmark-answer: "


def serve(**calls: Callable[..., Mapping[str, Any]]) -> None:
    """Run the call that the first argument names and print what it returns.

    The process then ends at once, worker processes first: how long a peer takes to shut down is not measured, and their
    processor time is still counted as this process's.
    """
    arguments: dict[str, Any] = json.loads(sys.argv[1])
    answer = calls[arguments.pop("call")](**arguments)
    print(ANSWER_PREFIX + json.dumps(answer), flush=True)
    sys.stderr.flush()
    for worker in multiprocessing.active_children():
        worker.kill()
        worker.join()
    os._exit(0)
