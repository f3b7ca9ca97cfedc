"""What importing costs: nothing heavy until a name that needs it is used."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

RunScript = Callable[..., Any]

LAZY = """
import sys

def heavy(*more):
    names = ("grain", "jax", "jaxlib", "torch", "tensorstore", "orbax", "tensorflow", *more)
    return sorted(name for name in names if name in sys.modules)

import energon_grain
assert heavy("numpy", "PIL", "yaml") == [], heavy("numpy", "PIL", "yaml")
import energon_grain.loader
assert heavy("numpy") == [], heavy("numpy")
assert set(energon_grain.loader.__all__) <= set(dir(energon_grain.loader))

from energon_grain import WorkerConfig, get_train_dataset
for batch in get_train_dataset(sys.argv[1], batch_size=4, shuffle_buffer_size=10, max_samples_per_sequence=4):
    assert len(batch.text) == 4
    break
from energon_grain import Stream
with Stream.of(get_train_dataset(
    sys.argv[1], batch_size=4, shuffle_buffer_size=10, max_samples_per_sequence=4, worker_config=WorkerConfig(0, 1, 1)
)) as stream:
    next(stream)
assert heavy("PIL", "msgpack", "cbor2", "av") == [], heavy("PIL", "msgpack", "cbor2", "av")

from energon_grain import get_loader
assert heavy() and "torch" not in heavy(), heavy()
try:
    energon_grain.loader.no_such_name
except AttributeError as error:
    assert "no_such_name" in str(error)
else:
    raise AssertionError
"""


def test_reading_imports_no_framework(text_dataset: Callable[..., Path], run_script: RunScript) -> None:
    done = run_script(LAZY, text_dataset(53))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
