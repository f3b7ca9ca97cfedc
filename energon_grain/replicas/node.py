# SPDX-License-Identifier: Apache-2.0
"""The replicas on one node, and connections between them and to other nodes."""

from __future__ import annotations

import hmac
import json
import os
import secrets
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from energon_grain.errors import WorkerError
from energon_grain.replicas import far
from energon_grain.replicas.addresses import own_addresses
from energon_grain.replicas.forks import connected
from energon_grain.replicas.group import ReplicaGroup

_HELLO = struct.Struct("<q16s")
"""Rank, and a secret of the listener."""
CONNECT_SECONDS = 60.0
"""Time in which all replicas connect."""


def node_name() -> str:
    """Return what processes have in common that can reach each other's Unix sockets: the boot and the namespace."""
    parts = [socket.gethostname()]
    with suppress(OSError):
        parts = [Path("/proc/sys/kernel/random/boot_id").read_text().strip()]
        parts.append(str(os.stat("/proc/self/ns/net").st_ino))
    return "-".join(parts)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Address:
    name: str
    secret: bytes


class Node:
    """The replicas of one data rank on this node. Making one is collective over all replicas of the data rank.

    Each listens, so that any of them can read for the others.

    Args:
        group: The replicas on all nodes.
        all_gather: Collective over at least all of them.
        broadcast: Whether one node reads for the others.

    Attributes:
        rank: This process.
        ranks: The replicas on this node, ascending.
        everywhere: Those that this one may get batches from, on all nodes, ascending: `ranks`, unless `broadcast`.
        listener: For the others of this node.
        far_listener: For other nodes; None: there are none that read together with this one.

    Raises:
        WorkerError: A replica has not made its loader.
    """

    def __init__(
        self, group: ReplicaGroup, all_gather: Callable[[bytes], list[bytes]], *, broadcast: bool = False
    ) -> None:
        self.rank = group.rank
        self._secret = secrets.token_bytes(16)
        self.listener, self._folder = _listen()
        self.far_listener = far.listen() if broadcast else None
        own = {
            "rank": self.rank,
            "node": group.node or node_name(),
            "name": self._name(),
            "secret": self._secret.hex(),
            "hosts": own_addresses() if broadcast else [],
            "port": 0 if self.far_listener is None else self.far_listener.getsockname()[1],
        }
        found: dict[int, dict[str, Any]] = {}
        for data in all_gather(json.dumps(own).encode()):
            entry = json.loads(data)
            if entry and entry["rank"] in group.ranks:
                found[entry["rank"]] = entry
        missing = sorted(set(group.ranks) - found.keys())
        if missing:
            self.close()
            raise WorkerError(
                f"ranks {missing} need the same batches as rank {self.rank}, but have not made a loader with replicas: "
                f"make it on all ranks {list(group.ranks)}"
            )
        here = {rank: entry for rank, entry in found.items() if entry["node"] == own["node"]}
        self.ranks: Sequence[int] = sorted(here)
        self.everywhere: Sequence[int] = sorted(found) if broadcast else self.ranks
        self._addresses = {
            rank: _Address(name=entry["name"], secret=bytes.fromhex(entry["secret"])) for rank, entry in here.items()
        }
        self._far = {
            rank: far.FarAddress(hosts=entry["hosts"], port=entry["port"], secret=bytes.fromhex(entry["secret"]))
            for rank, entry in found.items()
            if entry["node"] != own["node"]
        }
        first: dict[str, int] = {}
        for rank in sorted(found):
            first.setdefault(found[rank]["node"], rank)
        self._far_leaders = sorted({*first.values()} - {self.ranks[0]})
        if self.far_listener is not None and not self._far:
            self.far_listener.close()
            self.far_listener = None
        connected.add(self)

    def _name(self) -> str:
        name = self.listener.getsockname()
        return name.decode() if isinstance(name, bytes) else name

    def connect(self, rank: int) -> socket.socket:
        """Return a connection to a replica, which accepts it when it reads. Raises OSError if it has ended."""
        address = self._addresses[rank]
        end = socket.socket(socket.AF_UNIX)
        try:
            end.connect(address.name)
            _check_user(end)
            end.sendall(_HELLO.pack(self.rank, address.secret))
        except BaseException:
            end.close()
            raise
        return end

    def accept(self) -> tuple[int, socket.socket] | None:
        """Return the rank of a replica that connects, and the connection; None: something else connected."""
        end, _ = self.listener.accept()
        try:
            _check_user(end)
            end.settimeout(1.0)
            rank, secret = _HELLO.unpack(end.recv(_HELLO.size, socket.MSG_WAITALL))
            end.settimeout(None)
        except (OSError, struct.error):
            end.close()
            return None
        if rank not in self._addresses or not hmac.compare_digest(secret, self._secret):
            end.close()
            return None
        return rank, end

    def accept_all(self) -> dict[int, socket.socket]:
        """Return connections of all others of this node. Raises WorkerError if one does not connect."""
        return self._accepted(self.listener, self.accept, [rank for rank in self.ranks if rank != self.rank])

    def _accepted(
        self,
        listener: socket.socket,
        accept: Callable[[], tuple[int, socket.socket] | None],
        ranks: Sequence[int],
    ) -> dict[int, socket.socket]:
        until = time.monotonic() + CONNECT_SECONDS
        found: dict[int, socket.socket] = {}
        while missing := [rank for rank in ranks if rank not in found]:
            listener.settimeout(max(0.001, until - time.monotonic()))
            try:
                accepted = accept()
            except TimeoutError:
                for end in found.values():
                    end.close()
                raise WorkerError(f"ranks {missing} have not connected to rank {self.rank}, which reads") from None
            if accepted is not None:
                found[accepted[0]] = accepted[1]
        listener.settimeout(None)
        return found

    def connect_far(self, rank: int) -> socket.socket:
        """Return a connection to a replica on another node. Raises OSError if it has ended."""
        return far.connect(self._far[rank], self.rank, CONNECT_SECONDS)

    def accept_far(self) -> tuple[int, socket.socket] | None:
        """Return the rank of a replica that connects from another node, and the connection; None: it is none."""
        assert self.far_listener is not None
        return far.accept(self.far_listener, self._secret, self._far.keys())

    def accept_nodes(self) -> dict[int, socket.socket]:
        """Return connections of the leaders of other nodes. Raises WorkerError if one does not connect."""
        listener = self.far_listener
        return {} if listener is None else self._accepted(listener, self.accept_far, self._far_leaders)

    def close_ends(self) -> None:
        """Close the sockets."""
        connected.discard(self)
        self.listener.close()
        if self.far_listener is not None:
            self.far_listener.close()

    def close(self) -> None:
        """Stop listening."""
        self.close_ends()
        if self._folder is not None:
            self._folder.cleanup()


def _listen() -> tuple[socket.socket, tempfile.TemporaryDirectory[str] | None]:
    """A listening socket: on Linux without a file, because the system chooses an abstract name."""
    listener = socket.socket(socket.AF_UNIX)
    folder = None
    if sys.platform == "linux":
        listener.bind("")
    else:
        folder = tempfile.TemporaryDirectory(prefix="energon-")
        listener.bind(str(Path(folder.name, "replica")))
    listener.listen(1024)
    return listener, folder


def _check_user(end: socket.socket) -> None:
    """Raises ConnectionRefusedError if the other process belongs to another user: it could have taken the name."""
    if sys.platform != "linux":
        return  # the folder is accessible only to this user
    _, user, _ = struct.unpack("3i", end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    if user != os.getuid():
        raise ConnectionRefusedError("the socket belongs to another user")
