# SPDX-License-Identifier: Apache-2.0
"""A context that watches a loader: laps, a trace, metrics."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Self

from energon_grain.extras import needed_for
from energon_grain.watch.loader_stats import LoaderStats
from energon_grain.watch.metrics import Metrics
from energon_grain.watch.stream import Stream
from energon_grain.watch.trace import Trace


class Watch:
    """A context that watches a loader; see `SavableDataLoader.watch`.

    Args:
        stats: Returns the numbers of the loader.
        stream: The stream of the loader.
        trace: File for the trace; `{host}` in its name is replaced by the host.
        prometheus: A port of this machine to serve metrics at (0: any free port), or a `CollectorRegistry`.
        name: Label of the loader in the metrics.

    Attributes:
        port: Port that metrics are served at; None: not served.
    """

    def __init__(
        self,
        stats: Callable[[], LoaderStats],
        stream: Stream,
        *,
        trace: str | os.PathLike[str] | None,
        prometheus: Any,
        name: str,
    ) -> None:
        self._stats = stats
        self._outlet, self._host = stream.outlet, stream.config.rank
        self._trace = None if trace is None else os.fspath(trace).replace("{host}", str(self._host))
        self._prometheus, self._name = prometheus, name
        self._before = stats()
        self._ends: list[Callable[[], object]] = []
        self.port: int | None = None

    def lap(self) -> LoaderStats:
        """The numbers since the last lap, or since the watch began."""
        now = self._stats()
        before, self._before = self._before, now
        return now - before

    def __enter__(self) -> Self:
        try:
            if self._trace is not None:
                trace = Trace(self._trace, f"host {self._host}")
                self._ends.append(trace.close)
                self._outlet.add(trace)
                self._ends.append(lambda: self._outlet.remove(trace))
            if self._prometheus is not None:
                self._serve()
        except BaseException:
            self.__exit__()
            raise
        self._before = self._stats()
        return self

    def __exit__(self, *exception: object) -> None:
        while self._ends:
            self._ends.pop()()
        self.port = None

    def _serve(self) -> None:
        with needed_for("Prometheus metrics", instead="log loader.stats().scalars()"):
            import prometheus_client as prometheus

        if not isinstance(self._prometheus, int):
            self._ends.append(Metrics.of(self._prometheus).add(self._stats, self._name))
            return
        registry = prometheus.CollectorRegistry()
        Metrics.of(registry).add(self._stats, self._name)
        try:
            server, thread = prometheus.start_http_server(self._prometheus, registry=registry)
        except OSError as error:
            raise OSError(
                error.errno,
                f"metrics cannot be served at port {self._prometheus} ({error.strerror}): give each process of a "
                f"machine its own port, or pass prometheus=0 for any free port",
            ) from None
        self.port = server.server_port
        self._ends += [thread.join, server.server_close, server.shutdown]
