"""What loaders of all backends have in common: a stream, its state, the processes of all hosts, and being watched."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, ClassVar, NoReturn, Self, TextIO
from weakref import WeakKeyDictionary

from energon_grain.errors import ConfigError, EnergonGrainError, StateError
from energon_grain.extras import needed_for
from energon_grain.samples.subscripts import Item, OneSubscript
from energon_grain.stream.clock import Span, Work
from energon_grain.stream.cursor import Cursor, HostProcesses, broadcast_state, gather_cursor, merge_cursors
from energon_grain.stream.spec import names_of_leaves
from energon_grain.stream.statistics import Statistics
from energon_grain.stream.stream import Stream
from energon_grain.stream.which import StepSamples
from energon_grain.tracebacks import public, shorten
from energon_grain.watch.loader_stats import LoaderStats

_logger = logging.getLogger("energon_grain")
_REDRAWN_S = 0.5
_MARKS = 20
"""A line on a terminal tells of the last ten seconds, another one of the time since the one before it."""
_MOST_EVENTS = 1_000_000
"""Of a trace: some 150 MB. Perfetto opens no much larger ones."""


@public
class StreamLoader(OneSubscript[Item]):
    """Batches of one host, with state: the part of a loader that does not depend on the framework.

    A loop that was left by `break` continues where it stopped; after the end of a pass the next `iter` begins the next
    one (for validation: the same one). `next` in between raises StopIteration.

    A backend sets `_stream` and `_framework`, and says by `_processes` how hosts reach each other.
    """

    _stream: Stream
    _framework: ClassVar[str]

    def _processes(self) -> HostProcesses | None:
        """Processes of all hosts; None: the program did not connect them."""
        raise NotImplementedError

    def __iter__(self) -> Self:
        iter(self._stream)
        return self

    def __next__(self) -> Item:
        try:
            return next(self._stream)
        except EnergonGrainError as error:
            shorten(error)
            raise

    def __len__(self) -> int:
        """Steps per host of the current pass; of one pass over the data where the stream is endless."""
        return len(self._stream)

    def __getitem__(self, index: Any) -> NoReturn:
        raise TypeError(
            f"{self!r} has no batches by number, it goes on from one to the next: iterate over it, by itself (it needs "
            f"no other loader around it). `which(step)` says what a step holds, and `BatchMapDataset`, where Grain is "
            f"installed, has batches by number. For torch.utils.data.DataLoader, take what get_train_dataset of "
            f"energon_grain_torch returned"
        )

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"{type(self).__name__}({names_of_leaves(leaf.key[:-1] for leaf in self._stream.spec.leaves)})"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{self!r} cannot be pickled or copied, it owns threads and open files: send the dataset, make a loader of "
            f"it there, and give it the state"
        )

    def progress(self, *, every_s: float = 10.0, file: TextIO | None = None) -> Iterator[Item]:
        """The same batches as `for batch in loader`, with a line that says how far the loop is, and how fast.

        It tells the step and the steps of the pass (of endless streams how often the data came by), samples a second of
        this host, the share of the time for which the loop waited for data, and what is left. Host 0 alone shows it.
        The loader is used as by any loop: its state is that behind the last batch that the loop got.

        Args:
            every_s: Where `file` is no terminal, a line at most that often, in seconds.
            file: Where to write; default: stderr.
        """
        iter(self)
        line = _ProgressLine(self._stream, every_s, sys.stderr if file is None else file)
        try:
            while True:
                began = time.perf_counter()
                try:
                    batch = next(self)
                except StopIteration:
                    return
                except EnergonGrainError as error:
                    shorten(error)
                    raise
                line.took(time.perf_counter() - began)
                yield batch
                del batch  # or it would live until the next one is made
        finally:
            line.end()

    @property
    def stream(self) -> Stream:
        """What runs underneath."""
        return self._stream

    def close(self) -> None:
        """End threads and processes, and release files. Further `next` calls raise ValueError."""
        self._stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def save_state_rank(self) -> Cursor:
        """This host's state, with the manifest that explains a later mismatch. JSON-native."""
        return self._stream.cursor(with_manifest=True)

    def restore_state_rank(self, state: Mapping[str, Any] | None, *, allow_changes: bool = False) -> None:
        """Restore what `save_state_rank` or `save_state_global` returned; None leaves a fresh loader as it is.

        Args:
            state: The state, saved by this host or for all hosts.
            allow_changes: Go on at its position although the configuration or the data changed.

        Raises:
            StateError: The state cannot be continued here.
        """
        if state is not None:
            self._stream.restore(state, allow_changes=allow_changes)

    def _gathered(self) -> Cursor:
        """The state of all hosts; collective with several."""
        return gather_cursor(self.save_state_rank(), self._processes(), self._framework)

    def save_state_global(self, global_dst_rank: int = 0, *, dst_rank: int | None = None) -> Cursor | None:
        """The state of all hosts, on the process of global rank `global_dst_rank`; None on the others.

        With several hosts, a collective operation: all call it at the same step.

        Args:
            global_dst_rank: Number of the process among all of the job, not of its data-parallel group.
            dst_rank: Another name of it.

        Raises:
            StateError: The hosts cannot be gathered, or are at different steps.
        """
        merged = self._gathered()
        processes = self._processes()
        wanted = global_dst_rank if dst_rank is None else dst_rank
        here = processes is None or self._stream.config.world_size == 1 or processes.rank == wanted
        return merged if here else None

    def restore_state_global(
        self,
        state: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None,
        *,
        src_rank: int | None = None,
        allow_changes: bool = False,
    ) -> None:
        """Restore the state of all hosts on any number of hosts.

        Args:
            state: What `save_state_global` returned, or a list of each host's `save_state_rank`.
            src_rank: Host that has the state, where the others pass None; default: each host has it.
            allow_changes: As in `restore_state_rank`.

        Raises:
            StateError: The state cannot be continued here.
        """
        if src_rank is not None and self._stream.config.world_size > 1:
            state = broadcast_state(state, src_rank, self._processes(), self._framework)
        if state is None:
            raise StateError(
                "there is no state to restore on this host; pass it, or say which host has it by src_rank="
            )
        if not isinstance(state, Mapping):
            state = merge_cursors(state)
        self._stream.restore(state, allow_changes=allow_changes)

    def which(self, step: int) -> StepSamples:
        """The samples of the global batch of a step, past or future. See `Stream.which`."""
        return self._stream.which(step)

    def skip(self, steps: int) -> None:
        """Jump over steps of this pass, which count as delivered. See `Stream.skip`."""
        self._stream.skip(steps)

    def can_restore_sample(self) -> bool:
        """Whether `restore_sample` works: always."""
        return True

    def restore_sample(self, restore_key: Any) -> Any:
        """A sample or batch again, from its `__restore_key__`; the loader stays where it is.

        Args:
            restore_key: Of anything that a loader of the same configuration delivered, on any host; JSON's lists in
                place of tuples are fine.

        Raises:
            StateError: It is not a restore key of this dataset, or the sample is dropped now.
        """
        return self._stream.restore_sample(restore_key)

    def stats(self) -> LoaderStats:
        """What was delivered, where the time went, and what was dropped and why. See `LoaderStats`."""
        return self._stream.stats()

    def watch(
        self, *, trace: str | os.PathLike[str] | None = None, prometheus: Any = None, name: str = "train"
    ) -> Watch:
        """A context in which the loader is watched; the stream does not change with it.

        `lap()` of what it gives is what happened since it was called last: `log(watch.lap().scalars())`.

        Args:
            trace: File for what ran when in every worker, in Chrome's trace-event format, which `ui.perfetto.dev`
                opens; `{host}` in its name is filled in. It grows by about 150 bytes an event, to a million of them or
                until the disk is full.
            prometheus: Port at which Prometheus finds the metrics (0: any that is free, which `port` tells), or a
                `prometheus_client.CollectorRegistry` that the program serves itself.
            name: Of the loader in the metrics, where there are several.

        Raises:
            ConfigError: The registry has the metrics of a loader of this name.
            MissingPackageError: There is no `prometheus_client`.
            OSError: The file cannot be opened, or the port is taken.
        """
        return Watch(self.stats, self._stream.statistics, trace=trace, prometheus=prometheus, name=name)

    def config(self) -> dict[str, Any]:
        """Every setting that changes the order, and what each leaf holds; JSON-native."""
        return self._stream.spec.manifest()

    def start_prefetch(self) -> None:
        """Begin to read ahead now."""
        self._stream.start_prefetch()


