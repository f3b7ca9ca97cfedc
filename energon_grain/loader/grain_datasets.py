# SPDX-License-Identifier: Apache-2.0
"""A dataset in pipelines driven by Grain: whole batches by number, or in sequence."""

from __future__ import annotations

import operator
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt

from energon_grain.datasets.dataset import SavableDataset
from energon_grain.datasets.lowering import compile_dataset
from energon_grain.errors import ConfigError, EmptyDatasetError, public
from energon_grain.extras import needed_for
from energon_grain.host_processes import with_agreement
from energon_grain.loader.iterator import PipelineLoader, jax_processes, record_read, traced_item
from energon_grain.replicas.group import refuse_replicas
from energon_grain.replicas.stream import ReplicaStream
from energon_grain.samples.registration import register_value
from energon_grain.samples.subscripts import EncodedBatch
from energon_grain.stream.batches import NO_BATCH, BatchStage
from energon_grain.stream.chunks import Chunk, Encoded
from energon_grain.stream.drops import DropBudget, Dropped, PartialItem
from energon_grain.stream.index_map import EqualPasses
from energon_grain.stream.observer import Outlet
from energon_grain.stream.passes import PassPlan, Share, places_of
from energon_grain.stream.stage import PureStage
from energon_grain.stream.stream import OnChange, config_to_run
from energon_grain.watch.loader_stats import LoaderStats
from energon_grain.watch.statistics import Statistics
from energon_grain.watch.stream import Stream

if TYPE_CHECKING:
    from grain.experimental import ShapeDtypeStruct


def spec_of_batches(batches: Iterable[Any]) -> Any:
    """Return a batch with a `ShapeDtypeStruct` for each array, and None for sizes that differ between batches.

    The results of hooks are only known by running them, so this uses two batches, without those that are None (all
    samples dropped). Values that are not arrays have no shape and dtype `object`.

    Raises EmptyDatasetError if there is no batch.
    """
    import jax
    from grain.experimental import ShapeDtypeStruct

    def spec(value: Any) -> ShapeDtypeStruct:
        if isinstance(value, np.ndarray | np.generic | bool | int | float | complex):
            return ShapeDtypeStruct(np.shape(value), np.asarray(value).dtype)
        return ShapeDtypeStruct((), np.dtype(object))

    def common(one: ShapeDtypeStruct, other: ShapeDtypeStruct) -> ShapeDtypeStruct:
        if len(one.shape) != len(other.shape):
            return one
        shape = tuple(a if a == b else None for a, b in zip(one.shape, other.shape, strict=True))
        return ShapeDtypeStruct(shape, one.dtype)

    made = (batch for batch in batches if batch is not None)
    specs: list[Any] = [jax.tree.map(spec, batch) for batch in islice(made, 2)]
    if not specs:
        raise EmptyDatasetError("the element spec is unknown: the dataset has no elements, or all of them are dropped")
    if len(specs) < 2 or jax.tree.structure(specs[0]) != jax.tree.structure(specs[1]):
        return specs[0]
    return jax.tree.map(common, *specs)


with needed_for("A dataset for Grain"):
    import grain


