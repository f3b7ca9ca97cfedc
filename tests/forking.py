"""Tests that fork this process."""

from __future__ import annotations

import pytest

may_fork = pytest.mark.filterwarnings(
    # Other tests of the process may have started JAX; what is forked uses neither it nor threads that are not its own.
    r"ignore:os\.fork\(\) was called:RuntimeWarning",
    r"ignore:.*multi-threaded, use of fork\(\):DeprecationWarning",  # Python 3.12
)
