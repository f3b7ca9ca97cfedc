"""The adapter protocol: the questions that a loader answers.

An adapter is a module of at most 150 lines with a subclass of `Adapter` named `Loader`. It runs in the interpreter of
its loader, so this file needs only the standard library. `loaders/README.md` explains each method, with an example.

"""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

ENDLESS = 0


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A set of tars at `folder/name/shard-NNN.tar`, `shards` of them, with `samples` samples in total.

    Sample `number` has the key `f"{number:06d}"` and one part `.txt`, which `Sample.of` reads. Numbers ascend through
    the shards, and the shards have equal sizes, except for `samples % shards` first ones, which have one more.
    """

    name: str
    samples: int
    shards: int


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run on one host: the arguments of `Adapter.open`. `weights` and `datasets` have the same length."""

    folder: Path
    datasets: tuple[Dataset, ...]
    weights: tuple[float, ...]  # sums to 1; one dataset has (1.0,)
    batch: int  # samples per host and step; with `pack`, packs per host and step
    seed: int
    host: int
    hosts: int
    workers: int  # 0: the process of the host does all work
    pack: int = 0  # length of a pack in tokens; 0: no packing
    passes: int = ENDLESS  # 1: the data once, then StopIteration; a loader without an end may ignore it
    port: int = 0  # a free port on loopback, for loaders that need `torch.distributed`; the same on all hosts

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "folder": str(self.folder)}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Run:
        fields = dict(document)
        fields["folder"] = Path(document["folder"])
        fields["datasets"] = tuple(Dataset(**each) for each in document["datasets"])
        fields["weights"] = tuple(document["weights"])
        return cls(**fields)


class Sample(NamedTuple):
    """A delivered sample. `random` is the number that an augmentation of this sample drew (0.0: none drawn).

    In packs `tokens` is the number of its tokens in this place; a sample that is cut in two is listed twice.
    """

    dataset: int  # the index in `Run.datasets`
    number: int
    tokens: int
    random: float = 0.0

    @classmethod
    def of(cls, text: str | bytes, random: float = 0.0) -> Sample:
        """Read the part `.txt` of a sample."""
        dataset, number, tokens = text.split()
        return cls(int(dataset), int(number), int(tokens), random)


class Adapter:
    """A loader in the harness. Subclass it as `Loader`, set the attributes, and write the methods that are claimed."""

    name = ""
    page = ""  # the page of the loader's documentation that this adapter follows
    package = ""  # the distribution whose version is reported
    settings = ""  # each setting that matters, and why, in one line
    claims: frozenset[str] = frozenset()  # names of CLAIMS
    forkable = False  # True: hosts are forked from a process that has imported the adapter, which is fast

    def prepare(self, folder: Path, datasets: Sequence[Dataset]) -> None:
        """Convert the tars into the format of the loader, below `folder`, once before the run."""

    def open(self, run: Run) -> None:
        """Make the loader at the beginning of `run`. All hosts open at the same time."""
        raise NotImplementedError

    def next(self) -> list[Sample]:
        """Return the next batch of this host. Raises StopIteration at the end of the data."""
        raise NotImplementedError

    def save(self) -> bytes:
        """Return the state of this host after the last batch."""
        raise NotImplementedError

    def restore(self, states: list[bytes]) -> None:
        """Continue from the states of all hosts of the saved run, in their order. Called after `open`, before `next`.

        The run that was opened may have other hosts, workers, datasets and weights, if the adapter claims it.
        """
        raise NotImplementedError

    def workers(self) -> list[int]:
        """Return the process ids of the workers of this host: those that may be killed."""
        return [process.pid for process in multiprocessing.active_children() if process.pid]

    def which(self, step: int) -> list[tuple[int, int]]:
        """Return (dataset, number) of all samples of all hosts that made a past step, the first being 0."""
        raise NotImplementedError

    def when(self, dataset: int, number: int, steps: int) -> list[int]:
        """Return the steps before `steps` that used a sample."""
        raise NotImplementedError

    def close(self) -> None:
        """Release the loader. `open` may follow in the same process."""


CLAIMS = {
    "resume": "documented: a run continues from a state, on the same hosts",
    "elastic_hosts": "documented: a run continues on another number of hosts, the global batch kept",
    "elastic_workers": "documented: a run continues with another number of workers",
    "mixture": "mixes datasets by weights",
    "elastic_mixture": "documented: what the loader claims of elastic_* holds for mixtures too",
    "pack": "packs samples into sequences of `Run.pack` tokens",
    "elastic_pack": "documented: what the loader claims of elastic_hosts holds with packing too",
    "any_size": "documented: hosts, workers and batches need not divide the data",
    "change_weights": "documented: a run continues with other weights",
    "add_dataset": "documented: a run continues with one more dataset, appended to `Run.datasets`",
    "repeatable": "documented: the same seed gives the same batches",
    "repeatable_workers": "documented: another number of workers gives the same batches",
    "random": "documented: random numbers of an augmentation follow from the seed",
    "shuffle": "shuffles",
    "which": "names the samples of a past step",
    "when": "names the steps of a sample",
}