@public
class BatchMapDataset(grain.MapDataset[EncodedBatch]):
    """A `grain.MapDataset` whose element i is this host's batch of step i. Thread-safe and picklable.

    Grain costs about 10 µs per element, so elements are batches. Random access has no history, so a dropped sample
    cannot move later samples of the lane up: its row repeats the next good sample of the same batch, the validity mask
    is not set, and the drop is counted (`stats`). A batch without any good sample is None, which Grain skips. If
    batches must be exact despite broken samples, use `get_loader`.

    `len` is the number of steps of one pass, and element `i + len·e` belongs to pass e. For an endless dataset it is
    `sys.maxsize`, as in Grain. A negative index counts from the end of the first pass.

    Grain's `WindowShuffleMapDataset` requests indices beyond `len` in its last window, exactly as `repeat` does for the
    next pass, so directly above this class it delivers batches of the next pass. Put it above `repeat(1,
    reseed_each_epoch=False)`, or use `WindowShuffleIterDataset`.

    Args:
        dataset: Result of `get_train_dataset` or `get_val_dataset`, with a batch size.

    Raises:
        ConfigError: The dataset does not batch, or has replicas.
    """

    def __init__(self, dataset: SavableDataset[EncodedBatch]) -> None:
        super().__init__()
        self._dataset = dataset
        self._open()

    def _open(self) -> None:
        config = config_to_run(self._dataset, None)
        refuse_replicas(config, "BatchMapDataset", "BatchIterDataset or get_savable_loader")
        self._spec = compile_dataset(self._dataset)
        order = self._spec.order
        equal = self._spec.same_pass or isinstance(order.passes, EqualPasses | None)
        if not equal:
            raise ConfigError(
                "BatchMapDataset needs passes of equal length, but the epochs of a blend by fractional repetitions "
                "differ by a sample, and passes of planned packs differ too: use repeat=True, or get_loader"
            )
        if self._spec.batch is None:
            raise ConfigError("BatchMapDataset needs batches: set batch_size, or use EnergonDataSource for samples")
        self._share = Share(config.rank, config.world_size, self._spec.lanes)
        self._plan = PassPlan.of(self._spec, config.world_size)
        if self._plan.remaining(0, 0) == 0:
            raise EmptyDatasetError(
                f"a pass of {self._plan.length} samples has no complete batch of {self._plan.global_batch}: use a "
                f"smaller batch size, or last_batch='pad' or 'keep'"
            )
        lock = threading.RLock()
        self._stage = PureStage(self._spec, lock)
        names = ["/".join(leaf.key) for leaf in self._spec.leaves]
        self._statistics = statistics = Statistics(names)
        self._drops = DropBudget(config.global_error_handler, Outlet(statistics))
        self._drops.begin(lambda: statistics.batches, first=True)
        self._batches = BatchStage(self._spec.batch, seed=self._spec.seed, hosts=1, hook_lock=lock, drops=self._drops)

    def __getstate__(self) -> dict[str, Any]:
        return {"dataset": self._dataset}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__init__()
        self._dataset = state["dataset"]
        self._open()

    def __getitems__(self, steps: Sequence[int]) -> NoReturn:
        """Reject the batched access of a `torch.utils.data.DataLoader` that batches again; Grain never calls it."""
        raise ConfigError(
            "the elements of BatchMapDataset are whole batches, which PyTorch would batch again: use "
            "DataLoader(…, batch_size=None), or EnergonDataSource for single samples"
        )

    def __str__(self) -> str:
        return f"BatchMapDataset({self._dataset!r})"

    __repr__ = __str__

    @property
    def _element_spec(self) -> Any:
        # One by one: Grain's iterators prefetch 500 elements.
        return spec_of_batches(map(self.__getitem__, range(len(self))))

    def __len__(self) -> int:
        steps = self._plan.remaining(0, 0)
        return sys.maxsize if steps is None else steps

    def slice(self, sl: slice | Sequence[int] | np.ndarray[Any, Any]) -> grain.MapDataset[Any]:
        """Return some of the batches: a slice, or those at the listed positions, in that order."""
        return super().slice(sl) if isinstance(sl, slice) else _Selected(self, sl)

    @traced_item
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self.slice(index)
        number, steps = operator.index(index), self._plan.remaining(0, 0)
        if number < 0:
            if steps is None:
                raise IndexError(f"batch {number} of an endless dataset: negative indices need an end to count from")
            number %= steps
        pass_number, step = (0, number) if steps is None else divmod(number, steps)
        statistics: Any = self._stats
        with statistics.record_self_time():
            # An endless stream continues after its virtual epochs.
            batch = self._batch(pass_number, step if self._plan.length is not None else number)
            return statistics.record_output_spec(batch)

    def _getitems(self, indices: Any) -> list[Any]:
        return [self[index] for index in indices]

    def _batch(self, pass_number: int, step: int) -> Any:
        plan, share = self._plan, self._share
        item = step * plan.global_batch
        first = share.first_at(item)
        positions = share.to_global(np.arange(first, first + plan.batch_size))
        number = self._spec.order.start(pass_number) + int(positions[0])
        sources = self._stage.sources
        work = places_of(self._spec, sources, share, pass_number=pass_number, first=item, plan=plan)
        if work is not None:
            positions = work.items(positions)
        positions, valid = self._within(positions)
        encoded = self._read(positions, pass_number, step)
        samples, keys = encoded.outcomes, encoded.restore_keys
        if encoded.drops:
            samples = self._counted(samples)
            chosen = _next_good(samples)
            if not chosen:
                return None
            samples, keys = [samples[place] for place in chosen], [keys[place] for place in chosen]
        else:
            self._drops.succeeded()
        batch = self._batches.make(
            samples, keys, item=number, pass_number=self._spec.counted(pass_number), step=step, valid=valid
        )
        self._statistics.settle()
        if batch is NO_BATCH:
            return None
        with self._statistics.lock:
            self._statistics.samples += len(samples)
            self._statistics.batches += 1
        register_value(batch)
        return batch

    def _within(self, positions: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_] | None]:
        """Return positions in the pass for those of a batch, and the mask of real samples if batches are padded."""
        plan = self._plan
        if plan.length is None or int(positions.max()) < plan.length:
            return positions, np.ones(plan.batch_size, np.bool_) if plan.pads else None
        inside = positions < plan.length
        return positions[inside] if plan.keeps else positions % plan.length, inside if plan.pads else None

    def _read(self, positions: npt.NDArray[np.int64], pass_number: int, step: int) -> Encoded:
        draws = self._spec.order.draw(positions, pass_number)
        size_bytes = int(self._stage.sources.sizes(draws).sum())
        began = time.perf_counter_ns()
        encoded = self._stage.run(Chunk(number=step, draws=draws, size_bytes=0))
        self._statistics.planned(draws, size_bytes)
        if encoded.work is not None:
            self._statistics.spans(encoded.work)
        latency = time.perf_counter_ns() - began
        record_read(type(self).__name__, num_bytes=size_bytes, latency_ns=latency, num_reads=len(positions))
        return encoded

    def _counted(self, outcomes: Iterable[Any]) -> list[Any]:
        """Count all drops and return the outcomes, with partial packs unwrapped."""
        samples: list[Any] = []
        for outcome in outcomes:
            if type(outcome) is PartialItem:
                for hole in outcome.dropped:
                    self._drops.drop(hole)
                outcome = outcome.value
            samples.append(outcome)
        for outcome in samples:
            if type(outcome) is Dropped:
                self._drops.drop(outcome)
            else:
                self._drops.succeeded()
        self._statistics.settle()
        return samples

    def stats(self) -> LoaderStats:
        """Return counts of delivered and dropped samples, drop reasons, and times, of this process."""
        return self._statistics.report()


