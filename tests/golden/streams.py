"""Digests of what a stream delivers: of its keys, of its random draws, and of all its bytes."""

from __future__ import annotations

import dataclasses
import hashlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np
from golden.configurations import Bench, Configuration
from stream_hosts import Agreement

STEPS = 500
"""Steps of one host; several hosts share them, so that each configuration costs about as many batches on any number."""
SEGMENT = 50
"""Steps whose digests are recorded together."""
SAVED_AT = 100
"""Steps behind which the state is recorded."""
Record = dict[str, Any]


def steps_of(hosts: int) -> int:
    return STEPS // hosts // SEGMENT * SEGMENT or SEGMENT


def record_hosts(configuration: Configuration, api: ModuleType, hosts: int) -> list[Record]:
    """What each host delivers, the hosts being threads of this process that move together."""
    agreement = Agreement(hosts) if hosts > 1 else None
    found: list[Record] = [{} for _ in range(hosts)]
    failures: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            bench = Bench(api, rank, hosts, agreement.of(rank) if agreement else None)
            with api.get_savable_loader(configuration.build(bench)) as loader:
                found[rank] = record(loader, steps_of(hosts), save=hosts == 1)
        except BaseException as error:
            failures.append(error)
            if agreement:
                agreement.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(hosts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return found


def record(loader: Any, steps: int, *, save: bool = False, segment: int = SEGMENT) -> Record:
    """Digests of segments of steps, the first keys in clear, and (if asked for) the state on the way.

    An end of a pass is a step of its own kind: it is noted, and iteration goes on with the next pass.
    """
    segments: list[str] = []
    first: list[Any] = []
    state: Any = None
    stream = passes(loader)
    for start in range(0, steps, segment):
        keys, draws, content = (hashlib.blake2b(digest_size=6) for _ in range(3))
        for step in range(start, start + segment):
            if save and step == SAVED_AT:
                state = loader.state_dict() if hasattr(loader, "state_dict") else loader.get_state()
            batch = next(stream)
            if len(first) < 2:
                first.append("end" if batch is None else _keys(batch))
            keys.update(repr("end" if batch is None else _keys(batch)).encode())
            _add(draws, None if batch is None else _draws(batch))
            _add(content, batch)
        segments.append(" ".join(each.hexdigest() for each in (keys, draws, content)))
    return {"first": first, "segments": segments, **({"state": state} if save else {})}


def resumed(configuration: Configuration, api: ModuleType, state: Any) -> str:
    """The segment that follows a saved state."""
    with api.get_savable_loader(configuration.build(Bench(api, 0, 1))) as loader:
        loader.load_state_dict(state) if hasattr(loader, "load_state_dict") else loader.set_state(state)
        return record(loader, SEGMENT)["segments"][0]


def digest_of(value: Any) -> str:
    """Of everything in a value."""
    content = hashlib.blake2b(digest_size=8)
    _add(content, value)
    return content.hexdigest()


def passes(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader
        yield None


def _keys(batch: Any) -> Any:
    return batch.__key__


def _draws(batch: Any) -> Any:
    return getattr(batch, "draw", None)


def _add(digest: Any, value: Any) -> None:
    """Everything that tells two values apart, the backend left out: a tensor counts as its array."""
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.name != "__sources__"}
    if isinstance(value, np.ndarray | np.generic):
        array = np.ascontiguousarray(value)
        if array.dtype != object:
            digest.update(f"{array.dtype.str}{np.shape(value)}".encode())
            digest.update(array.tobytes())
            return
        value = array.tolist()
    if isinstance(value, Mapping):
        for key, each in sorted(value.items()):
            digest.update(f"{key}:".encode())
            _add(digest, each)
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        digest.update(f"[{len(value)}".encode())
        for each in value:
            _add(digest, each)
    elif isinstance(value, memoryview | bytearray | bytes):
        digest.update(bytes(value))
    else:
        digest.update(repr(value).encode())


def difference(name: str, recorded: Record, found: Record) -> str | None:
    """What changed, for a person: which of keys, draws and bytes, and from which steps on. None: nothing."""
    for number, (before, now) in enumerate(zip(recorded["segments"], found["segments"], strict=True)):
        if before != now:
            kinds = ("keys", "random draws", "bytes of batches")
            changed = [k for k, a, b in zip(kinds, before.split(), now.split(), strict=True) if a != b]
            clear = ""
            if number == 0 and recorded["first"] != found["first"]:
                clear = f"; first keys were {recorded['first']}, are {found['first']}"
            steps = f"{number * SEGMENT} to {(number + 1) * SEGMENT - 1}"
            return f"{name}: {', '.join(changed)} differ, first in steps {steps}{clear}"
    return None
