"""Functions of samples: map, filter, and functions of whole streams."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from energon_grain.datasets.dataset import SavableDataset, check_function, check_size, describe
from energon_grain.datasets.worker_config import WorkerConfig

if TYPE_CHECKING:
    from energon_grain.datasets.task_encoder import TaskEncoder


@dataclass(frozen=True, slots=True, init=False)
class MapDataset(SavableDataset):
    """A function of each sample (below a `BatchDataset`) or of each batch (above one).

    Args:
        dataset: What the function is applied to.
        map_fn: Called with the sample or batch; gives one in return, or, as a generator function, any number.
        hook: Name of the function in random keys, failure budgets and statistics.
        task_encoder: Owner of the function, whose `thread_safe` and failure tolerance count.
        failure_tolerance: Failures in a row after which the iteration ends; 0: never. Default: as `@stateless` or the
            owner says.
        stateless_map_fn: Accepted for compatibility: every function is expected to be pure.
        map_fn_config: Accepted for compatibility.
        worker_config: Default: that of the dataset.

    Raises:
        ConfigError: `map_fn` cannot be called.
    """

    dataset: SavableDataset
    map_fn: Callable[[Any], Any]
    hook: str
    task_encoder: TaskEncoder | None
    failure_tolerance: int | None

    def __init__(
        self,
        dataset: SavableDataset,
        map_fn: Callable[[Any], Any],
        *,
        hook: str = "map",
        task_encoder: TaskEncoder | None = None,
        failure_tolerance: int | None = None,
        stateless_map_fn: bool = False,
        map_fn_config: Any = None,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        del stateless_map_fn, map_fn_config
        check_function(self, "map_fn", map_fn)
        describe(
            self,
            dataset,
            worker_config,
            dataset=dataset,
            map_fn=map_fn,
            hook=hook,
            task_encoder=task_encoder,
            failure_tolerance=failure_tolerance,
        )


@dataclass(frozen=True, slots=True, init=False)
class FilterDataset(SavableDataset):
    """The samples that a function accepts.

    The others count as dropped: blends above give a filtered dataset its share of what is left, lengths count samples
    before the filter.

    Args:
        dataset: What is filtered.
        filter_fn: Called with the sample; True keeps it.
        hook: As in `MapDataset`, and so are `task_encoder` and `failure_tolerance`.
        filter_fn_config: Accepted for compatibility.
        worker_config: Default: that of the dataset.

    Raises:
        ConfigError: `filter_fn` cannot be called, or is a generator.
    """

    dataset: SavableDataset
    filter_fn: Callable[[Any], bool]
    hook: str
    task_encoder: TaskEncoder | None
    failure_tolerance: int | None

    def __init__(
        self,
        dataset: SavableDataset,
        filter_fn: Callable[[Any], bool],
        *,
        hook: str = "filter",
        task_encoder: TaskEncoder | None = None,
        failure_tolerance: int | None = None,
        filter_fn_config: Any = None,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        del filter_fn_config
        check_function(self, "filter_fn", filter_fn, generator=False)
        describe(
            self,
            dataset,
            worker_config,
            dataset=dataset,
            filter_fn=filter_fn,
            hook=hook,
            task_encoder=task_encoder,
            failure_tolerance=failure_tolerance,
        )


def same_length(length: int) -> int:
    """As many outputs as inputs."""
    return length


@dataclass(frozen=True, slots=True, init=False)
class IterMapDataset(SavableDataset):
    """A function from a stream of samples to another one, applied to each lane in runs of `inputs_per_call` inputs.

    The function is called anew on every run, which keeps its state restorable: nothing that it holds back outlives a
    run, and what it still holds when its input ends it must yield or lose.

    Args:
        dataset: Whose samples are the input.
        iter_map_fn: Called with an iterator over a run of a lane's samples; yields any number of samples.
        inputs_per_call: Inputs of one run.
        len_map_fn: From the number of inputs to the (approximate) number of outputs.
        hook: As in `MapDataset`, and so is `task_encoder`.
        stateless_iter_fn: Accepted for compatibility, and so is `iter_map_fn_config`.
        iter_map_fn_config: See there.
        worker_config: Default: that of the dataset.

    Raises:
        ConfigError: A function cannot be called, or `inputs_per_call` is not a positive number.
    """

    dataset: SavableDataset
    iter_map_fn: Callable[[Iterator[Any]], Iterable[Any]]
    inputs_per_call: int
    len_map_fn: Callable[[int], int]
    hook: str
    task_encoder: TaskEncoder | None

    def __init__(
        self,
        dataset: SavableDataset,
        iter_map_fn: Callable[[Iterator[Any]], Iterable[Any]],
        *,
        inputs_per_call: int = 1000,
        len_map_fn: Callable[[int], int] = same_length,
        hook: str = "iter_map",
        task_encoder: TaskEncoder | None = None,
        stateless_iter_fn: bool = False,
        iter_map_fn_config: Any = None,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        del stateless_iter_fn, iter_map_fn_config
        check_function(self, "iter_map_fn", iter_map_fn)
        check_function(self, "len_map_fn", len_map_fn)
        check_size(self, "inputs_per_call", inputs_per_call, "samples")
        describe(
            self,
            dataset,
            worker_config,
            dataset=dataset,
            iter_map_fn=iter_map_fn,
            inputs_per_call=inputs_per_call,
            len_map_fn=len_map_fn,
            hook=hook,
            task_encoder=task_encoder,
        )
