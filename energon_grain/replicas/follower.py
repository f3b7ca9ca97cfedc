# SPDX-License-Identifier: Apache-2.0
"""A replica that receives the batches of another one."""

from __future__ import annotations

import os
import pickle
import select
import socket
from typing import NamedTuple

from energon_grain.processes.worker import Channel
from energon_grain.replicas.forks import connected
from energon_grain.replicas.memory import Holds, release
from energon_grain.replicas.message import Message
from energon_grain.sources.source import Source
from energon_grain.storage.cancellation import raise_if_cancelled
from energon_grain.stream.steps import Step

_POLL_SECONDS = 0.05


class _Received(NamedTuple):
    message: Message
    file: int | None


class Follower:
    """Receives batches.

    Args:
        leader: Rank of the replica that reads.
        end: Connection to it.
        depth: As in `Leader`.

    Attributes:
        leader: Rank of the replica that reads.
    """

    def __init__(self, leader: int, end: socket.socket, depth: int) -> None:
        self.leader = leader
        self._end = end
        self._channel = Channel(end)
        self._holds = Holds(depth - 1, end)
        self._first: _Received | None = None
        connected.add(self)

    def peek(self) -> Message:
        """Return the next message, which stays the next one.

        Raises:
            EOFError: The other process has ended.
            ConnectionError: The other process has ended.
        """
        if self._first is None:
            while not select.select([self._end], [], [], _POLL_SECONDS)[0]:
                raise_if_cancelled()
            data, file = self._channel.receive()
            self._first = _Received(pickle.loads(data), file)
        return self._first.message

    def discard(self) -> None:
        """Discard the next message."""
        received, self._first = self._first, None
        if received is not None and received.file is not None:
            os.close(received.file)
            release(self._end, received.message.number, reuse=True)

    def take(self, sources: list[Source]) -> Step:
        """Return the step of the next message. If that fails, it stays the next one."""
        received = self._first
        assert received is not None
        assert received.file is not None
        step: Step = self._holds.load(received.message.number, received.file, received.message.places, sources)
        self._first = None
        os.close(received.file)
        return step

    def close(self) -> None:
        """Close the connection. Batches that were received stay valid."""
        received, self._first = self._first, None
        if received is not None and received.file is not None:
            os.close(received.file)
        self.close_ends()

    def close_ends(self) -> None:
        """Close the socket."""
        connected.discard(self)
        self._end.close()
