"""For tests that fork a process in which other tests may have started JAX's threads."""

from __future__ import annotations

import pytest

MAY_FORK = [
    # What is forked uses neither JAX nor a thread that is not its own.
    pytest.mark.filterwarnings(r"ignore:os\.fork\(\) was called:RuntimeWarning"),
    pytest.mark.filterwarnings(r"ignore:.*multi-threaded, use of fork\(\):DeprecationWarning"),  # Python 3.12
]
