"""Files that preparing writes, answers of the commands, public names: as they are recorded."""

from __future__ import annotations

import json

import pytest
from golden.record import WHAT, differences, recorded


@pytest.mark.parametrize("what", [name for name in WHAT if name != "streams"])
def test_as_recorded(what: str) -> None:
    now = json.loads(json.dumps(WHAT[what]()))
    found = differences(recorded(what), now, what)
    assert not found, "\n".join(found)
