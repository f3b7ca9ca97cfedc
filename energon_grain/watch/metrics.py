# SPDX-License-Identifier: Apache-2.0
"""The numbers of loaders as metrics of Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Self
from weakref import WeakKeyDictionary

from energon_grain.errors import ConfigError
from energon_grain.watch.loader_stats import LoaderStats


class Metrics:
    """A collector of `prometheus_client`: asks for the numbers whenever the metrics are asked for.

    A registry has one for all loaders that are watched: a metric may come once, with the values of all of them.
    """

    def __init__(self) -> None:
        self._loaders: list[tuple[Callable[[], LoaderStats], str]] = []

    @classmethod
    def of(cls, registry: Any) -> Self:
        """That of a registry, which gets it when it is first asked for."""
        found = _metrics.get(registry)
        if found is None:
            found = _metrics[registry] = cls()
            registry.register(found)
        return found

    def add(self, stats: Callable[[], LoaderStats], name: str) -> Callable[[], None]:
        """Tell of a loader too, until what this returns is called.

        Raises ConfigError if another one of the registry is called so.
        """
        if any(other == name for _, other in self._loaders):
            raise ConfigError(f"watch(name={name!r}): the registry has a loader of that name; give this one another")
        loader = (stats, name)
        self._loaders.append(loader)
        return lambda: self._loaders.remove(loader)

    def describe(self) -> list[Any]:
        """Nothing: no metric is made to learn its name."""
        return []

    def collect(self) -> Iterator[Any]:
        """All metrics."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        families: dict[str, Any] = {}
        for ask, loader in list(self._loaders):
            stats = ask()
            own = {"loader": loader, "host": str(stats.setup.host)}
            for name, text, more, value in _numbers(stats):
                if name not in families:
                    kind = GaugeMetricFamily if name == "ready_batches" else CounterMetricFamily
                    families[name] = kind(f"energon_grain_{name}", text, labels=[*own, *more])
                families[name].add_metric([*own.values(), *more.values()], value)
        yield from families.values()


_metrics: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
"""Registry to its collector."""


def _numbers(stats: LoaderStats) -> Iterator[tuple[str, str, dict[str, str], float]]:
    """Name, text, labels and value of each number."""
    storage = stats.storage
    yield "batches", "Batches that were delivered", {}, stats.batches
    yield "samples", "Samples that were delivered", {}, stats.samples
    yield "read_samples", "Samples that were read", {}, stats.read_samples
    yield "read_bytes", "Bytes that reading samples took", {}, stats.read_bytes
    yield "seconds", "Time from batch to batch", {}, stats.seconds
    yield "waiting_seconds", "Of it, what the program waited for batches", {}, stats.waiting_s
    yield "ready_batches", "Batches that are ready now", {}, stats.queued
    yield "store_requests", "Requests to object stores", {}, storage.requests
    yield "store_repeated", "Requests that were made again", {}, storage.repeated
    yield "store_bytes", "Bytes that came from object stores", {}, storage.bytes_read
    yield "rereads", "Reads of local files that were tried again", {}, storage.rereads
    for answer, count in (("yes", storage.found), ("no", storage.missed)):
        yield "ranges", "Ranges of objects that were here when they were needed, or not", {"found": answer}, count
    for each in stats.stages:
        labels = {"stage": each.name, "kind": each.kind, "place": each.place}
        yield "stage_seconds", "Time of all workers together, by stage", labels, each.seconds
    for leaf in stats.leaves:
        yield "leaf_samples", "Samples that were read, by dataset", {"leaf": leaf.name}, leaf.samples
        if leaf.expected is not None:
            yield "leaf_target_samples", "As many as the weights ask for", {"leaf": leaf.name}, leaf.expected
        if leaf.cost is not None:
            yield "leaf_cost", "What they cost, in the unit of the weights", {"leaf": leaf.name}, leaf.cost
        if leaf.expected_cost is not None:
            yield "leaf_target_cost", "What the weights ask for", {"leaf": leaf.name}, leaf.expected_cost
    for leaf_name, reasons in stats.dropped.items():
        for reason, count in reasons.items():
            labels = {"leaf": leaf_name, "reason": reason}
            yield "dropped", "What was dropped, by dataset, hook and reason", labels, count
