# SPDX-License-Identifier: Apache-2.0
"""Batches for a replica on another node, over TCP.

Plain sockets and no collectives of a framework: these would have to be called in one order on all ranks, and would wait
for minutes for a rank that has ended. The end of a connection shows it at once; if a whole node is lost, keep-alive
packets do after some seconds.

Both sides prove that they know a secret that the framework gathered, before anything is unpickled. The data are not
encrypted, as those of the framework are not.
"""

from __future__ import annotations

import atexit
import hmac
import os
import pickle
import secrets
import select
import socket
import struct
import threading
import time
import weakref
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, NamedTuple

from energon_grain.processes.worker import ResultFile, ResultFiles, SampleUnpickler, part_offsets
from energon_grain.replicas.forks import connected
from energon_grain.replicas.memory import release
from energon_grain.replicas.message import Message
from energon_grain.sources.source import Source
from energon_grain.storage.cancellation import raise_if_cancelled
from energon_grain.stream.steps import Step

_HELLO = struct.Struct("<q16s32s")
"""Rank, nonce, and proof of the side that connects."""
_NONCE_BYTES, _PROOF_BYTES = 16, 32
_HEADER = struct.Struct("<Q")
"""Start of each message: its length. The parts of the batch follow it, at their `part_offsets`."""
_POLL_SECONDS = 0.05
_CONNECT_SECONDS = 5.0
"""Time for the network to connect to an address."""
_HELLO_SECONDS = 2.0
FLUSH_SECONDS = 5.0
"""Time for which closing waits for batches that are not yet sent."""
_LINGER_SECONDS = 30.0


@dataclass(frozen=True, kw_only=True, slots=True)
class FarAddress:
    """Where a replica listens for other nodes.

    Attributes:
        hosts: Its addresses, the best one first.
        port: TCP port.
        secret: Both sides prove that they know it.
    """

    hosts: Sequence[str]
    port: int
    secret: bytes


def listen() -> socket.socket:
    """Return a socket that listens on all interfaces, on a free port."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=128)
    return socket.create_server(("", 0), backlog=128)


def _proof(secret: bytes, side: bytes, rank: int, own: bytes, other: bytes) -> bytes:
    return hmac.digest(secret, b"energon-grain %s %d %s%s" % (side, rank, own, other), "sha256")


def accept(listener: socket.socket, secret: bytes, ranks: Collection[int]) -> tuple[int, socket.socket] | None:
    """Return the rank of a replica that connects, and the connection; None: something else connected."""
    end, _ = listener.accept()
    try:
        end.settimeout(_HELLO_SECONDS)
        nonce = secrets.token_bytes(_NONCE_BYTES)
        end.sendall(nonce)
        rank, theirs, proof = _HELLO.unpack(end.recv(_HELLO.size, socket.MSG_WAITALL))
        if rank in ranks and hmac.compare_digest(proof, _proof(secret, b"connects", rank, nonce, theirs)):
            end.sendall(_proof(secret, b"accepts", rank, theirs, nonce))
            return rank, _tuned(end)
    except (OSError, struct.error):
        pass
    end.close()
    return None


def connect(address: FarAddress, rank: int, patience_s: float) -> socket.socket:
    """Return a connection of this rank to a replica, which accepts it once it has a leader's place.

    Raises:
        OSError: It has ended, cannot be reached, or did not accept in time.
    """
    error = OSError("it has no address")
    for host in address.hosts:
        try:
            return _shaken(socket.create_connection((host, address.port), _CONNECT_SECONDS), address, rank, patience_s)
        except OSError as failed:
            error = OSError(f"{host} port {address.port}: {failed}")
    raise error


def _shaken(end: socket.socket, address: FarAddress, rank: int, patience_s: float) -> socket.socket:
    try:
        until = time.monotonic() + patience_s
        while not select.select([end], [], [], _POLL_SECONDS)[0]:
            raise_if_cancelled()
            if time.monotonic() > until:
                raise TimeoutError("it does not accept connections")
        end.settimeout(_HELLO_SECONDS)
        theirs, nonce = end.recv(_NONCE_BYTES, socket.MSG_WAITALL), secrets.token_bytes(_NONCE_BYTES)
        end.sendall(_HELLO.pack(rank, nonce, _proof(address.secret, b"connects", rank, theirs, nonce)))
        answer = end.recv(_PROOF_BYTES, socket.MSG_WAITALL)
        if not hmac.compare_digest(answer, _proof(address.secret, b"accepts", rank, nonce, theirs)):
            raise ConnectionRefusedError("another program has its port")
        return _tuned(end)
    except BaseException:
        end.close()
        raise


def _tuned(end: socket.socket) -> socket.socket:
    end.settimeout(None)
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {"TCP_KEEPIDLE": 2, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 4}  # a lost node: after 10 s
    for name, value in options.items():
        if hasattr(socket, name):
            with suppress(OSError):
                end.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return end


class _Item(NamedTuple):
    message: bytes
    file: ResultFile | None
    places: tuple[tuple[int, int], ...]


class FarEnd:
    """Sends batches to a replica on another node, in a thread, so that the network holds up no other replica.

    Args:
        end: Connection to it. Its reports arrive here too, and the leader receives them.
    """

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self._items: SimpleQueue[_Item | None] = SimpleQueue()
        self._sent = threading.Event()
        self._thread = threading.Thread(target=self._run, name="energon-grain-far-replica", daemon=True)
        self._thread.start()
        if not _far_ends:
            atexit.unregister(_flush)
            atexit.register(_flush)  # before functions that were registered earlier, such as finalizers
        _far_ends.add(self)

    def send(self, message: Message, file: ResultFile | None) -> None:
        """Send a message, and the parts of its file. Returns at once."""
        self._items.put(_Item(pickle.dumps(message), file, message.places))

    def _run(self) -> None:
        alive = True
        while (item := self._items.get()) is not None:
            if alive:
                try:
                    self._send(item)
                except OSError:  # it has ended, which the leader notices at the end of the connection
                    alive = False
                    self._shut(socket.SHUT_RDWR)
        self._shut(socket.SHUT_WR)
        self._sent.set()
        with suppress(OSError):
            self.end.settimeout(_LINGER_SECONDS)
            while self.end.recv(1 << 12):  # closing with unread data would discard what is under way
                pass
        self.end.close()

    def _shut(self, how: int) -> None:
        with suppress(OSError):
            self.end.shutdown(how)

    def _send(self, item: _Item) -> None:
        self.end.sendall(_HEADER.pack(len(item.message)) + item.message)
        if item.file is None:
            return
        offsets, total = part_offsets([size for _, size in item.places])
        ends = [*offsets[1:], total]
        for (place, size), offset, end in zip(item.places, offsets, ends, strict=True):
            done = 0
            while done < size:
                done += os.sendfile(self.end.fileno(), item.file.descriptor, place + done, size - done)
            self.end.sendall(bytes(end - offset - size))

    def abort(self) -> None:
        """Send nothing more: the other process has ended."""
        self._shut(socket.SHUT_RDWR)
        self._items.put(None)

    def close(self, wait_s: float) -> None:
        """Send what is left, and wait for it at most some seconds."""
        self._items.put(None)
        self._sent.wait(wait_s)

    def join(self, wait_s: float) -> None:
        """Wait until the other process has received everything."""
        self._thread.join(wait_s)


_far_ends: weakref.WeakSet[FarEnd] = weakref.WeakSet()


def _flush() -> None:
    """At the end of the program."""
    until = time.monotonic() + FLUSH_SECONDS
    for end in tuple(_far_ends):
        end.close(0)
    for end in tuple(_far_ends):
        end.join(max(0.0, until - time.monotonic()))


class _Incoming:
    """Receives buffers, one after the other. Receiving that was cancelled continues in the next call."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._buffer: bytearray | None = None
        self._done = 0

    def receive(self, size: int) -> bytearray:
        """Return the next bytes. Raises EOFError or OSError if the other process has ended."""
        if self._buffer is None:
            self._buffer = bytearray(size)
        self.fill(memoryview(self._buffer))
        buffer, self._buffer = self._buffer, None
        return buffer

    def fill(self, target: memoryview) -> None:
        """Receive into memory. Raises EOFError or OSError if the other process has ended."""
        while self._done < target.nbytes:
            while not select.select([self._end], [], [], _POLL_SECONDS)[0]:
                raise_if_cancelled()
            count = self._end.recv_into(target[self._done :])
            if not count:
                raise EOFError
            self._done += count
        self._done = 0