class _ProgressLine:
    """Shows where a stream is: on a terminal a line that stays in place, elsewhere one line after the other."""

    def __init__(self, stream: Stream, every_s: float, file: TextIO) -> None:
        self._stream = stream
        self._file = file
        self._progress: Any = None
        self._waited_s, self._steps = 0.0, 0
        terminal = file.isatty()
        self._every_s = _REDRAWN_S if terminal else every_s
        self._marks: deque[tuple[float, int, int, float]] = deque([self._mark()], _MARKS if terminal else 1)
        if stream.config.rank:
            self._every_s = float("inf")
        elif terminal:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn

            self._progress = Progress(
                TextColumn("{task.description}"), BarColumn(), console=Console(file=file), auto_refresh=False
            )  # without a thread, which processes that are forked later would lack
            self._task = self._progress.add_task("", total=None)
            self._progress.start()

    def _mark(self) -> tuple[float, int, int, float]:
        return time.perf_counter(), self._stream.samples, self._steps, self._waited_s

    def took(self, waited_s: float) -> None:
        """The loop waited so long for a batch, and gets it now."""
        self._waited_s += waited_s
        self._steps += 1
        if time.perf_counter() - self._marks[-1][0] >= self._every_s:
            self._show()

    def _show(self) -> None:
        now, samples, steps, waited_s = self._mark()
        then, samples_then, steps_then, waited_then = self._marks[0]
        self._marks.append((now, samples, steps, waited_s))
        seconds = max(now - then, 1e-9)
        stream = self._stream
        place, total = stream.place, len(stream)
        step = place.pass_step
        endless = stream.spec.endless and stream.plan.remaining(step, place.item) is None
        if endless:
            text = f"step {step:,} (epoch {step / total:.2f})"
        else:
            text = f"epoch {place.pass_number + 1}, step {step:,} of {total:,}"
        text += (
            f": {(samples - samples_then) / seconds:,.0f} samples/s, waited {(waited_s - waited_then) / seconds:.0%}"
        )
        if not endless and steps > steps_then:
            left_s = (total - step) * seconds / (steps - steps_then)
            text += f", {timedelta(seconds=round(left_s))} left"
        if self._progress is None:
            print(text, file=self._file, flush=True)
        else:
            done = step % total if endless else step
            self._progress.update(self._task, description=text, completed=done, total=total, refresh=True)

    def end(self) -> None:
        """Show where the loop has come to, and leave the terminal to who writes next."""
        if self._steps > self._marks[-1][2] and self._every_s < float("inf"):
            self._show()
        if self._progress is not None:
            self._progress.stop()


