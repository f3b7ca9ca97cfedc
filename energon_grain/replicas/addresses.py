# SPDX-License-Identifier: Apache-2.0
"""The addresses at which other nodes reach this process."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress

_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
"""Variables of PyTorch and NCCL that name the network interface."""
_SIOCGIFADDR = 0x8915  # netdevice(7)
_NOWHERE = "192.0.2.1"  # an address for documentation, RFC 5737; nothing is sent to it


def own_addresses() -> list[str]:
    """Return IP addresses of this process, the best one first.

    Those of the interfaces that `GLOO_SOCKET_IFNAME` or `NCCL_SOCKET_IFNAME` names. Otherwise that of the route to
    `MASTER_ADDR`, or the default route, and those of the host name; loopback only if there is nothing else.
    """
    named = [address for variable in _INTERFACES for address in _of_interfaces(os.environ.get(variable, ""))]
    if named:
        return named
    found = list(dict.fromkeys(_candidates()))
    outside = [address for address in found if not address.startswith("127.") and address != "::1"]
    return outside or found or ["127.0.0.1"]


def _candidates() -> Iterator[str]:
    with suppress(OSError):
        yield _routed(os.environ.get("MASTER_ADDR", _NOWHERE))
    with suppress(OSError):
        for *_, address in socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM):
            yield str(address[0])


def _of_interfaces(names: str) -> Iterator[str]:
    """Addresses of interfaces: a list of names or their beginnings. "^…" excludes interfaces, and chooses none."""
    if sys.platform != "linux" or not names or names.startswith("^"):
        return
    wanted = tuple(name.removeprefix("=") for name in names.split(","))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            if name.startswith(wanted):
                with suppress(OSError):  # it has no IPv4 address
                    answer = fcntl.ioctl(asking.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                    yield socket.inet_ntoa(answer[20:24])


def _routed(host: str) -> str:
    family, *_, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as asking:
        asking.connect(address)
        return str(asking.getsockname()[0])
