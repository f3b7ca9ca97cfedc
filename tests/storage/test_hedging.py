"""When requests are sent again: after three times the usual latency, and seldom."""

from __future__ import annotations

import time

import pytest
from object_server import Bucket, Fault
from patience import PATIENCE_S

from energon_grain import StorageSettings
from energon_grain.stores import object_client
from energon_grain.stores.hedging import HedgeBudget, Latencies
from energon_grain.stores.object_client import ObjectClient, ObjectRange, OnFirstByte

CONTENT = bytes(range(250)) * 40


def test_the_delay_is_three_times_what_nine_in_ten_take() -> None:
    latencies = Latencies()
    for number in range(7):
        latencies.observe("s3://a", 1000, number / 10)
    assert latencies.hedge_after_s("s3://a", 1000, unknown_s=7.0) == 7.0
    for number in range(7, 100):
        latencies.observe("s3://a", 1000, number / 10)
    assert latencies.hedge_after_s("s3://a", 1000) == pytest.approx(3 * 9.3)  # of the last 64
    for _ in range(64):
        latencies.observe("s3://a", 1000, 0.001)
    assert latencies.hedge_after_s("s3://a", 1000) == 0.2


def test_stores_and_sizes_are_told_apart() -> None:
    latencies = Latencies()
    for _ in range(8):
        latencies.observe("s3://a", 0, 0.1)
        latencies.observe("s3://a", 8 << 20, 1.0)
    assert latencies.hedge_after_s("s3://a", 64 << 10) == pytest.approx(0.3)
    assert latencies.hedge_after_s("s3://a", 6 << 20) == pytest.approx(3.0)
    assert latencies.hedge_after_s("s3://a", 1 << 20) == latencies.hedge_after_s("s3://b", 0) == 2.0


def test_one_in_twenty_is_sent_again_and_few_at_once() -> None:
    budget = HedgeBudget(at_once=32)
    assert [budget.spend() for _ in range(6)] == [True] * 4 + [False] * 2
    for _ in range(60):
        budget.earn()
    assert [budget.spend() for _ in range(4)] == [True] * 3 + [False]
    for _ in range(10_000):
        budget.earn()
    assert sum(budget.spend() for _ in range(100)) == 32


def test_swallowed_requests_cost_little(bucket: Bucket) -> None:
    """Without another copy each would take the timeout, which is longer than the whole test may take."""
    bucket.put("x", CONTENT)
    client = ObjectClient(StorageSettings(timeout_s=10 * PATIENCE_S, requests_in_flight=4))
    bucket.server.inject(Fault("stall", match="/x", times=None, every=40))
    wanted = [ObjectRange(f"{bucket.url}/x", start, start + 10) for start in range(0, 4000, 10)]
    found = client.map(client.read, wanted)
    assert b"".join(one.data or b"" for one in found if one is not None) == CONTENT[:4000]
    assert 10 <= client.traffic.sent_twice <= 4 + len(wanted) // 20
    assert len(bucket.server.requests("/x")) == len(wanted) + client.traffic.sent_twice


def test_a_copy_may_be_swallowed_too(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("energon_grain.stores.object_client.SECOND_REQUEST_SECONDS", 0.1)
    bucket.put("x", CONTENT)
    client = ObjectClient(StorageSettings(timeout_s=10 * PATIENCE_S))
    bucket.server.inject(Fault("stall", match="/x", times=2))
    found = client.read(ObjectRange(f"{bucket.url}/x"))
    assert found is not None
    assert found.data == CONTENT
    assert client.traffic.sent_twice == 2


def test_a_response_that_has_begun_is_waited_for_without_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each check takes the interpreter's lock from the threads that receive."""
    monkeypatch.setattr(object_client, "SECOND_REQUEST_SECONDS", 0.01)
    checks: list[None] = []
    monkeypatch.setattr(object_client, "_check_needed", lambda: checks.append(None))
    client = ObjectClient(StorageSettings())

    def ask(on_first_byte: OnFirstByte) -> int:
        on_first_byte()
        time.sleep(1.0)
        return 7

    assert client._once(ask, "a store", 1, repeated=False) == 7
    assert len(checks) <= 12  # every 0.2 s, and before; every 10 ms: 100
