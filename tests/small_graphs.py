"""Small graphs of dataset nodes, run step by step: what comes out, and whether every state of it can be continued."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from stream_hosts import Agreement, config

from energon_grain import MapDataset, SavableDataset, Stream, WorkerConfig, current_draw, get_train_dataset

MakeGraph = Callable[[WorkerConfig], SavableDataset]


def shuffled(path: Path, **options: Any) -> SavableDataset:
    """The samples, each pass in its own order; finite, in 4 lanes, unless asked otherwise."""
    arguments: dict[str, Any] = {
        "batch_size": None,
        "shuffle_buffer_size": None,
        "max_samples_per_sequence": None,
        "repeat": False,
        "lanes": 4,
        "worker_config": config(),
    }
    return get_train_dataset(path, **{**arguments, **options})


def in_order(path: Path, **options: Any) -> SavableDataset:
    """The samples in the order of their numbers; one lane, unless asked otherwise."""
    return shuffled(path, **{"lanes": 1, "shuffle_over_epochs_multiplier": None, **options})


def number(sample: Any) -> int:
    return int(sample.__key__)


def numbers(samples: Any) -> tuple[int, ...]:
    return tuple(number(sample) for sample in samples)


def ordered(path: Path, **options: Any) -> SavableDataset:
    """Numbers in their order."""
    return MapDataset(in_order(path, **options), number)


def mixed(path: Path, **options: Any) -> SavableDataset:
    """Numbers, shuffled."""
    return MapDataset(shuffled(path, **options), number)


def pairs(samples: list[Any]) -> list[list[Any]]:
    return [samples[at : at + 2] for at in range(0, len(samples), 2)]


def threes(samples: list[Any]) -> list[list[Any]]:
    return [samples[at : at + 3] for at in range(0, len(samples), 3)]


def roll() -> int:
    """A random number of the current draw."""
    return int(current_draw().rng.integers(1 << 30))


def with_roll(value: Any) -> tuple[Any, int]:
    return value, roll()


def rolled(samples: list[Any]) -> tuple[Any, int]:
    return tuple(samples), roll()


def take(stream: Stream, steps: int) -> list[Any]:
    """As many steps, over the ends of passes, which are None."""
    return [_step(stream) for _ in range(steps)]


def require_exact_states(
    make: Callable[[], SavableDataset], steps: int, *, every: int = 1, ahead: int = 8
) -> list[Any]:
    """Check that states, through JSON, are continued as if nothing had happened.

    Args:
        make: The dataset.
        steps: How many to look at, ends of passes among them.
        every: After which of them the state is restored.
        ahead: How many steps are compared behind it, and then the state.

    Returns:
        What the steps give; None stands for the end of a pass.
    """
    expected: list[Any] = []
    stream = Stream.of(make())
    cursors = [stream.cursor(with_manifest=True)]
    for _ in range(steps):
        expected.append(_step(stream))
        cursors.append(stream.cursor(with_manifest=True))
    other = Stream.of(make())
    for done in range(0, steps, every):
        other.restore(json.loads(json.dumps(cursors[done])))
        assert other.cursor(with_manifest=True) == cursors[done], f"the state behind step {done}, restored"
        until = min(done + ahead, steps)
        assert [_step(other) for _ in range(done, until)] == expected[done:until], f"continued behind step {done}"
        assert other.cursor(with_manifest=True) == cursors[until], f"the state at {until}, continued behind {done}"
    return expected


def _step(stream: Stream) -> Any:
    """The next step, or None at the end of a pass, behind which the next one begins."""
    try:
        return next(stream)
    except StopIteration:
        iter(stream)
        return None


def on_hosts(make: MakeGraph, hosts: int, steps: int) -> list[list[Any]]:
    """What each of several hosts gets, in threads of their own; None stands for the end of a pass."""
    agreement = Agreement(hosts)
    found: list[list[Any]] = [[] for _ in range(hosts)]
    failed: list[BaseException] = []

    def run(host: int) -> None:
        try:
            found[host] = take(Stream.of(make(config(host, hosts, any_host=agreement.of(host)))), steps)
        except BaseException as error:
            failed.append(error)
            agreement.abort()

    threads = [threading.Thread(target=run, args=(host,)) for host in range(hosts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return found


def flat(values: Any) -> Iterator[Any]:
    """The entries of nested lists and tuples."""
    for value in values:
        if isinstance(value, list | tuple):
            yield from flat(value)
        else:
            yield value