class FarFollower:
    """Receives batches from a replica on another node, into files that can be handed on here.

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
        self._incoming = _Incoming(end)
        self._files = ResultFiles(most=2 * depth)
        self._size = 0  # of the next message, of which nothing else has arrived; 0: unknown
        self._message: Any = None
        self._file: ResultFile | None = None
        self._received = False
        connected.add(self)

    def peek(self) -> Message:
        """Return the next message, which stays the next one. Its batch has arrived.

        Raises:
            EOFError: The other process has ended.
            OSError: The other process has ended, or its node is lost.
        """
        if self._message is None:
            if not self._size:
                (self._size,) = _HEADER.unpack(self._incoming.receive(_HEADER.size))
            self._message = pickle.loads(self._incoming.receive(self._size))
            self._size = 0
        message: Message = self._message
        if message.places and not self._received:
            self._receive(message)
        return message

    def _receive(self, message: Message) -> None:
        if self._file is None:
            self._file = self._files.take()
        _, total = part_offsets([size for _, size in message.places])
        if os.fstat(self._file.descriptor).st_size < total:
            os.ftruncate(self._file.descriptor, total + total // 4)
        self._incoming.fill(self._file.memory(total).data)
        self._received = True
        release(self._end, message.number, reuse=True)

    def discard(self) -> None:
        """Discard the next message."""
        self._message, self._received = None, False  # its file is used for the next one

    def take(self, sources: list[Source]) -> Step:
        """Return the step of the next message. If that fails, it stays the next one."""
        message, file = self._message, self._file
        assert message is not None
        assert file is not None
        file.reusable = False  # if this fails, the next call reads it again
        parts = self._files.parts(file, [size for _, size in message.places])
        step: Step = SampleUnpickler(parts[0], parts[1:], sources).load()
        file.reusable = True
        self._file = None
        self.discard()
        return step

    def close(self) -> None:
        """Close the connection. Batches that were received stay valid."""
        self.close_ends()

    def close_ends(self) -> None:
        """Close the socket."""
        connected.discard(self)
        self._end.close()
