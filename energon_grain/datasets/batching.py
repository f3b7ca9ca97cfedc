"""From samples to batches: consecutive ones, ones of a group, and mixtures of batches."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from energon_grain.datasets.dataset import SavableDataset, check_function, check_size, describe
from energon_grain.datasets.mixtures import BlendDataset, Weighted
from energon_grain.datasets.worker_config import WorkerConfig
from energon_grain.errors import ConfigError

if TYPE_CHECKING:
    from energon_grain.datasets.task_encoder import TaskEncoder

LastBatch = Literal["keep", "drop", "pad"]


def check_last_batch(last_batch: LastBatch, hosts: int) -> None:
    """Check that a last batch can be treated in this way on this number of hosts.

    Raises:
        ConfigError: It cannot.
    """
    if last_batch == "keep" and hosts > 1:
        raise ConfigError(
            f"last_batch='keep' with {hosts} hosts: the last batches would have different sizes, and a host could be "
            f"left without one; use 'drop' or 'pad'"
        )


def choose_last_batch(last_batch: LastBatch | None, drop_last: bool, hosts: int) -> LastBatch:
    """What becomes of an incomplete last batch: as asked, else "keep" on one host and "pad" on several.

    Raises:
        ConfigError: There is no such way, or not on this number of hosts, or the two arguments contradict each other.
    """
    if last_batch is None:
        return "drop" if drop_last else "keep" if hosts == 1 else "pad"
    if last_batch not in ("keep", "drop", "pad"):
        raise ConfigError(f"last_batch={last_batch!r}: 'keep', 'drop' or 'pad' is meant")
    if drop_last and last_batch != "drop":
        raise ConfigError(f"batch_drop_last=True and last_batch={last_batch!r} contradict each other; give one")
    check_last_batch(last_batch, hosts)
    return last_batch


@dataclass(frozen=True, slots=True, init=False)
class BatchDataset(SavableDataset):
    """Consecutive samples, batch by batch.

    The outermost one makes the batches of a step, of samples from all lanes of a host. One below it makes batches
    inside each lane, which are the items of what lies above.

    Args:
        dataset: Whose samples are batched.
        batch_size: Samples of one host's batch.
        batcher: Makes the batch of a list of samples; as a generator function, any number of batches.
        drop_last: As `last_batch="drop"`.
        last_batch: At the end of a finite pass: "drop" an incomplete global batch, "pad" it to its full size (with a
            validity mask in `__valid__`), or, on one host only, "keep" it short. Where samples were dropped, lanes end
            early; "pad" and "drop" fill their places with samples from the beginning of the pass, so that hosts have
            equal numbers of steps ("drop" without a mask). Default: "keep" on one host, "pad" on several.
        hook: As in `MapDataset`, and so are `task_encoder` and `failure_tolerance`.
        batcher_stateless: Accepted for compatibility, and so is `batcher_config`.
        batcher_config: See there.
        worker_config: Default: that of the dataset.

    Raises:
        ConfigError: An argument is not what is meant here, or two contradict each other.
    """

    dataset: SavableDataset
    batch_size: int
    batcher: Callable[[list[Any]], Any]
    last_batch: LastBatch
    hook: str
    task_encoder: TaskEncoder | None
    failure_tolerance: int | None

    def __init__(
        self,
        dataset: SavableDataset,
        batch_size: int,
        batcher: Callable[[list[Any]], Any],
        *,
        drop_last: bool = False,
        last_batch: LastBatch | None = None,
        hook: str = "batch",
        task_encoder: TaskEncoder | None = None,
        failure_tolerance: int | None = None,
        batcher_stateless: bool = False,
        batcher_config: Any = None,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        del batcher_stateless, batcher_config
        check_size(self, "batch_size", batch_size, "samples")
        check_function(self, "batcher", batcher)
        describe(
            self,
            dataset,
            worker_config,
            dataset=dataset,
            batch_size=batch_size,
            batcher=batcher,
            hook=hook,
            task_encoder=task_encoder,
            failure_tolerance=failure_tolerance,
        )
        object.__setattr__(self, "last_batch", choose_last_batch(last_batch, drop_last, self.worker_config.world_size))


@dataclass(frozen=True, slots=True, init=False)
class GroupBatchDataset(SavableDataset):
    """Batches of samples that belong together: each lane collects samples by a key, and a full group is a batch.

    Args:
        dataset: Whose samples are batched.
        fixed_batch_size: Samples of a batch; None: `sample_group_key` says so for each key.
        sample_group_key: `sample -> (key, size)`: exactly one of `size` and `fixed_batch_size` is None, and a key has
            the same size always. May raise `SkipSample`.
        batcher: Makes the batch of a list of samples; not a generator.
        drop_last: Drop the groups that are incomplete at the end of a finite pass; else they are batches as they are.
        hook: Name of the batcher, as in `MapDataset`, and so are `task_encoder` and `failure_tolerance`.
        group_hook: Name of the key function.
        batcher_stateless: Accepted for compatibility, and so is `batcher_config`.
        batcher_config: See there.
        worker_config: Default: that of the dataset.

    Raises:
        ConfigError: An argument is not what is meant here.
    """

    dataset: SavableDataset
    fixed_batch_size: int | None
    sample_group_key: Callable[[Any], tuple[Hashable, int | None]]
    batcher: Callable[[list[Any]], Any]
    drop_last: bool
    hook: str
    group_hook: str
    task_encoder: TaskEncoder | None
    failure_tolerance: int | None

    def __init__(
        self,
        dataset: SavableDataset,
        fixed_batch_size: int | None,
        sample_group_key: Callable[[Any], tuple[Hashable, int | None]],
        batcher: Callable[[list[Any]], Any],
        *,
        drop_last: bool = False,
        hook: str = "batch",
        group_hook: str = "batch_group_criterion",
        task_encoder: TaskEncoder | None = None,
        failure_tolerance: int | None = None,
        batcher_stateless: bool = False,
        batcher_config: Any = None,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        del batcher_stateless, batcher_config
        if fixed_batch_size is not None:
            check_size(self, "fixed_batch_size", fixed_batch_size, "samples")
        check_function(self, "sample_group_key", sample_group_key, generator=False)
        check_function(self, "batcher", batcher, generator=False)
        describe(
            self,
            dataset,
            worker_config,
            dataset=dataset,
            fixed_batch_size=fixed_batch_size,
            sample_group_key=sample_group_key,
            batcher=batcher,
            drop_last=drop_last,
            hook=hook,
            group_hook=group_hook,
            task_encoder=task_encoder,
            failure_tolerance=failure_tolerance,
        )


def list_of_batches(batches: list[Any]) -> list[Any]:
    """The batches as they are."""
    return batches


@dataclass(frozen=True, slots=True, init=False)
class MixBatchDataset(BatchDataset):
    """Batches mixed of the items of several datasets: a `BatchDataset` over a `BlendDataset`.

    Args:
        *dataset_weights: (dataset, weight) for each, or one iterable of them; usually datasets that batch by
            themselves, with batches of one.
        batch_size: Items (batches of the datasets) that are mixed into one batch.
        batch_mix_fn: Makes one batch of a list of batches: `homogeneous_concat_mix`, `generic_concat`, one of yours.
            Default: the list of batches.
        per_step: As in `BlendDataset`.
        worker_config: Default: that of the first dataset.

    Raises:
        ConfigError: An argument is not what is meant here.
    """

    def __init__(
        self,
        *dataset_weights: Weighted | Iterable[Weighted],
        batch_size: int,
        batch_mix_fn: Callable[[list[Any]], Any] = list_of_batches,
        per_step: bool | int = False,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        blend = BlendDataset(*dataset_weights, per_step=per_step, worker_config=worker_config)
        BatchDataset.__init__(self, blend, batch_size, batch_mix_fn)
