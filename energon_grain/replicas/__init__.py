# SPDX-License-Identifier: Apache-2.0
"""One read for replicas: ranks of tensor, pipeline and context parallelism get the batches of one reader.

On each node, one process of a data rank reads and decodes. It writes each batch into an anonymous file in memory, and
sends its descriptor to the others over Unix sockets. Everyone maps the file privately: pages are shared until a process
writes to them, so changes of one replica do not reach another. Nothing has a name in a file system.

With `WorkerConfig(across="broadcast")` only one node reads. One process of each other node gets the batches over TCP,
and hands them on in the same way.
"""

from energon_grain.replicas.group import ReplicaGroup
from energon_grain.replicas.sequence_slice import SequenceSlice

__all__ = ["ReplicaGroup", "SequenceSlice"]