class Watch:
    """A context in which a loader is watched; see `SavableDataLoader.watch`.

    Args:
        stats: The loader's numbers.
        statistics: Which counts them.
        trace: File for what ran when; `{host}` in its name is filled in.
        prometheus: A port of this machine to serve metrics at (0: any that is free), or a `CollectorRegistry`.
        name: Label of the loader in the metrics.

    Attributes:
        port: Where metrics are served; None: nowhere.
    """

    def __init__(
        self,
        stats: Callable[[], LoaderStats],
        statistics: Statistics,
        *,
        trace: str | os.PathLike[str] | None,
        prometheus: Any,
        name: str,
    ) -> None:
        self._stats = stats
        self._statistics = statistics
        self._trace = None if trace is None else os.fspath(trace).replace("{host}", str(statistics.setup.host))
        self._prometheus, self._name = prometheus, name
        self._before = stats()
        self._ends: list[Callable[[], object]] = []
        self.port: int | None = None

    def lap(self) -> LoaderStats:
        """What happened since the last lap, or since the watch began."""
        now = self._stats()
        before, self._before = self._before, now
        return now - before

    def __enter__(self) -> Self:
        try:
            if self._trace is not None:
                trace = _Trace(self._trace, f"host {self._statistics.setup.host}")
                self._ends.append(trace.close)
                self._statistics.listeners.append(trace)
                self._ends.append(lambda: self._statistics.listeners.remove(trace))
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
            self._ends.append(_Metrics.of(self._prometheus).add(self._stats, self._name))
            return
        registry = prometheus.CollectorRegistry()
        _Metrics.of(registry).add(self._stats, self._name)
        try:
            server, thread = prometheus.start_http_server(self._prometheus, registry=registry)
        except OSError as error:
            raise OSError(
                error.errno,
                f"metrics cannot be served at port {self._prometheus} ({error.strerror}): give each process of a "
                f"machine a port of its own, or prometheus=0 for any that is free",
            ) from None
        self.port = server.server_port
        self._ends += [thread.join, server.server_close, server.shutdown]


