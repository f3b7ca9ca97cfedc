# SPDX-License-Identifier: Apache-2.0
"""The statistics of a loader, and their interpretation: what limits the rate, and what to change.

The key question is what the program waits for. A loader has workers that read and process samples in parallel, hooks
that only one of them may run at a time, and one thread that makes batches. The rate is limited by whichever of these
three is always busy, and there by its slowest stage. If the program hardly waits, the program itself is the limit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Any, Literal, Self, cast

import msgspec

from energon_grain.errors import public
from energon_grain.forms import Form
from energon_grain.memory_budget.use import MemoryUse
from energon_grain.storage.traffic import OTHER_FILES, Traffic
from energon_grain.stream.clock import Kind, Place

HARDLY = 0.05
"""A program that waits for a smaller share of its time is limited by itself."""
_SLOW_FILE, _SLOW_WORKER = 4.0, 3.0
"""A file or worker is slow if it is this many times slower than the others."""
_MUCH, _HELD = 0.4, 0.5
_REFUSED, _AGAIN = 0.05, 0.2
_FILES = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """The configuration that the numbers belong to.

    Attributes:
        host: This host.
        hosts: Number of hosts.
        workers: Threads or processes that make samples; 0: samples are made in `next`.
        worker_type: "thread" or "process".
        cores: Cores that this process may use.
        batch_size: Size of a host's batch; 1 if single samples are delivered.
        in_store: Whether some of the data is in an object store.
    """

    host: int = 0
    hosts: int = 1
    workers: int = 0
    worker_type: str = "thread"
    cores: int = 1
    batch_size: int = 1
    in_store: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class StageTime:
    """The time of one stage, for everything that was made, delivered or not.

    Attributes:
        name: `read`, `fetch` (waiting for prefetched bytes), `decode`, the name of a hook, `plan`, ….
        kind: "storage" (waiting for bytes), "work" (on samples and batches), "pipeline" (planning and handover).
        place: Where it runs: "workers" (in parallel), "one worker" (at a time), "main" (the thread that makes batches).
        seconds: Time of all threads and processes together.
        cpu_seconds: CPU time.
        samples: Number of samples processed.
    """

    name: str
    kind: Kind
    place: Place
    seconds: float
    cpu_seconds: float
    samples: int

    @property
    def microseconds(self) -> float:
        """Time per sample."""
        return 1e6 * self.seconds / max(1, self.samples)


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerTime:
    """The work of one worker.

    Attributes:
        name: `worker-0` for a thread, `process-0` for a process, `main` for the program's own thread.
        seconds: Time that it worked.
        samples: Samples that it made.
    """

    name: str
    seconds: float
    samples: int


@dataclass(frozen=True, kw_only=True, slots=True)
class LeafCount:
    """The counts of one dataset.

    Attributes:
        name: Key of the dataset.
        samples: Samples read from it.
        expected: Target share of all samples read, from its weight (or length); None: depends on data.
        cost: Total cost of the samples read, in the unit of the blend's weights (`weight_unit`); None: the unit is
            samples.
        expected_cost: Target share of the cost of all samples read, from its weight; None: unknown.
    """

    name: str
    samples: int
    expected: float | None
    cost: float | None = None
    expected_cost: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Bound:
    """The limit on the rate of a loader.

    Attributes:
        kind: "trainer": the program itself; "unknown": too few batches; otherwise as `StageTime.kind`.
        cause: More specific: `unknown`, `trainer`, `file`, `disk`, `store`, `refusals`, `cache`, `hook`, `decode`,
            `interpreter`, `worker`, `handover`.
        name: Name of the stage, file or worker.
        advice: One sentence: what limits the rate, the numbers that show it, and what to change.
    """

    kind: Literal["unknown", "trainer", "storage", "work", "pipeline"]
    cause: str
    name: str
    advice: str

    def __str__(self) -> str:
        return self.advice


@dataclass(frozen=True, kw_only=True, slots=True)
class LoaderStats:
    """The work of a loader since it was made, in this process and its workers. Restoring a state keeps the counts.

    The difference `now - before` is the work in between. `stats["samples"]` is `stats.samples`.

    Attributes:
        setup: Host, workers and data.
        seconds: Time from the first batch to the last, without `starting_s`.
        waiting_s: Part of `seconds` that the program waited for batches.
        starting_s: Time that it waited for the first batch, and for first batches after a restore and of passes.
        batches: Delivered batches.
        samples: Samples in these batches.
        ready: Sum over all requests of the batches that were ready; `ready / batches` is the average queue depth.
        queued: Batches that are ready now.
        lock_tries: How often a worker thread released Python's lock to measure the wait for it.
        lock_held: How often it then had to wait because another thread kept the lock.
        read_samples: Samples read. Some of them are not delivered yet.
        read_bytes: Bytes read for them.
        dropped: Drops by dataset, then by hook and reason.
        dropped_total: Total number of drops.
        stages: Time by stage.
        by_worker: Work by worker.
        leaves: Samples read from each dataset, and their targets.
        storage: Requests to object stores and disks, of all loaders of this process together.
        memory: Who holds the memory of this process tree, now; None: there is no memory budget.
    """

    setup: Setup
    seconds: float = 0.0
    waiting_s: float = 0.0
    starting_s: float = 0.0
    batches: int = 0
    samples: int = 0
    ready: int = 0
    queued: int = 0
    lock_tries: int = 0
    lock_held: int = 0
    read_samples: int = 0
    read_bytes: int = 0
    dropped: dict[str, dict[str, int]]
    dropped_total: int = 0
    stages: tuple[StageTime, ...] = ()
    by_worker: tuple[WorkerTime, ...] = ()
    leaves: tuple[LeafCount, ...] = ()
    storage: Traffic
    memory: MemoryUse | None = None

    def __getitem__(self, name: str) -> Any:
        if name not in _NAMES:
            raise KeyError(name)
        return getattr(self, name)

    @property
    def _since_first(self) -> float:
        """Time for computing rates. With one batch there is no rate yet, so rates are 0."""
        return self.seconds or math.inf

    @property
    def waiting(self) -> float:
        """Share of the time that the program waited for batches, 0 to 1."""
        return min(1.0, self.waiting_s / self._since_first)  # both are estimates for the shortest steps

    @property
    def samples_per_s(self) -> float:
        """Delivered samples per second, including the time of the program itself."""
        return self.samples / self._since_first

    def seconds_of(self, kind: Kind) -> float:
        """Time of all stages of a kind, of all workers together."""
        return sum(stage.seconds for stage in self.stages if stage.kind == kind)

    def __sub__(self, before: Self) -> Self:
        dropped = {
            leaf: {reason: left for reason, count in reasons.items() if (left := count - _in(before, leaf, reason))}
            for leaf, reasons in self.dropped.items()
        }
        return replace(
            self,
            **{name: getattr(self, name) - getattr(before, name) for name in _COUNTS},
            dropped={leaf: reasons for leaf, reasons in dropped.items() if reasons},
            stages=_added(self.stages, before.stages, -1),
            by_worker=_added(self.by_worker, before.by_worker, -1),
            leaves=_added(self.leaves, before.leaves, -1),
            storage=self.storage - before.storage,
        )

    def as_dict(self) -> dict[str, Any]:
        """JSON-native and small: the slowest files individually, the others together."""
        return msgspec.to_builtins(replace(self, storage=self.storage.slowest_files(_FILES)))

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> Self:
        """The inverse of `as_dict`, possibly from another host. Raises `msgspec.ValidationError` if it is invalid."""
        return cast("Self", _FORM.from_value(found))

    def scalars(self, prefix: str = "") -> dict[str, float]:
        """Numbers by flat name, for any logger: rates, counts, and shares of the time from 0 to 1.

        `stage/…` is the average number of threads in a stage; `share/…` a dataset's share of the samples read, with
        `target/…` for its target, and for a blend by cost `cost_share/…` and `cost_target/…`; `dropped/…` counts drops
        by dataset, hook and reason.
        """
        seconds, read = self._since_first, max(1, self.read_samples)
        found: dict[str, float] = {
            "batches": self.batches,
            "samples": self.samples,
            "samples_per_s": self.samples_per_s,
            "bytes_per_s": self.read_bytes / seconds,
            "waiting": self.waiting,
            "ready": self.ready / max(1, self.batches),
            "dropped": self.dropped_total,
            "store/bytes_per_s": self.storage.bytes_read / seconds,
            "store/repeated": self.storage.repeated + self.storage.rereads,
            "store/lost_s": self.storage.lost_s,
            "store/found": self.storage.found / max(1, self.storage.found + self.storage.missed),
        }
        for stage in self.stages:
            name = f"stage/{stage.name}"
            found[name] = found.get(name, 0.0) + stage.seconds / seconds
        paid = sum(leaf.cost or 0 for leaf in self.leaves) or 1.0
        for leaf in self.leaves:
            found[f"share/{leaf.name}"] = leaf.samples / read
            if leaf.expected is not None:
                found[f"target/{leaf.name}"] = leaf.expected / read
            if leaf.cost is not None:
                found[f"cost_share/{leaf.name}"] = leaf.cost / paid
            if leaf.expected_cost is not None:
                found[f"cost_target/{leaf.name}"] = leaf.expected_cost / paid
        for leaf, reasons in self.dropped.items():
            found |= {f"dropped/{leaf}/{reason}": count for reason, count in reasons.items()}
        if self.memory is not None:
            found |= {f"memory/{each.name}": each.held_bytes for each in self.memory.holders}
            found |= {"memory/used": self.memory.used_bytes, "memory/budget": self.memory.budget_bytes}
        return {prefix + name: float(number) for name, number in found.items()}

    def bound(self) -> Bound:
        """The limit on the rate, and what to change. See the module."""
        return _bound(self)

    def __str__(self) -> str:
        busy = sorted(self.stages, key=attrgetter("seconds"), reverse=True)
        all_s = sum(stage.seconds for stage in busy) or 1.0
        parts = ", ".join(f"{stage.name} {stage.seconds / all_s:.0%}" for stage in busy[:6])
        lines = [
            f"{self.batches:,} batches, {self.samples:,} samples, {self.samples_per_s:,.0f} samples/s; the program "
            f"waited {self.waiting:.0%} of {self.seconds:,.1f} s",
            *([f"work of all threads: {parts}"] if parts and self.seconds else []),
            *([f"dropped: {self.dropped_total:,} {self.dropped}"] if self.dropped_total else []),
        ]
        return "\n".join([*lines, self.bound().advice] if self.stages else lines)


_FORM = Form(LoaderStats)
_NAMES = {each.name for each in fields(LoaderStats)}
_COUNTS = [each.name for each in fields(LoaderStats) if each.type in ("int", "float") and each.name != "queued"]


def _in(stats: LoaderStats, leaf: str, reason: str) -> int:
    return stats.dropped.get(leaf, {}).get(reason, 0)


def _added(these: tuple[Any, ...], others: tuple[Any, ...], sign: int) -> tuple[Any, ...]:
    """Records of one kind, where numbers of records with the same name (and place) are added or subtracted."""
    found = {_identity(each): each for each in these}
    for other in others:
        key = _identity(other)
        same = found.get(key)
        found[key] = other if same is None else replace(same, **_sums(same, other, sign))
    return tuple(found.values())


def _identity(record: Any) -> tuple[Any, ...]:
    return tuple(getattr(record, each.name) for each in fields(record) if each.type not in _ADDED)


_ADDED = ("int", "float", "float | None")


def _sums(one: Any, other: Any, sign: int) -> dict[str, Any]:
    pairs = {
        each.name: (getattr(one, each.name), getattr(other, each.name)) for each in fields(one) if each.type in _ADDED
    }
    return {name: None if None in pair else pair[0] + sign * pair[1] for name, pair in pairs.items()}


def work_advice(
    name: str,
    takes: str,
    *,
    one_at_a_time: bool,
    more_workers: str,
    images: bool = False,
    image_decode: str | None = None,
) -> str:
    """The advice if work on samples limits the rate.

    Args:
        name: The slowest stage.
        takes: Its share of the time, as text.
        one_at_a_time: Whether it runs in only one of several threads at a time.
        more_workers: The advice to use more workers.
        images: Whether some parts are images.
        image_decode: The image mode of the decoder; None: no decoder.
    """
    limited = f"The rate is limited by work on samples ({takes}"
    if name == "decode" and not images:
        return f"{limited}): decode only parts that you use (field map, part_filter), and {more_workers}."
    if name == "decode":
        wide = f"to uint8 (image_decode='rgb8') in place of float32 ({image_decode!r}), "
        narrow = wide if image_decode in _FLOAT_IMAGES else ""
        return f"{limited}): decode images {narrow}no larger than the model uses them (image_size), and {more_workers}."
    if name == "batch":
        return f"{limited}, copying arrays to stack them): make smaller arrays (uint8, image_size, crop before)."
    if one_at_a_time:
        return (
            f"{limited}, in one thread at a time): set thread_safe = True on the task encoder if several threads may "
            f"run it (numpy and tokenizers release Python's lock), otherwise try worker_type='process'."
        )
    return f"{limited}): do less in it, and {more_workers}."


_OURS = ("decode", "batch")
"""Stages of this package, not hooks of the user."""
_FLOAT_IMAGES = {"l", "rgb", "rgba", "torch", "torchl", "torchrgb", "torchrgba"}


def handover_advice(batch_size: int) -> str:
    """The advice if neither reading nor work on samples limits the rate."""
    return (
        f"The rate is limited by planning and handover, because reading and work on samples take little time: use "
        f"larger batches than {batch_size}, or measure again on an idle machine."
    )


def store_advice(brings: str, neighbours: str = "") -> str:
    """The advice if an object store limits the rate: its numbers, and further help."""
    return (
        f"{brings}: {neighbours}allow more requests at a time (requests_in_flight and ahead_bytes in the storage "
        f"settings)."
    )


def _bound(stats: LoaderStats) -> Bound:
    setup = stats.setup
    if not stats.stages or not stats.seconds:
        advice = "It is not known yet what limits the rate: try again after some batches."
        return Bound(kind="unknown", cause="unknown", name="", advice=advice)
    if stats.waiting < HARDLY:
        return Bound(
            kind="trainer",
            cause="trainer",
            name="",
            advice=f"The rate is limited by the program itself: it waited for batches {stats.waiting:.0%} of the "
            f"time, so a faster loader would change nothing.",
        )
    if (slow := _slow_worker(stats)) is not None:
        return slow
    # Without workers, everything happens in one thread.
    places = {stage: stage.place if setup.workers else "main" for stage in stats.stages}
    busy: dict[str, float] = {}
    for stage, place in places.items():
        side_by_side = max(1, setup.workers) if place == "workers" else 1
        busy[place] = busy.get(place, 0.0) + stage.seconds / side_by_side
    busiest = max(busy, key=busy.__getitem__)
    there = [stage for stage, place in places.items() if place == busiest]
    stage = max(there, key=attrgetter("seconds"))
    if stage.seconds < sum(each.seconds for each in there if each.kind == "pipeline"):
        return Bound(kind="pipeline", cause="handover", name="", advice=handover_advice(setup.batch_size))
    if stage.kind == "storage":
        return _storage_bound(stats, stage)
    return _work_bound(stats, stage, busiest)


def _slow_worker(stats: LoaderStats) -> Bound | None:
    """The limit, if one worker process is much slower than the others: all wait for it, as batches stay in order."""
    workers = [each for each in stats.by_worker if each.samples] if stats.setup.worker_type != "thread" else []
    if len(workers) < 2:
        return None
    slow = max(workers, key=lambda each: each.seconds / each.samples)
    others = [each for each in workers if each is not slow]
    usual = sum(each.seconds for each in others) / sum(each.samples for each in others)
    own = slow.seconds / slow.samples
    if own < _SLOW_WORKER * usual or slow.seconds < _MUCH * stats.seconds:
        return None
    return Bound(
        kind="work",
        cause="worker",
        name=slow.name,
        advice=f"The rate is limited by one worker: {slow.name} takes {_number(1e6 * own)} µs per sample, the others "
        f"take {_number(1e6 * usual)} µs, and batches are delivered in order: its memory may be swapped, or another "
        f"program may use its core; check that process, use fewer workers, or make a new loader.",
    )


def _work_bound(stats: LoaderStats, stage: StageTime, busiest: str) -> Bound:
    setup = stats.setup
    work_s = max(1e-9, stats.seconds_of("work"))
    takes = f"{stage.name} takes {stage.seconds / work_s:.0%} of it, {_number(stage.microseconds)} µs per sample"
    name, cause = stage.name, stage.name if stage.name == "decode" else "hook"
    side_by_side = stage.seconds / max(1e-9, stats.seconds)
    if busiest == "workers" and name not in _OURS and stats.lock_held > _HELD * max(1, stats.lock_tries):
        advice = (
            f"The rate is limited by Python's lock ({takes}, with {side_by_side:.1f} threads in it at a time that take "
            f"turns; another thread held the lock {stats.lock_held / stats.lock_tries:.0%} of the time): try "
            f"worker_type='process', or do the work of {name} in numpy or another library that releases the lock."
        )
        return Bound(kind="work", cause="interpreter", name=name, advice=advice)
    if stage.place == "main" and setup.workers and name != "batch":
        advice = (
            f"The rate is limited by work on samples ({takes}, in the thread that makes batches): move work on single "
            f"samples to encode_sample, which workers run in parallel, or try worker_type='process', whose workers "
            f"make batches too."
        )
        return Bound(kind="work", cause=cause, name=name, advice=advice)
    mostly_waits = stage.cpu_seconds < stage.seconds / 3
    cores = "it mostly waits, so use more of them than cores" if mostly_waits else f"there are {setup.cores} cores"
    more_workers = f"use more workers ({cores})"
    one_at_a_time = stage.place == "one worker" and setup.workers > 1
    advice = work_advice(name, takes, one_at_a_time=one_at_a_time, more_workers=more_workers)
    return Bound(kind="work", cause=cause, name=name, advice=advice)


def _storage_bound(stats: LoaderStats, stage: StageTime) -> Bound:
    storage, seconds = stats.storage, max(1e-9, stats.seconds)

    def bound(cause: str, name: str, advice: str) -> Bound:
        return Bound(kind="storage", cause=cause, name=name, advice=advice)

    again = storage.repeated - storage.sent_twice
    failed = again > 0 or storage.rereads > 0
    if again > _REFUSED * storage.requests or (failed and storage.paused_s > _AGAIN * stage.seconds):
        who = (
            f"the store failed {again:,} of {storage.requests:,} requests"
            if again
            else f"{storage.rereads:,} reads of files failed at first"
        )
        return bound(
            "refusals",
            "",
            f"The rate is limited by storage errors: {who}, and each is retried after a pause (the log has the "
            f"reasons): allow fewer requests at a time (requests_in_flight in the storage settings), request a higher "
            f"limit, or repair the file system.",
        )
    uncached = (storage.fetched_again_bytes + storage.not_kept_bytes) / max(1, storage.bytes_read)
    if uncached > _AGAIN:
        return bound(
            "cache",
            "",
            f"The rate is limited by the disk cache, which is too small: {min(1.0, uncached):.0%} of the bytes from "
            f"the store were evicted, or did not fit: raise cache_bytes in the storage settings, ideally to the size "
            f"of the data.",
        )
    all_s, all_reads = (sum(each) for each in zip((0.0, 0), *storage.files.values(), strict=True))
    for path, (own_s, reads) in storage.files.items():
        others = (all_s - own_s) / max(1, all_reads - reads)
        if path != OTHER_FILES and own_s > _MUCH * all_s and own_s / reads > _SLOW_FILE * others > 0:
            return bound(
                "file",
                path,
                f"The rate is limited by one file: {path} takes {_number(1e3 * own_s / reads)} ms per read, the others "
                f"take {_number(1e3 * others)} ms: check its disk, or write it again.",
            )
    if stats.setup.in_store:
        rate = f"{storage.bytes_read / seconds / 1e6:,.1f} MB/s in {storage.requests / seconds:,.0f} requests/s"
        return bound("store", stage.name, store_advice(f"The rate is limited by the store ({rate})"))
    return bound(
        "disk",
        stage.name,
        f"The rate is limited by reading ({_number(stage.microseconds)} µs per sample, "
        f"{stats.read_bytes / seconds / 1e6:,.1f} MB/s): read runs of consecutive samples (max_samples_per_sequence), "
        f"use more workers, faster storage or more memory, and read only parts that you use (field map, part_filter).",
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


@dataclass(frozen=True, kw_only=True, slots=True)
class HostsStats:
    """The numbers of several hosts that take steps together.

    Attributes:
        hosts: The numbers of each host.
        slowest: Number of the host whose program waits longest for batches, so that all others wait for it; None: no
            program waits.
        total: Sum over all hosts, including times.
        advice: One sentence: which host is slowest, and what it waits for.
    """

    hosts: tuple[LoaderStats, ...]
    slowest: int | None
    total: LoaderStats
    advice: str

    def __str__(self) -> str:
        return self.advice


@public
def merge_stats(gathered: Iterable[LoaderStats | Mapping[str, Any]]) -> HostsStats:
    """Merge the statistics of several hosts, and find the slowest host.

    The program gathers the statistics: `as_dict()` of each host is JSON-native, so PyTorch's `all_gather_object`
    accepts it, and JAX's `process_allgather` accepts the bytes of its JSON.

    Args:
        gathered: `loader.stats()` or its `as_dict()`, for each host.

    Raises:
        ValueError: `gathered` is empty.
    """
    hosts = tuple(each if isinstance(each, LoaderStats) else LoaderStats.from_dict(each) for each in gathered)
    if not hosts:
        raise ValueError("merge_stats: expected the numbers of at least one host")
    slow = max(hosts, key=attrgetter("waiting"))
    others = sorted(each.waiting for each in hosts if each is not slow)
    if slow.waiting < HARDLY:
        advice, slowest = slow.bound().advice, None
    else:
        usual = f", the others {others[len(others) // 2]:.0%}" if others else ""
        slowest = slow.setup.host
        advice = (
            f"Host {slowest} is the slowest: its program waits {slow.waiting:.0%} of the time{usual}. {slow.bound()}"
        )
    return HostsStats(hosts=hosts, slowest=slowest, total=_total(hosts), advice=advice)


def _total(hosts: Sequence[LoaderStats]) -> LoaderStats:
    total = hosts[0]
    for host in hosts[1:]:
        dropped = {leaf: dict(reasons) for leaf, reasons in total.dropped.items()}
        for leaf, reasons in host.dropped.items():
            own = dropped.setdefault(leaf, {})
            for reason, count in reasons.items():
                own[reason] = own.get(reason, 0) + count
        total = replace(
            total,
            **{name: getattr(total, name) + getattr(host, name) for name in (*_COUNTS, "queued")},
            dropped=dropped,
            stages=_added(total.stages, host.stages, 1),
            leaves=_added(total.leaves, host.leaves, 1),
            by_worker=(),
            storage=total.storage + host.storage,
        )
    return total
