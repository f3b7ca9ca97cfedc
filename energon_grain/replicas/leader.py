# SPDX-License-Identifier: Apache-2.0
"""The replica that reads: it hands each batch on to the others."""

from __future__ import annotations

import logging
import pickle
import selectors
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

from energon_grain.errors import WorkerError
from energon_grain.processes.worker import (
    Channel,
    ResultFile,
    ResultFiles,
    lent_file,
    part_offsets,
    pickled_parts,
    write_parts,
)
from energon_grain.replicas.far import FarEnd
from energon_grain.replicas.forks import connected
from energon_grain.replicas.memory import RELEASE, REUSABLE, TAKEN, Holds
from energon_grain.replicas.message import Message
from energon_grain.replicas.node import Node
from energon_grain.sources.source import Source
from energon_grain.storage.cancellation import raise_if_cancelled
from energon_grain.stream.steps import Step

_logger = logging.getLogger("energon_grain")
_POLL_SECONDS = 0.05
_READS = ", which reads for this rank"
_FAR = -1
"""In place of a rank: the listener for other nodes."""
PATIENCE_SECONDS = 10.0
"""Time that this process waits for slow replicas before it logs who they are."""


@dataclass(slots=True)
class _Handed:
    """A batch that was handed on.

    Attributes:
        step: Number of its step.
        ranks: Those that have not released it.
        waiting: Those that have not taken it.
        lent: Memory in a file of workers, which write to it again once nothing refers to this; None: it is a file of
            this class.
    """

    file: ResultFile
    step: int
    ranks: set[int]
    waiting: set[int]
    lent: Any = None
    reuse: bool = True

    def release(self) -> ResultFile | None:
        """Return the file if it can be used again."""
        self.file.reusable &= self.reuse
        file, self.lent = self.file if self.lent is None else None, None
        return file if self.reuse else None


