"""Rows about data in a bucket."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.contender import Contender
from benchmarks.datasets import DATA_SETS
from benchmarks.object_store import BUCKET
from benchmarks.row import Row, Target

_DATA = "bucket"
_LATENCY_S = 0.05
_PAGES_MB = 236
_METRICS = ("samples_per_s", "first_batch_s", "requests", "fetched_mb")


def object_store_rows(cache: Path) -> list[Row]:
    """All of them."""
    return [_first_pass(cache), _latency(cache), _second_pass(cache), _fetched(cache)]


def _ours(name: str = "ours", **arguments: Any) -> Contender:
    program = {"programs": "benchmarks.ours", "url": f"s3://{BUCKET}/{_DATA}", "program": "crude-blob"}
    samples = {"samples": DATA_SETS[_DATA].samples}
    call = "passes" if "warm" in arguments else "first_pass"
    return Contender(name=name, module="object_store", call=call, arguments={**program, **samples, **arguments})


def _energon(name: str = "energon", **arguments: Any) -> Contender:
    program = {"programs": "benchmarks.peers.energon", "url": f"msc://{BUCKET}/{_DATA}", "program": "crude-blob"}
    arguments = {**program, "samples": DATA_SETS[_DATA].samples, **arguments}
    return Contender(name=name, module="object_store", call="first_pass", arguments=arguments, in_peer_python=True)


def _bare(cache: Path, call: str, name: str, **arguments: Any) -> Contender:
    data = {"folder": str(cache / _DATA), "samples": DATA_SETS[_DATA].samples}
    return Contender(name=name, module="object_store_floor", call=call, arguments={**data, **arguments})


def _first_pass(cache: Path) -> Row:
    return Row(
        name="bucket",
        title="100 KB blobs + json in a bucket: the first pass, from opening on; crude data set, "
        "cooker into two fields, shuffled 100/100, batches of 32, one process",
        data_sets=(_DATA,),
        served=_DATA,
        metrics=_METRICS,
        contenders=(
            _ours(),
            _ours("ours, 2 threads", workers=2),
            _ours("ours, no blocks kept", cache_mb=0),
            _energon(),
            *(
                _bare(cache, "kvstore", f"range reads: TensorStore, {n} in flight", in_flight=n)
                for n in (2, 4, 8, 16, 32)
            ),
            _bare(cache, "http_loop", "http.client, 2 threads", in_flight=2),
        ),
        targets=(
            Target(metric="samples_per_s", bound=0.8, sense="at least", against="range reads"),
            Target(metric="samples_per_s", bound=3, sense="at least", against="energon"),
        ),
    )


def _latency(cache: Path) -> Row:
    slow = {"latency_s": _LATENCY_S}
    return Row(
        name="bucket-latency",
        title=f"the same with {_LATENCY_S * 1000:.0f} ms before each answer",
        data_sets=(_DATA,),
        served=_DATA,
        metrics=_METRICS,
        contenders=(
            _ours(**slow),
            _ours("ours, no latency"),
            _ours("ours, no blocks kept", cache_mb=0, **slow),
            _ours("ours, no blocks kept, no latency", cache_mb=0),
            _energon(**slow),
            *(
                _bare(cache, "kvstore", f"range reads: TensorStore, {n} in flight", in_flight=n, **slow)
                for n in (8, 32)
            ),
        ),
        targets=(Target(metric="samples_per_s", bound=0.7, sense="at least", against="ours, no latency"),),
    )


def _second_pass(cache: Path) -> Row:
    folder = str(cache / _DATA)
    return Row(
        name="bucket-cached",
        title="the same, from the second to the sixth pass of one process: all blocks are in the cache",
        data_sets=(_DATA,),
        served=_DATA,
        metrics=("samples_per_s", "requests", "fetched_mb"),
        contenders=(_ours(warm=1, count=5), _ours("ours, local files", url=folder, warm=1, count=5)),
        targets=(Target(metric="samples_per_s", bound=0.9, sense="at least", against="ours, local files"),),
    )


def _fetched(cache: Path) -> Row:
    def one(order: str, hosts: int, cache_mb: int) -> Contender:
        room = "" if cache_mb > _PAGES_MB else f", cache of {cache_mb} MB"
        arguments = {
            "url": f"s3://{BUCKET}/pages",
            "original": str(cache / "pages"),
            "samples": DATA_SETS["pages"].samples,
            "hosts": hosts,
            "blocks": order != "full shuffle",
            "cache_mb": cache_mb,
            "ahead_mb": 100 / hosts,
        }
        name = f"{order}, {hosts} host{'s' if hosts > 1 else ''}{room}"
        return Contender(name=name, module="object_store_hosts", call="fetched", arguments=arguments)

    cases = [one(order, hosts, 1_000) for order in ("ours: block shuffle", "full shuffle") for hosts in (1, 2, 8)]
    return Row(
        name="bucket-fetched",
        title=f"10 KB samples, {_PAGES_MB} MB in all, in blocks of 100: what all hosts together fetch in the first "
        "pass when 100 MB may be fetched ahead by all, and the most that one of them has fetched and not yet used",
        data_sets=("pages",),
        served="pages",
        metrics=("requests", "fetched_mb", "times_data", "ahead_mb"),
        contenders=(*cases, one("ours: block shuffle", 1, 100), one("full shuffle", 1, 100)),
    )
