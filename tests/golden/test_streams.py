"""The stream of every configuration is the recorded one, step for step; saved states go on where they stood."""

from __future__ import annotations

import pytest
from golden import streams
from golden.configurations import CONFIGURATIONS
from golden.record import recorded

import energon_grain

pytestmark = pytest.mark.slow

STREAMS = recorded("streams")


@pytest.mark.parametrize("name", STREAMS)
def test_stream(name: str) -> None:
    configuration, hosts = name.rsplit(", ", 1)
    found = streams.record_hosts(CONFIGURATIONS[configuration], energon_grain, int(hosts.split()[0]))
    for rank, (before, now) in enumerate(zip(STREAMS[name], found, strict=True)):
        assert streams.difference(f"{name}, host {rank}", before, now) is None


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_recorded_state_goes_on(name: str) -> None:
    (before,) = STREAMS[f"{name}, 1 host"]
    segment = streams.resumed(CONFIGURATIONS[name], energon_grain, before["state"])
    assert segment == before["segments"][streams.SAVED_AT // streams.SEGMENT]


def test_every_configuration_is_recorded() -> None:
    hosts = [f"{name}, {n} host{'s' * (n > 1)}" for name, one in CONFIGURATIONS.items() for n in one.hosts]
    assert hosts == list(STREAMS)