class _Trace:
    """Writes work as Chrome's trace events, as it comes: what `ui.perfetto.dev` and `chrome://tracing` open.

    A process is a process and a worker a thread; the format needs no closing bracket, so the file of a program that was
    killed opens, too.
    """

    def __init__(self, path: str, process: str) -> None:
        self._file = open(path, "w", encoding="utf-8")  # noqa: SIM115 (closed by `close`)
        self._file.write("[")
        self._process = process
        self._tracks: dict[tuple[int, str], int] = {}
        self._events = 0
        self._lock = threading.Lock()

    def __call__(self, work: Work) -> None:
        """Write what one worker did."""
        with self._lock:
            if self._file.closed or self._events >= _MOST_EVENTS:
                return
            try:
                for span in work.spans:
                    # What the thread of batches did for a worker's chunk is told together with what the worker did.
                    here = span.place == "main" and work.process != os.getpid()
                    self._span(span, *((os.getpid(), "batches") if here else (work.process, work.worker)))
            except OSError as error:
                self._give_up(error)
            else:
                if self._events >= _MOST_EVENTS:
                    _logger.warning("the trace %s has %d events, and ends here", self._file.name, self._events)

    def _span(self, span: Span, process: int, worker: str) -> None:
        track = self._tracks.get((process, worker))
        if track is None:
            if not any(each == process for each, _ in self._tracks):
                named = self._process if process == os.getpid() else f"{self._process}, {worker}"
                self._event(ph="M", name="process_name", pid=process, tid=0, args={"name": named})
            track = self._tracks[process, worker] = len(self._tracks) + 1
            self._event(ph="M", name="thread_name", pid=process, tid=track, args={"name": worker})
        at_us = span.begin_ns / 1e3
        if span.name == "wait":
            self._event(ph="C", name="batches ready", pid=process, tid=track, ts=at_us, args={"ready": span.samples})
        args = {"samples": span.samples, "cpu_ms": span.cpu_ns / 1e6}
        duration_us = span.wall_ns / 1e3
        self._event(ph="X", name=span.name, cat=span.kind, pid=process, tid=track, ts=at_us, dur=duration_us, args=args)

    def _event(self, **event: Any) -> None:
        self._file.write(",\n" if self._events else "\n")
        self._file.write(json.dumps(event))
        self._events += 1

    def close(self) -> None:
        """End the file."""
        with self._lock:
            try:
                self._file.write("\n]\n")
                self._file.close()
            except OSError as error:
                self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        """The loop that is watched goes on, whatever is wrong with the disk."""
        if self._events < _MOST_EVENTS:
            _logger.warning("the trace %s cannot be written (%s), and ends here", self._file.name, error.strerror)
        self._events = _MOST_EVENTS


class _Metrics:
    """A collector of `prometheus_client`: asks for the numbers whenever somebody asks for the metrics.

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
