# SPDX-License-Identifier: Apache-2.0
"""The numbers of loaders as Prometheus metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Self
from weakref import WeakKeyDictionary

from energon_grain.errors import ConfigError
from energon_grain.watch.loader_stats import LoaderStats


class Metrics:
    """A collector of `prometheus_client`: reads the numbers whenever the metrics are scraped.

    A registry has one collector for all watched loaders, because a metric may occur only once, with all its values.
    """

    def __init__(self) -> None:
        self._loaders: list[tuple[Callable[[], LoaderStats], str]] = []

    @classmethod
    def of(cls, registry: Any) -> Self:
        """The collector of a registry, made and registered on first use."""
        found = _metrics.get(registry)
        if found is None:
            found = _metrics[registry] = cls()
            registry.register(found)
        return found

    def add(self, stats: Callable[[], LoaderStats], name: str) -> Callable[[], None]:
        """Add a loader, until the returned function is called.

        Raises ConfigError if the registry has another loader of that name.
        """
        if any(other == name for _, other in self._loaders):
            raise ConfigError(f"watch(name={name!r}): the registry has a loader of that name; use another name")
        loader = (stats, name)
        self._loaders.append(loader)
        return lambda: self._loaders.remove(loader)

    def describe(self) -> list[Any]:
        """Nothing: so registering reads no numbers."""
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
"""The collector of each registry."""


def _numbers(stats: LoaderStats) -> Iterator[tuple[str, str, dict[str, str], float]]:
    """Name, help text, labels and value of each metric."""
    storage = stats.storage
    yield "batches", "Delivered batches", {}, stats.batches
    yield "samples", "Delivered samples", {}, stats.samples
    yield "read_samples", "Samples read", {}, stats.read_samples
    yield "read_bytes", "Bytes read for samples", {}, stats.read_bytes
    yield "seconds", "Time from the first batch to the last", {}, stats.seconds
    yield "waiting_seconds", "Part of it that the program waited for batches", {}, stats.waiting_s
    yield "ready_batches", "Batches that are ready now", {}, stats.queued
    yield "store_requests", "Requests to object stores", {}, storage.requests
    yield "store_repeated", "Retried requests", {}, storage.repeated
    yield "store_bytes", "Bytes received from object stores", {}, storage.bytes_read
    yield "rereads", "Retried reads of local files", {}, storage.rereads
    for answer, count in (("yes", storage.found), ("no", storage.missed)):
        yield "ranges", "Ranges of objects, by whether they were cached when needed", {"found": answer}, count
    for each in stats.stages:
        labels = {"stage": each.name, "kind": each.kind, "place": each.place}
        yield "stage_seconds", "Time of all workers together, by stage", labels, each.seconds
    for leaf in stats.leaves:
        yield "leaf_samples", "Samples read, by dataset", {"leaf": leaf.name}, leaf.samples
        if leaf.expected is not None:
            yield (
                "leaf_target_samples",
                "Target samples, from the weights",
                {"leaf": leaf.name},
                leaf.expected,
            )
        if leaf.cost is not None:
            yield "leaf_cost", "Cost of the samples read, in the unit of the weights", {"leaf": leaf.name}, leaf.cost
        if leaf.expected_cost is not None:
            yield "leaf_target_cost", "Target cost, from the weights", {"leaf": leaf.name}, leaf.expected_cost
    for leaf_name, reasons in stats.dropped.items():
        for reason, count in reasons.items():
            labels = {"leaf": leaf_name, "reason": reason}
            yield "dropped", "Dropped samples, items and batches, by dataset, hook and reason", labels, count
