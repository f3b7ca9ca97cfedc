from __future__ import annotations

import pytest

from energon_grain.stream.workers import worker_death


@pytest.mark.parametrize(
    ("code", "import_script", "how", "memory", "guard"),
    [
        (-9, True, "was killed by signal 9", True, False),
        (None, False, "ended", True, False),
        (1, True, "ended with exit code 1", False, True),
        (1, False, "ended with exit code 1", False, False),
        (3, True, "ended with exit code 3", False, False),
    ],
)
def test_the_advice_fits_how_it_died(
    code: int | None, import_script: bool, how: str, memory: bool, guard: bool
) -> None:
    said = str(worker_death([(0, 17, code)], import_script=import_script))
    assert said.startswith(f"worker process 0 (pid 17) {how} while it was needed")
    assert ("ran out of memory" in said, "__main__" in said) == (memory, guard)