class Leader:
    """Writes batches into files in memory, and sends their descriptors to the other replicas of its node.

    Replicas of other nodes that connect get copies. It never waits for a replica that has ended.

    Args:
        node: The replicas of this node.
        depth: Number of batches that some replica has not released, at which this one waits until the others have
            taken all of theirs.
        ends: Connections of other replicas. More may connect later.
        far: Connections of replicas on other nodes. More may connect later.
    """

    def __init__(
        self, node: Node, depth: int, ends: Mapping[int, socket.socket], far: Mapping[int, socket.socket]
    ) -> None:
        self._node = node
        self._depth = depth
        self._new_files = ResultFiles(most=0)
        self._free: list[ResultFile] = []
        self._handed: dict[int, _Handed] = {}
        self._next = 0
        self._place = 0, 0  # generation and number of the next step
        self._changed = threading.Condition()
        self._closed = False
        self._ends: dict[int, socket.socket] = {}
        self._far: dict[int, FarEnd] = {}
        self._selector = selectors.DefaultSelector()
        own, releases = socket.socketpair()
        self._own = Holds(depth - 1, own)
        self._own_end = own
        self._add(node.rank, releases)
        for rank, end in ends.items():
            self._add(rank, end)
        for rank, end in far.items():
            self._add(rank, end, far=True)
        self._selector.register(node.listener, selectors.EVENT_READ, None)
        if node.far_listener is not None:
            self._selector.register(node.far_listener, selectors.EVENT_READ, _FAR)
        self._thread = threading.Thread(target=self._listen, name="energon-grain-replicas", daemon=True)
        self._thread.start()
        connected.add(self)

    def _add(self, rank: int, end: socket.socket, *, far: bool = False) -> None:
        self._ends[rank] = end
        if far:
            self._far[rank] = FarEnd(end)
        self._selector.register(end, selectors.EVENT_READ, rank)

    def _listen(self) -> None:
        """Take releases and new connections until closed. The end of a connection releases all of its batches."""
        while not self._closed:
            for key, _ in self._selector.select(_POLL_SECONDS * 2):
                if key.data in (None, _FAR):
                    self._connect(far=key.data == _FAR)
                else:
                    self._receive(key.data, cast("socket.socket", key.fileobj))

    def _connect(self, *, far: bool) -> None:
        with suppress(OSError):
            accepted = self._node.accept_far() if far else self._node.accept()
            if accepted is not None:
                rank, end = accepted
                if rank in self._ends:  # its earlier connection broke
                    self._leaves(rank)
                with self._changed:  # a step is handed on either before this message or after it
                    self._add(rank, end, far=far)
                    message = Message(self._next, *self._place, begins=True)
                    self._next += 1
                    self._send({rank: end}, message, None)

    def _receive(self, rank: int, end: socket.socket) -> None:
        if self._ends.get(rank) is not end:  # another connection has replaced it a moment ago
            return
        try:
            data = end.recv(RELEASE.size, socket.MSG_WAITALL)
        except OSError:
            data = b""
        with self._changed:
            if len(data) == RELEASE.size:
                number, report = RELEASE.unpack(data)
                if report != TAKEN:
                    self._release(number, rank, reuse=report == REUSABLE)
                elif number in self._handed:
                    self._handed[number].waiting.discard(rank)
                self._changed.notify_all()
                return
        self._leaves(rank)

    def _leaves(self, rank: int) -> None:
        """A connection has ended. The process may have closed only its loader, and still use batches."""
        with self._changed:
            end, far = self._ends.pop(rank), self._far.pop(rank, None)
            self._selector.unregister(end)
            if far is None:
                end.close()
            else:
                far.abort()
            for number in tuple(self._handed):
                self._release(number, rank, reuse=False)
            self._changed.notify_all()

    def _release(self, number: int, rank: int, *, reuse: bool) -> None:
        handed = self._handed.get(number)
        if handed is None or rank not in handed.ranks:
            return
        handed.ranks.discard(rank)
        handed.waiting.discard(rank)
        handed.reuse &= reuse
        if not handed.ranks:
            del self._handed[number]
            file = handed.release()
            if file is not None and len(self._free) < self._depth:
                self._free.append(file)

    def hand_on(self, generation: int, number: int, step: Step, sources: list[Source], *, dropped: bool) -> Step:
        """Hand a step on, and return it as the other replicas get it.

        Args:
            generation: See `Message`.
            number: Number of the step in its generation.
            step: The step.
            sources: This process's sources.
            dropped: Whether any sample has been dropped.

        Raises:
            WorkerError: The batch cannot be pickled, or there are too many open files.
        """
        with self._changed:
            if len(self._ends) == 1:  # no other replica is left, or has connected yet
                self._place = generation, number + 1
                return step
        parts = _parts(step, sources)
        self._wait()
        found = _in_file_of_workers(parts)
        if found is None:
            with self._changed:
                file = self._free.pop() if self._free else self._new_files.take()
            write_parts(file.descriptor, parts)
            sizes = [part.nbytes for part in parts]
            places, lent = tuple(zip(part_offsets(sizes)[0], sizes, strict=True)), None
        else:
            (file, places), lent = found, parts
        del parts
        with self._changed:
            ends = dict(self._ends)
            message = Message(self._next, generation, number, places, dropped=dropped)
            waiting = {*ends} - {self._node.rank}
            self._handed[message.number] = _Handed(file, step.progress.step - 1, {*ends}, waiting, lent)
            self._next += 1
            self._place = generation, number + 1
        self._send(ends, message, file)
        return self._own.load(message.number, file.descriptor, places, sources)

    def end(self, generation: int, number: int, error: Exception | None = None) -> None:
        """Tell the other replicas that the pass has ended, or that the next step raises an error."""
        if error is not None:
            error = _copy(error)
            if not any(_READS in note for note in getattr(error, "__notes__", [])):
                error.add_note(f"raised by rank {self._node.rank}{_READS}")
        with self._changed:
            ends = dict(self._ends)
            message = Message(self._next, generation, number, error=error)
            self._next += 1
        self._send(ends, message, None)

    def _send(self, ends: dict[int, socket.socket], message: Message, file: ResultFile | None) -> None:
        data, descriptor = pickle.dumps(message), None if file is None else file.descriptor
        far = dict(self._far)
        for rank, end in sorted(ends.items()):
            if rank in far:
                far[rank].send(message, file)
            elif rank != self._node.rank:
                with suppress(OSError):  # it has ended, which the thread notices
                    Channel(end).send(data, descriptor)

    def _wait(self) -> None:
        """Wait until there is space for a batch, or all are taken; name those who have not released theirs.

        A replica may release a batch only after it has got the next one: JAX drops references in its next call.
        """
        began = time.monotonic()
        logged = False
        with self._changed:
            while len(self._handed) >= self._depth and not self._all_taken():
                raise_if_cancelled()
                self._changed.wait(_POLL_SECONDS)
                if not logged and time.monotonic() - began > PATIENCE_SECONDS:
                    logged = True
                    _logger.warning(
                        "rank %d cannot read on for %.0f s: %s", self._node.rank, PATIENCE_SECONDS, self.holders()
                    )

    def _all_taken(self) -> bool:
        """Whether every other replica has taken all of its batches, and waits for the next one."""
        return not any(handed.waiting & self._ends.keys() for handed in self._handed.values())

    def holders(self) -> str:
        """Return which replicas have not released which batches."""
        with self._changed:
            found: dict[int, list[int]] = {}
            for handed in self._handed.values():
                for rank in handed.ranks:
                    found.setdefault(rank, []).append(handed.step)
        most = max(map(len, found.values()), default=0)
        return ", ".join(
            f"rank {rank} holds {_ranges(steps)}" for rank, steps in sorted(found.items()) if len(steps) == most
        )

    def close(self, wait_s: float = 0.0) -> None:
        """Close all connections. Batches that were handed on stay valid.

        Args:
            wait_s: Most time to wait for batches that are not yet sent to other nodes.
        """
        self._closed = True
        if self._thread is not threading.current_thread():
            self._thread.join()
        connected.discard(self)
        for rank, end in self._ends.items():
            if rank not in self._far:
                end.close()
        self._own_end.close()
        self._selector.close()
        self._free.clear()
        for handed in self._handed.values():  # others still use their batches
            handed.file.reusable = False
        until = time.monotonic() + wait_s
        for far in self._far.values():
            far.close(max(0.0, until - time.monotonic()))

    def close_ends(self) -> None:
        """Close the sockets."""
        for end in (*self._ends.values(), self._own_end):
            end.close()