def _next_good(samples: Sequence[Any]) -> list[int]:
    """Return for each position the next one with a sample, wrapping around; empty if all were dropped."""
    good = [place for place, sample in enumerate(samples) if type(sample) is not Dropped]
    return [next((g for g in good if g >= place), good[0]) for place in range(len(samples))] if good else []


class _Selected(grain.MapDataset[Any]):
    """Elements of another dataset by position; its passes are those of the other dataset."""

    def __init__(self, parent: grain.MapDataset[Any], places: Sequence[int] | np.ndarray[Any, Any]) -> None:
        super().__init__(parent)
        self._places = np.asarray(places, np.int64).reshape(-1)
        length = len(parent)
        outside = self._places[(self._places < -length) | (self._places >= length)]
        if len(outside):
            raise IndexError(f"batch {outside[0]}: the dataset has {length} batches")
        self._places = np.where(self._places < 0, self._places + length, self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __str__(self) -> str:
        return f"{self._parent}[{len(self)} places]"

    @property
    def _element_spec(self) -> Any:
        return grain.experimental.get_element_spec(self._parent)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self.slice(index)
        pass_number, place = divmod(operator.index(index), len(self))
        return self._parent[int(self._places[place]) + pass_number * (len(self._parent) if pass_number else 0)]


@public
class BatchIterDataset(grain.IterDataset[EncodedBatch]):
    """A `grain.IterDataset` of this host's batches: Grain's transformations and checkpoints work on top.

    Each `iter` makes a new loader that starts at the beginning. Elements, state and exactness are those of
    `get_savable_loader`. Below `mp_prefetch` and `multithread_prefetch`, each process or thread makes only its own
    steps and reads nothing else. This is not available for datasets that filter, group, pack or generate, or with
    replicas. With replicas, each `iter`, and asking for the element spec, is collective among them.

    Args:
        dataset: Result of `get_train_dataset` or `get_val_dataset`.
        on_change: If a state that is set belongs to another mixture, as in `get_savable_loader`; not below
            `mp_prefetch` and `multithread_prefetch`.
    """

    def __init__(self, dataset: SavableDataset[EncodedBatch], *, on_change: OnChange = "refuse") -> None:
        super().__init__()
        config_to_run(dataset, None)  # raises if it is not a dataset
        self._dataset = dataset
        self._on_change: OnChange = on_change
        self._steps = slice(0, None, 1)

    def __iter__(self) -> PipelineLoader[EncodedBatch]:
        processes = jax_processes()
        config = with_agreement(config_to_run(self._dataset, None), processes)
        first, readers = self._steps.start, self._steps.step
        if readers == 1:
            stream = ReplicaStream.joined(self._dataset, processes, None, worker_config=config)
        else:
            spec = self._dataset.compiled(hosts=config.world_size)
            stream = Stream.of_steps(spec, config, first=first, readers=readers)
        stream.on_change = self._on_change
        return PipelineLoader(stream, str(self))

    def __str__(self) -> str:
        return f"BatchIterDataset({self._dataset!r})"

    __repr__ = __str__

    @property
    def _element_spec(self) -> Any:
        with iter(self) as batches:
            return spec_of_batches(batches)

    def set_slice(self, sl: slice, sequential_slice: bool = False) -> None:
        """Select every n-th step, as `mp_prefetch` and `multithread_prefetch` request from each reader.

        Raises:
            ConfigError: The content of a step depends on the data of earlier steps, or the steps would not alternate
                between readers.
        """
        first, readers = sl.start or 0, sl.step or 1
        if sl.stop is not None or sequential_slice:
            raise ConfigError("BatchIterDataset: parallel readers alternate between steps: use sequential_slice=False")
        if readers > 1:
            refuse_replicas(
                config_to_run(self._dataset, None),
                "a BatchIterDataset below mp_prefetch or multithread_prefetch",
                "it without them, and WorkerConfig(num_workers=…)",
            )
        if readers > 1 and self._dataset.compiled().program is not None:
            raise ConfigError(
                "mp_prefetch above a BatchIterDataset that filters, groups, packs or generates: a step depends on the "
                "data of earlier steps, so each process would read everything. Use WorkerConfig(worker_type='process') "
                "in the dataset instead"
            )
        self._steps = slice(self._steps.start + first * self._steps.step, None, self._steps.step * readers)
