# SPDX-License-Identifier: Apache-2.0
"""The budget of a process tree: its memory is measured, and the rest is divided.

Every process of the tree measures itself several times per second. The memory that no holder can give back (the
interpreter, the program) is its *fixed* part. The budget without the fixed parts of all processes is divided: first
among the processes, then among the holders of each. A holder is allowed a sixth of that at first, and grows in steps of
this size, so samples that become larger show up in a measurement before the look-ahead grows further.

Work in progress begins and ends between measurements, so it is not measured but reserved: a loader is charged for the
copies that its workers may make at once (`LookAhead`). A measurement contains an unknown part of these. It limits the
fixed part from both sides: by what is left if all of them exist, and if none does. The larger of the highest lower
limit and the lowest upper limit of the last seconds counts.

A holder that is full asks for twice its size, and one that is not asks for little more than it has.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from energon_grain.errors import ConfigError, public
from energon_grain.formats.mapped_files import mapped_bytes, release_mapped
from energon_grain.memory_budget.ahead import LookAhead
from energon_grain.memory_budget.allocator import keep_little_memory, trim
from energon_grain.memory_budget.ledger import ENVIRONMENT as LEDGER, KINDS, Ledger
from energon_grain.memory_budget.measure import Measured, measurable, measure
from energon_grain.memory_budget.settings import ENVIRONMENT, StreamMemory
from energon_grain.memory_budget.shares import divide_now
from energon_grain.memory_budget.use import HeldMemory, MemoryUse
from energon_grain.stream.memory import CHUNK_BYTES, MemoryHolder, holders, look_ahead

_logger = logging.getLogger("energon_grain")
_USED = 0.95
"""Part of the budget that is divided. The rest is for what grows between two measurements."""
_TIGHT = 0.88
"""If the tree holds more than this part, freed memory and mapped pages are given back."""
_WINDOW_SECONDS = 30.0
"""Time for which a lower limit of the fixed part counts."""
_UPPER_SECONDS = 5.0
"""Time for which an upper limit of the fixed part counts."""
_SETTLED_SECONDS = 1.0
"""Time for which the minimum must have exceeded the budget before it is refused."""
_INTERVALS = (0.05, 0.25)
"""Seconds between measurements, in the first seconds and later."""
_FIRST_SECONDS = 3.0
_OTHERS_SECONDS = 1.0
_COST = 30
"""Measuring takes at most 1/30 of the time of one core."""
_GIVING_BACK_COST = 50
_ASKED_BYTES = 16 << 20
_FORGETTING = 0.95
"""The earlier size of a holder is reduced by this factor at each measurement: buffers in use return in a moment."""
_GROWTH_BYTES, _GROWTH_STEPS = 8 << 20, 6
_MIB = 1 << 20
_LEAST_CHUNK_BYTES = 256 << 10
_KEPT = 16
"""The C libraries of all processes together keep about this part of the budget as freed memory."""
_CHUNKS = 16
"""A chunk, of which each worker makes one at a time, has at most this part of what this process may hold."""


class MemoryBudget:
    """The part of this process in the budget of its tree, and the thread that keeps to it.

    Args:
        serves: Whether a loader of another process makes this one work, and is charged for what it makes.
    """

    def __init__(self, ledger: Ledger, *, serves: bool = False) -> None:
        self.ledger = ledger
        self.look_ahead = LookAhead()
        self._serves = serves
        self._allowed: weakref.WeakKeyDictionary[MemoryHolder, int] = weakref.WeakKeyDictionary()
        self._recent: weakref.WeakKeyDictionary[MemoryHolder, int] = weakref.WeakKeyDictionary()
        self._limits: deque[_Limits] = deque()
        self._known = 0, 0  # the highest lower limit and the lowest upper one
        self._began = time.monotonic()
        self._most_bytes = 0
        self._others_at = self._give_back_at = self._measured_at = 0.0
        self._others_bytes = 0
        self._ended = threading.Event()
        self._measuring = threading.RLock()
        self._thread = threading.Thread(target=self._run, name="energon-grain-memory", daemon=True)

    def start(self) -> None:
        """Limit the holders of this process from now on."""
        self.ledger.claim()
        holders.add(self.look_ahead)
        look_ahead.budget = self.look_ahead.fits
        self.update()
        self._thread.start()

    def stop(self) -> None:
        """Lift the limits."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()
        with self._measuring:
            look_ahead.budget, look_ahead.chunk_bytes = None, CHUNK_BYTES
            keep_little_memory(sys.maxsize)
            for holder in holders_now():
                holder.allow(sys.maxsize)
            holders.discard(self.look_ahead)
            self.ledger.leave()

    def _run(self) -> None:
        failed = False
        while True:
            began = time.monotonic()
            try:
                self.update()
            except Exception:
                if not failed:
                    _logger.warning(
                        "the memory budget could not be divided. Loaders keep their last limits, and this is tried "
                        "again; please report it",
                        exc_info=True,
                    )
                failed = True
            took = time.monotonic() - began
            interval = _INTERVALS[began - self._began > _FIRST_SECONDS]
            if self._ended.wait(max(interval, _COST * took)):
                return

    def update(self) -> None:
        """Measure this process, and set the limits of its holders."""
        with self._measuring:
            own = holders_now()
            held = {holder: holder.held_bytes() for holder in own}
            held_or_beside = held | {self.look_ahead: held.get(self.look_ahead, 0) + self.look_ahead.beside_bytes()}
            asked = {holder: self._asks(holder, size_bytes) for holder, size_bytes in held_or_beside.items()}
            found, self._measured_at = measure(), time.monotonic()
            self._write(found, held, sum(asked.values()))
            self.ledger.own["charged"] = sum(held_or_beside.values())
            rows = self.ledger.alive()
            used = int(rows["measured"].sum() + rows["others"].sum())
            self._most_bytes = max(self._most_bytes, used)
            if used > _TIGHT * self.ledger.budget_bytes:
                self._give_back(used)
            self._divide(rows, held_or_beside, asked)
            self._refuse_if_short(rows)

    def _asks(self, holder: MemoryHolder, held_bytes: int) -> int:
        if holder is self.look_ahead and not self.look_ahead.least_bytes():
            return 0
        held_bytes = self._recent[holder] = max(held_bytes, int(_FORGETTING * self._recent.get(holder, 0)))
        full = held_bytes > 0.6 * self._allowed.get(holder, 0)
        asked = held_bytes * (2 if full else 1) + _ASKED_BYTES
        return max(asked, self.look_ahead.least_bytes()) if holder is self.look_ahead else asked

    def _write(self, found: Measured, held: dict[MemoryHolder, int], asked_bytes: int) -> None:
        row, by_kind, total = self.ledger.own, _by_kind(held), found.total
        by_kind["indices"] = min(mapped_bytes(), found.files)
        if any(holder.holder == "buffers" for holder in held):  # results are in files, of which some are not yet mapped
            total += max(0, by_kind["look-ahead"] + by_kind["buffers"] - found.shared)
        rest = total - sum(by_kind.values())
        row["measured"], row["rest"] = found.total, max(0, rest)
        row["fixed"], row["floor"] = self._extremes(rest, self.look_ahead.beside_bytes())
        row["known"] = max(self._known)
        row["least"], row["asked"] = self.look_ahead.least_bytes(), asked_bytes
        row["held"] = [by_kind[kind] for kind in KINDS]
        row["others"] = self._others(time.monotonic()) if self.ledger.measures_others else 0

    def _extremes(self, rest_bytes: int, beside_bytes: int) -> tuple[int, int]:
        """The fixed part, and the least that it was in the last second.

        Args:
            rest_bytes: The measured memory without what is held. Of that, a part may not exist yet, and an unknown part
                of `beside_bytes` is in it. In a process that serves, the rest is the fixed part while it waits.
        """
        now = time.monotonic()
        lower = 0 if self._serves else max(0, rest_bytes - beside_bytes)
        upper = max(0, rest_bytes + beside_bytes)
        self._known = max(self._known[0], lower), min(self._known[1] or upper, upper)
        self._limits.append(_Limits(now, lower, upper))
        while self._limits[0].at < now - _WINDOW_SECONDS:
            self._limits.popleft()
        highest = max(each.lower for each in self._limits)
        lowest = min(each.upper for each in self._limits if each.at > now - _UPPER_SECONDS)
        recent = [each.lower for each in self._limits if each.at > now - _SETTLED_SECONDS]
        return max(highest, lowest), lowest if self._serves else min(recent)

    def _others(self, now: float) -> int:
        """Memory of the processes of the tree that have no row."""
        if now > self._others_at:
            self._others_bytes = sum(measure(pid).total for pid in self.ledger.others())
            self._others_at = now + max(_OTHERS_SECONDS, _COST * (time.monotonic() - now))
        return self._others_bytes

    def _give_back(self, used_bytes: int) -> None:
        """Return freed memory and mapped pages to the system, unless that was tried in vain a moment ago."""
        began = time.monotonic()
        if began < self._give_back_at:
            return
        before = measure().total
        release_mapped()
        trim()
        took, freed = time.monotonic() - began, before - measure().total
        self._give_back_at = began + max(1.0 if freed < used_bytes // 100 else 0.0, _GIVING_BACK_COST * took)

    def _divide(self, rows: Any, held: dict[MemoryHolder, int], asked: dict[MemoryHolder, int]) -> None:
        free = int(_USED * self.ledger.budget_bytes) - int(rows["fixed"].sum() + rows["others"].sum())
        place = int(np.flatnonzero(rows["pid"] == os.getpid())[0])
        share = divide_now(free, rows["asked"].tolist(), rows["charged"].tolist())[place]
        shares = divide_now(share, [*asked.values()], [*held.values()])
        for holder, size_bytes in zip(asked, shares, strict=True):
            before = max(self._allowed.get(holder, 0), held[holder])
            allowed = min(size_bytes, before + max(_GROWTH_BYTES, before // 2, share // _GROWTH_STEPS))
            self._allowed[holder] = allowed
            holder.allow(allowed)
        keep_little_memory(self.ledger.budget_bytes // (_KEPT * len(rows)))
        look_ahead.chunk_bytes = max(_LEAST_CHUNK_BYTES, min(CHUNK_BYTES, share // _CHUNKS))

    def _refuse_if_short(self, rows: Any) -> None:
        """Refuse to look ahead if the minimum exceeded the budget for a while."""
        settled = time.monotonic() - self._began > _SETTLED_SECONDS
        floor = int(rows["floor"].sum() + rows["others"].sum() + rows["least"].sum())
        if not settled or floor <= self.ledger.budget_bytes:
            self.look_ahead.refusal = None
        else:
            held = _mib(int(rows["measured"].sum() + rows["others"].sum()))
            detail = f"{len(rows)} processes hold {held}; `loader.stats().memory` shows for what"
            self.look_ahead.refusal = self._message(max(_minimum(rows), floor), detail)

    def _message(self, needed_bytes: int, detail: str) -> str:
        """The error. Its number suffices even if no other process shares the libraries of this one any more."""
        enough, parts = needed_bytes + measure().elsewhere, self.ledger.parts
        if parts > 1:
            detail = f"{_mib(enough)} for each of {parts} processes of this host; in this one, {detail}"
        return (
            f"memory={_exact(parts * self.ledger.budget_bytes)}: at least {_mib(parts * enough)} are needed ({detail}):"
            f" raise the budget to that, or use fewer workers, smaller batches, or threads in place of processes"
        )

    def require(self, more_bytes: int, detail: str) -> None:
        """Check that this much more memory fits, beside what the tree holds now. Raises ConfigError."""
        held = self._fixed_bytes()
        if held + more_bytes > self.ledger.budget_bytes:
            trim()
            release_mapped()
            self._limits.clear()
            held = self._fixed_bytes()
        if held + more_bytes > self.ledger.budget_bytes:
            needed = int((held + more_bytes) / _USED)
            raise ConfigError(self._message(needed, f"{_mib(held)} are held already; {detail}"))

    def _fixed_bytes(self) -> int:
        """Memory of the tree that no holder can give back, measured now."""
        self.update()
        rows = self.ledger.alive()
        return int(rows["floor"].sum() + rows["others"].sum())

    def use(self) -> MemoryUse:
        """Who holds what, as measured in the last 50 ms."""
        if time.monotonic() - self._measured_at > _INTERVALS[0]:
            self.update()
        rows = self.ledger.alive()
        held = dict(zip(KINDS, rows["held"].sum(axis=0).tolist(), strict=True))
        own = rows["pid"] == os.getpid()
        held["workers"] = int(rows["rest"][~own].sum() + rows["others"].sum())
        held["interpreter"] = int(rows["rest"][own].sum())
        return MemoryUse(
            budget_bytes=self.ledger.budget_bytes,
            used_bytes=int(rows["measured"].sum() + rows["others"].sum()),
            most_bytes=self._most_bytes,
            minimum_bytes=_minimum(rows),
            processes=len(rows),
            holders=tuple(HeldMemory(name=name, held_bytes=size_bytes) for name, size_bytes in held.items()),
        )


def holders_now() -> tuple[MemoryHolder, ...]:
    """The holders of this process."""
    while True:
        with suppress(RuntimeError):  # another thread adds one
            return tuple(holders)


def _by_kind(held: Mapping[MemoryHolder, int]) -> dict[str, int]:
    found = dict.fromkeys(KINDS, 0)
    for holder, size_bytes in held.items():
        found[holder.holder if holder.holder in found else "caches"] += size_bytes
    return found


class _Limits(NamedTuple):
    """Limits on the fixed part, by one measurement, in bytes; `at` in seconds of `time.monotonic`."""

    at: float
    lower: int
    upper: int


def _minimum(rows: Any) -> int:
    return int((rows["known"].sum() + rows["others"].sum() + rows["least"].sum()) / _USED)


def _mib(size_bytes: int) -> str:
    return f"'{-(-size_bytes // _MIB)}MiB'"


def _exact(size_bytes: int) -> str:
    """A size in the largest unit that shows it exactly."""
    units = {"GiB": 1 << 30, "MiB": _MIB, "GB": 10**9, "MB": 10**6, "KiB": 1 << 10, "kB": 10**3, "B": 1}
    unit = next(unit for unit, factor in units.items() if size_bytes % factor == 0)
    return f"'{size_bytes // units[unit]}{unit}'"


_active: MemoryBudget | None = None
_changing = threading.RLock()


@public
def use_memory(memory: StreamMemory | str | int | None) -> None:
    """Limit the memory of this process and the processes below it, for all loaders, from now on.

    The limit counts everything that these processes hold (PSS): the program and its libraries too. Loaders divide what
    these leave: samples and batches made ahead, caches, kept buffers, mapped indices. A process that was started by one
    with a budget shares that one.

    Args:
        memory: The budget, such as "4GiB"; None: no limit.

    Raises:
        ConfigError: It is not a size, or this system does not report PSS (it needs Linux 4.14).
    """
    with _changing:
        if memory is None:
            _end()
            return
        settings = StreamMemory.of(memory)
        if not measurable():
            raise ConfigError(f"memory={memory!r}: needs Linux, whose /proc/self/smaps_rollup measures it")
        if _active is None:
            _begin(Ledger.inherited() or Ledger.new(settings.own_bytes, settings.parts))
        elif _active.ledger.root == os.getpid():
            _active.ledger.resize(settings.own_bytes)


def _end() -> None:
    global _active
    if _active is not None:
        _active.stop()
        if _active.ledger.root == os.getpid():
            os.environ.pop(LEDGER, None)
        _active = None


def join_budget(*, serves: bool = False) -> MemoryBudget | None:
    """The budget of this process: set by the program, by a process above, or by the environment. None: no limit.

    Args:
        serves: See `MemoryBudget`.
    """
    if _active is None:
        with _changing:
            if _active is None and (ledger := Ledger.inherited()) is not None:
                _begin(ledger, serves=serves)
            elif _active is None and (memory := os.environ.get(ENVIRONMENT)):
                use_memory(memory)
    return _active


def prepare_budget() -> None:
    """Begin the budget of the environment for processes that are forked later, without a thread in this one."""
    memory = os.environ.get(ENVIRONMENT)
    if memory and measurable() and _active is None and Ledger.inherited() is None:
        settings = StreamMemory(memory)
        ledger = Ledger.new(settings.own_bytes, settings.parts)
        os.environ[LEDGER] = ledger.path
        _prepared.append(ledger)


_prepared: list[Ledger] = []
"""They keep their files open."""


def _begin(ledger: Ledger, *, serves: bool = False) -> None:
    global _active
    os.environ[LEDGER] = ledger.path
    _active = MemoryBudget(ledger, serves=serves)
    _active.start()


def _leave_in_child() -> None:
    """In a forked child the thread does not exist, and the row is the parent's. It joins when it makes a loader."""
    global _active, _changing
    _changing = threading.RLock()
    if _active is not None:
        holders.discard(_active.look_ahead)
        look_ahead.budget, look_ahead.chunk_bytes = None, CHUNK_BYTES
        _active = None


def _leave_at_exit() -> None:
    if _active is not None:
        _active.stop()


os.register_at_fork(after_in_child=_leave_in_child)
atexit.register(_leave_at_exit)