def _ranges(steps: list[int]) -> str:
    first, last = min(steps), max(steps)
    return f"batch {first}" if first == last else f"batches {first} to {last}"


def _parts(step: Step, sources: list[Source]) -> list[memoryview]:
    try:
        return pickled_parts(step, sources)
    except Exception as error:
        raise WorkerError(
            f"a batch cannot be handed to other replicas: {type(error).__name__}: {error}; return arrays, strings and "
            f"instances of classes of a module or of the script from hooks, or remove replicas= from WorkerConfig"
        ) from error


def _in_file_of_workers(parts: list[memoryview]) -> tuple[ResultFile, tuple[tuple[int, int], ...]] | None:
    """The file that a worker process wrote the batch to, and the places there. Small parts are appended to it.

    None: no worker process wrote it, or only a part of it.
    """
    lent = [lent_file(part) for part in parts]
    files = {found[0] for found in lent if found is not None}
    others = [part for part, found in zip(parts, lent, strict=True) if found is None]
    others_bytes = sum(part.nbytes for part in others)
    if len(files) != 1 or 2 * others_bytes > sum(part.nbytes for part in parts):
        return None
    (file,) = files
    appended = iter(file.append(others))
    offsets = [next(appended) if found is None else found[1] for found in lent]
    return file, tuple((offset, part.nbytes) for offset, part in zip(offsets, parts, strict=True))


def _copy(error: Exception) -> Exception:
    """The error, if it can be sent; otherwise a WorkerError with its text."""
    try:
        return pickle.loads(pickle.dumps(error))
    except Exception:
        return WorkerError(f"{type(error).__name__}: {error}")
