# SPDX-License-Identifier: Apache-2.0
"""The base of all dataset nodes.

A node describes; it holds no file, thread or position. Iterating over one runs a `Stream` for it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar, dataclass_transform

import numpy as np

from energon_grain.datasets.hooks import is_generator
from energon_grain.datasets.lowering import Lowering, Part, Steps, compile_dataset, nodes_below
from energon_grain.errors import ConfigError, EnergonGrainError, public, shorten
from energon_grain.samples.subscripts import Item, OneSubscript
from energon_grain.sources.cache_pool import CachePool
from energon_grain.stream.passes import first_pass_steps
from energon_grain.stream.spec import StreamSpec, names_of_leaves, not_a_dataset
from energon_grain.stream.stream import Stream
from energon_grain.stream.worker_config import WorkerConfig

Kind = TypeVar("Kind")
_OF_LOADERS = frozenset(
    (
        *("get_state", "set_state", "state_dict", "load_state_dict", "save_state_rank", "restore_state_rank"),
        *("save_state_global", "restore_state_global", "restore_sample", "skip", "stats"),
    )
)


@dataclass(frozen=True, kw_only=True, slots=True, weakref_slot=True)
class SavableDataset(OneSubscript[Item]):
    """Base of dataset nodes; `SavableDataset[Batch]` yields batches of that type, to a type checker.

    `for batch in dataset` runs one pass (for ever, where the dataset is endless) in this process without any backend;
    each `iter` starts from the beginning. `get_loader` and `get_savable_loader` add threads and state.

    Attributes:
        worker_config: The host that this description is for.
    """

    worker_config: WorkerConfig

    def __init_subclass__(cls, **arguments: Any) -> None:
        if "__repr__" not in cls.__dict__:
            cls.__repr__ = SavableDataset.__repr__  # in place of what `dataclass` would write: pages
        if "__init__" in cls.__dict__:  # its own, or that of a dataclass, which is made again for its slots
            cls.__init__ = public(cls.__dict__["__init__"])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({names_of_leaves(_identities(self))})"

    def __getitem__(self, index: Any) -> NoReturn:
        raise TypeError(
            f"{self!r} has no samples by index, it describes a stream: give it to get_loader, or iterate over it. For "
            f"Grain, BatchMapDataset(dataset) is a MapDataset of its batches, and EnergonDataSource has samples by "
            f"index; for torch.utils.data.DataLoader, take the dataset from energon_grain_torch"
        )

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name in _OF_LOADERS:
                raise AttributeError(
                    f"a dataset has no {name}, it describes a stream: give it to get_savable_loader, whose loader has"
                )
            return object.__getattribute__(self, name)  # fails as it did: inside of a property, maybe

    def __iter__(self) -> Iterator[Item]:
        try:
            stream = Stream.of(self, num_workers=0)
            try:
                yield from stream
            finally:
                stream.close()
        except EnergonGrainError as error:
            shorten(error)
            raise

    def __bool__(self) -> bool:
        # A description is there, however many steps it has; without this, `if dataset:` would open it to count them.
        return True

    def lower(self, to: Lowering) -> Part:
        """What the engine runs for this node: the seam for new kinds of nodes. See `energon_grain.datasets.lowering`.

        Raises:
            ConfigError: It cannot be run.
        """
        del to
        raise ConfigError(f"a {type(self).__name__} is not a dataset that can be run")

    def on_steps(self, steps: Steps) -> SavableDataset | None:
        """Take part in what works on whole steps, and say what it stands on; None: it is lowered for lanes instead."""
        del steps
        return None

    def build(self, worker_rotation_offset: int = 0) -> Self:
        """The dataset itself: what Energon hands to builders are factories, here they are datasets."""
        del worker_rotation_offset
        return self

    @public
    def __len__(self) -> int:
        """Steps per host of one pass; of one pass over what is repeated where the dataset is endless."""
        return first_pass_steps(self.compiled(), self.worker_config.world_size)

    def compiled(self, hosts: int | None = None, cache_pool: CachePool | None = None) -> StreamSpec:
        """Everything that decides what comes out of it. See `energon_grain.datasets.lowering.compile_dataset`."""
        return compile_dataset(self, hosts=hosts, cache_pool=cache_pool)


def _identities(node: Any) -> Iterator[tuple[str, ...]]:
    """Of the leaves below a node, in their order."""
    if hasattr(node, "identity"):
        yield node.identity
        return
    for below in nodes_below(node):
        yield from _identities(below)


BaseCoreDataset = SavableDataset
"""What a leaf is called in annotations written for Energon."""
BaseCoreDatasetFactory = SavableDataset
"""What a part of `build_train_datasets(datasets=…)` is called there. Leaves hold no files and need no factory."""


@dataclass_transform(frozen_default=True)
def node(kind: type[Kind]) -> type[Kind]:
    """A kind of dataset over others. `worker_config` is told last, and what is only accepted is no attribute of it."""
    made: Any = dataclass(frozen=True, slots=True)(kind)
    for name in [name for name, annotation in kind.__annotations__.items() if "InitVar" in f"{annotation}"]:
        delattr(made, name)
        del made.__dataclass_fields__[name]  # or `dataclasses.replace` would ask a node for it
    parameters = [*inspect.signature(made.__init__).parameters.values()]
    parameters.sort(key=lambda each: each.name == "worker_config")
    made.__init__.__signature__ = inspect.Signature(parameters)
    return made


OF_DATASET: Any = None
"""A `worker_config` that is not given: that of the dataset below."""


def put(node: object, **fields: Any) -> None:
    """Set fields of a frozen object that is being made."""
    for name, value in fields.items():
        object.__setattr__(node, name, value)


def settle(node: SavableDataset, below: SavableDataset) -> None:
    """Check the fields of a new node over another: its `worker_config` is the other's unless one is given.

    Raises ConfigError if what lies below is not a dataset.
    """
    check_dataset(node, below)
    for each in fields(node):
        value = getattr(node, each.name, None)
        if isinstance(value, np.integer):
            put(node, **{each.name: int(value)})  # those of numpy are not JSON-native
    if node.worker_config is None:  # pyright: ignore[reportUnnecessaryComparison]
        put(node, worker_config=below.worker_config)


def check_dataset(node: SavableDataset, below: Any) -> None:
    """Check that a node is put over a dataset. Raises ConfigError if it is something else."""
    if not isinstance(below, SavableDataset):
        raise ConfigError(f"{type(node).__name__}: {not_a_dataset(below)}")


def check_function(
    node: SavableDataset, name: str, function: Callable[..., Any] | None, *, generator: bool = True
) -> None:
    """Check that a node's function can be called, and that it is not a generator where one value is needed.

    Raises ConfigError if it cannot, or it is.
    """
    if not callable(function):
        raise ConfigError(f"{type(node).__name__}: {name}={function!r}: expected a function")
    if not generator and is_generator(function):
        raise ConfigError(
            f"{type(node).__name__}: {name} ({getattr(function, '__qualname__', function)}) is a generator function; "
            f"here it must return one value for each call"
        )


def check_size(node: SavableDataset, name: str, size: Any, unit: str) -> None:
    """Check that a size is a whole number above 0. Raises ConfigError if it is not."""
    if isinstance(size, bool) or not hasattr(size, "__index__") or size < 1:
        raise ConfigError(f"{type(node).__name__}: {name}={size!r}: expected a positive number of {unit}")
