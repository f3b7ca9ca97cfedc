"""Encoded chunks between processes: pickles whose large buffers travel beside them.

Provenance of a sample refers to its source; between processes it is sent as (number of the source, index) and bound to
the receiver's own source again.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterable
from typing import Any

from energon_grain.sources.provenance import LazySources
from energon_grain.sources.source import Source


class SamplePickler(pickle.Pickler):
    """Pickles a result; arrays go to `buffers`."""

    def __init__(self, sources: list[Source]) -> None:
        self._stream = io.BytesIO()
        self._numbers = {id(source): number for number, source in enumerate(sources)}
        self.buffers: list[pickle.PickleBuffer] = []
        super().__init__(self._stream, protocol=5, buffer_callback=self._keep)

    def _keep(self, buffer: pickle.PickleBuffer) -> bool:
        self.buffers.append(buffer)
        return False

    def persistent_id(self, obj: Any) -> tuple[int, int] | None:
        """(source, index) in place of provenance."""
        if type(obj) is LazySources and id(obj.source) in self._numbers:
            return self._numbers[id(obj.source)], obj.index
        return None

    def payload(self, result: Any) -> memoryview:
        """The pickle itself."""
        self.dump(result)
        return self._stream.getbuffer()


class SampleUnpickler(pickle.Unpickler):
    """Reads what `SamplePickler` wrote."""

    def __init__(self, payload: bytes | bytearray, buffers: Iterable[Any], sources: list[Source]) -> None:
        super().__init__(io.BytesIO(payload), buffers=buffers)
        self._sources = sources

    def persistent_load(self, pid: Any) -> LazySources:
        """Provenance, bound to this process's source."""
        number, index = pid
        return LazySources(self._sources[number], index)
