# SPDX-License-Identifier: Apache-2.0
"""The base class of all dataset nodes.

A node is a description. It holds no file, thread or position. Iterating over a node runs a `Stream`.
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
_LOADER_METHODS = frozenset(
    (
        *("get_state", "set_state", "state_dict", "load_state_dict", "save_state_rank", "restore_state_rank"),
        *("save_state_global", "restore_state_global", "restore_sample", "skip", "stats"),
    )
)


@dataclass(frozen=True, kw_only=True, slots=True, weakref_slot=True)
class SavableDataset(OneSubscript[Item]):
    """Base class of dataset nodes. For type checkers, `SavableDataset[Batch]` yields batches of that type.

    `for batch in dataset` runs one pass (endless for an endless dataset) in this process, without any backend. Each
    `iter` starts from the beginning. `get_loader` and `get_savable_loader` add threads and state.

    Attributes:
        worker_config: The host that reads this dataset.
    """

    worker_config: WorkerConfig

    def __init_subclass__(cls, **arguments: Any) -> None:
        if "__repr__" not in cls.__dict__:
            cls.__repr__ = SavableDataset.__repr__  # the one of `dataclass` would fill pages
        if "__init__" in cls.__dict__:  # defined by hand, or by `dataclass`, which makes the class again for its slots
            cls.__init__ = public(cls.__dict__["__init__"])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({names_of_leaves(_identities(self))})"

    def __getitem__(self, index: Any) -> NoReturn:
        raise TypeError(
            f"{self!r} is a stream and has no samples by index: pass it to get_loader, or iterate over it. For Grain, "
            f"BatchMapDataset(dataset) is a MapDataset of its batches, and EnergonDataSource has samples by index. For "
            f"torch.utils.data.DataLoader, use the dataset from energon_grain_torch"
        )

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name in _LOADER_METHODS:
                raise AttributeError(
                    f"a dataset has no {name}, because it has no position: use the loader of "
                    f"get_savable_loader(dataset)"
                )
            return object.__getattribute__(self, name)  # raises the original error, possibly from inside a property

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
        # A description is true regardless of its length. Without this, `if dataset:` would open it to count steps.
        return True

    def lower(self, to: Lowering) -> Part:
        """Return the part that the engine runs: implement it for a new node. See `energon_grain.datasets.lowering`.

        Raises:
            ConfigError: The node cannot run.
        """
        del to
        raise ConfigError(f"{type(self).__name__} defines no `lower`, so it cannot run")

    def on_steps(self, steps: Steps) -> SavableDataset | None:
        """Take part in whole steps and return the dataset below; None: the node is lowered for lanes instead."""
        del steps
        return None

    def build(self, worker_rotation_offset: int = 0) -> Self:
        """Return the dataset. Energon passes factories to builders; this library passes datasets."""
        del worker_rotation_offset
        return self

    @public
    def __len__(self) -> int:
        """Steps per host of one pass; for an endless dataset, of one pass over the repeated data."""
        return first_pass_steps(self.compiled(), self.worker_config.world_size)

    def compiled(self, hosts: int | None = None, cache_pool: CachePool | None = None) -> StreamSpec:
        """Return everything that determines the stream. See `energon_grain.datasets.lowering.compile_dataset`."""
        return compile_dataset(self, hosts=hosts, cache_pool=cache_pool)


def _identities(node: Any) -> Iterator[tuple[str, ...]]:
    """Yield the identities of the leaves below a node, in order."""
    if hasattr(node, "identity"):
        yield node.identity
        return
    for below in nodes_below(node):
        yield from _identities(below)


BaseCoreDataset = SavableDataset
"""Energon's name for a leaf in annotations."""
BaseCoreDatasetFactory = SavableDataset
"""Energon's name for an entry of `build_train_datasets(datasets=…)`. Leaves hold no files and need no factory."""


@dataclass_transform(frozen_default=True)
def node(kind: type[Kind]) -> type[Kind]:
    """Define a node over other datasets. `worker_config` becomes the last parameter, and `InitVar`s no attributes."""
    made: Any = dataclass(frozen=True, slots=True)(kind)
    for name in [name for name, annotation in kind.__annotations__.items() if "InitVar" in f"{annotation}"]:
        delattr(made, name)
        del made.__dataclass_fields__[name]  # otherwise `dataclasses.replace` would require it
    parameters = [*inspect.signature(made.__init__).parameters.values()]
    parameters.sort(key=lambda each: each.name == "worker_config")
    made.__init__.__signature__ = inspect.Signature(parameters)
    return made


OF_DATASET: Any = None
"""Default of `worker_config`: the configuration of the dataset below."""


def put(node: object, **fields: Any) -> None:
    """Set fields of a frozen object during its construction."""
    for name, value in fields.items():
        object.__setattr__(node, name, value)


def settle(node: SavableDataset, below: SavableDataset) -> None:
    """Check the fields of a new node over another one, and default its `worker_config` to the other's.

    Raises ConfigError if the object below is not a dataset.
    """
    check_dataset(node, below)
    for each in fields(node):
        value = getattr(node, each.name, None)
        if isinstance(value, np.integer):
            put(node, **{each.name: int(value)})  # numpy integers are not JSON-native
    if node.worker_config is None:  # pyright: ignore[reportUnnecessaryComparison]
        put(node, worker_config=below.worker_config)


def check_dataset(node: SavableDataset, below: Any) -> None:
    """Check that a node is built on a dataset. Raises ConfigError otherwise."""
    if not isinstance(below, SavableDataset):
        raise ConfigError(f"{type(node).__name__}: {not_a_dataset(below)}")


def check_function(
    node: SavableDataset, name: str, function: Callable[..., Any] | None, *, generator: bool = True
) -> None:
    """Check that a node's function is callable, and not a generator where one value is required.

    Raises ConfigError otherwise.
    """
    if not callable(function):
        raise ConfigError(f"{type(node).__name__}: {name}={function!r}: expected a function")
    if not generator and is_generator(function):
        raise ConfigError(
            f"{type(node).__name__}: {name} ({getattr(function, '__qualname__', function)}) is a generator function, "
            f"but must return one value per call"
        )


def check_size(node: SavableDataset, name: str, size: Any, unit: str) -> None:
    """Check that a size is a whole number above 0. Raises ConfigError otherwise."""
    if isinstance(size, bool) or not hasattr(size, "__index__") or size < 1:
        raise ConfigError(f"{type(node).__name__}: {name}={size!r}: expected a positive number of {unit}")
