"""Packing: several samples into one, from a buffer of candidates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from energon_grain.datasets.dataset import SavableDataset, check_function, check_size, describe
from energon_grain.datasets.worker_config import WorkerConfig

if TYPE_CHECKING:
    from energon_grain.datasets.task_encoder import TaskEncoder


@dataclass(frozen=True, slots=True, init=False)
class PackingDataset(SavableDataset):
    """Each lane fills a buffer with samples, chooses which of them belong together, and makes one item of each group.

    Groups come in the order of `pre_packer`, but each of several lanes begins at another one. Finite passes of few
    buffers have few lanes, unless `lanes=` is given.

    Args:
        dataset: Whose samples are packed.
        buffer_size: Candidates per lane that the choice is made from.
        pre_packer: From a full buffer of samples to a list of groups. Samples that it leaves out are dropped, empty
            groups too. Its hook is `select_samples_to_pack`.
        final_packer: From a group to one sample (or, as a generator function, any number). Its hook is
            `pack_selected_samples`.
        sample_encoder: A function of each chosen sample, before the group is packed; not a generator. Its hook is
            `postencode_sample`.
        task_encoder: Owner of the functions, whose `thread_safe` and failure tolerance count.
        pre_packer_failure_tolerance: Failures in a row after which the iteration ends; 0: never. Default: as
            `@stateless` or the owner says. The same for the other two functions:
        final_packer_failure_tolerance: See above.
        sample_encoder_failure_tolerance: See above.
        final_packer_stateless: Accepted for compatibility: every function is expected to be pure. So are:
        sample_encoder_stateless: See above.
        packer_config: See above.
        worker_config: Default: that of the dataset.

    Raises:
        ConfigError: A function cannot be called or is a generator where one value is needed, or `buffer_size` is not
            a positive number.
    """

    dataset: SavableDataset
    buffer_size: int
    pre_packer: Callable[[list[Any]], Sequence[Sequence[Any]]]
    final_packer: Callable[[list[Any]], Any]
    sample_encoder: Callable[[Any], Any] | None
    task_encoder: TaskEncoder | None
    pre_packer_failure_tolerance: int | None
    final_packer_failure_tolerance: int | None
    sample_encoder_failure_tolerance: int | None

    def __init__(
        self,
        dataset: SavableDataset,
        buffer_size: int,
        pre_packer: Callable[[list[Any]], Sequence[Sequence[Any]]],
        final_packer: Callable[[list[Any]], Any],
        *,
        sample_encoder: Callable[[Any], Any] | None = None,
        task_encoder: TaskEncoder | None = None,
        pre_packer_failure_tolerance: int | None = None,
        final_packer_failure_tolerance: int | None = None,
        sample_encoder_failure_tolerance: int | None = None,
        final_packer_stateless: bool = False,
        sample_encoder_stateless: bool = False,
        packer_config: Any = None,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        del final_packer_stateless, sample_encoder_stateless, packer_config
        check_size(self, "buffer_size", buffer_size, "samples")
        check_function(self, "pre_packer", pre_packer, generator=False)
        check_function(self, "final_packer", final_packer)
        if sample_encoder is not None:
            check_function(self, "sample_encoder", sample_encoder, generator=False)
        describe(
            self,
            dataset,
            worker_config,
            dataset=dataset,
            buffer_size=buffer_size,
            pre_packer=pre_packer,
            final_packer=final_packer,
            sample_encoder=sample_encoder,
            task_encoder=task_encoder,
            pre_packer_failure_tolerance=pre_packer_failure_tolerance,
            final_packer_failure_tolerance=final_packer_failure_tolerance,
            sample_encoder_failure_tolerance=sample_encoder_failure_tolerance,
        )
