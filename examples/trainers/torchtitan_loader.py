"""torchtitan: a `BaseDataLoader`, and a source for its own Grain loader, each with its `Config`.

In a training recipe, in place of `GrainDataLoader.Config(...)`:

    dataloader=EnergonDataLoader.Config(path="/data/texts", task_encoder="my_project.data:Encoder")

torchtitan saves it with the model, by distributed checkpoints, and restores it on any data-parallel degree. Where
torchtitan's processors, packing and mixing are wanted above our data instead, `EnergonSource.Config(path=…)` is the
`source` of a `SingleDatasetConfig`; order and state are Grain's then, and of one data-parallel degree.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torchtitan.components.data.loader import BaseDataLoader
from torchtitan.config import Configurable

from energon_grain.loader import EnergonDataSource
from energon_grain_torch import WorkerConfig, get_savable_loader, get_train_dataset


class EnergonDataLoader(BaseDataLoader):
    """Batches of this rank, as the task encoder's `encode_batch` makes them: `({"input": …, …}, labels)`.

    Args:
        config: See `Config`.
        dp_world_size: Ranks that read different data.
        dp_rank: This one among them.
        tokenizer: Handed to the task encoder, and so are the next two.
        max_context_length: Tokens of a sequence at most.
        num_tokens_per_batch: Tokens of this rank's batch.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        """What a recipe says.

        Attributes:
            path: Prepared dataset or metadataset.
            task_encoder: `module:Class`, made with (tokenizer, max_context_length).
            packing_buffer_size: Samples that packs of `max_context_length` tokens are chosen from; None: no packing.
            num_workers: Of each rank.
            seed: Of the order.
        """

        path: str
        task_encoder: str
        packing_buffer_size: int | None = None
        num_workers: int = 2
        seed: int = 42

    def __init__(
        self,
        config: Config,
        *,
        dp_world_size: int,
        dp_rank: int,
        tokenizer: Any,
        max_context_length: int,
        num_tokens_per_batch: int,
        **_: Any,
    ) -> None:
        module, _, name = config.task_encoder.partition(":")
        encoder = getattr(importlib.import_module(module), name)(tokenizer, max_context_length)
        self._loader = get_savable_loader(
            get_train_dataset(
                config.path,
                worker_config=WorkerConfig(
                    rank=dp_rank,
                    world_size=dp_world_size,
                    num_workers=config.num_workers,
                    worker_type="thread",
                    data_parallel_group=_group(dp_rank, dp_world_size),
                ),
                batch_size=num_tokens_per_batch // max_context_length,
                packing_buffer_size=config.packing_buffer_size,
                shuffle_buffer_size=1000,
                max_samples_per_sequence=None,
                task_encoder=encoder,
                seed=config.seed,
            )
        )

    def __iter__(self) -> Iterator[Any]:
        return iter(self._loader)

    def state_dict(self) -> dict[str, Any]:
        """The state of all ranks; every rank calls it, as torchtitan's checkpoints do."""
        return self._loader.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if state_dict:  # torchtitan loads an empty one where a checkpoint has none
            self._loader.load_state_dict(state_dict)

    def close(self) -> None:
        self._loader.close()


class EnergonSource(Configurable):
    """Samples by index, as dictionaries, for torchtitan's `SingleDatasetConfig(source=…)`."""

    @dataclass(kw_only=True, slots=True)
    class Config(Configurable.Config):
        """Which ones.

        Attributes:
            path: Prepared dataset.
            split_part: Part of its split.
        """

        path: str
        split_part: str = "train"

    def __init__(self, config: Config, *, dataset_iteration_policy: Any) -> None:
        del dataset_iteration_policy  # who shuffles and deals out is torchtitan
        self._samples = EnergonDataSource(config.path, split_part=config.split_part, as_dict=True)

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self._samples[index]


def _group(dp_rank: int, dp_world_size: int) -> Any:
    """The ranks that read different data, where there are others too; every rank calls this at once."""
    if not dist.is_initialized() or dist.get_world_size() == dp_world_size:
        return None
    everywhere: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everywhere, dp_rank)
    replicas: list[list[int]] = [[] for _ in range(dp_world_size)]
    for rank, place in enumerate(everywhere):
        replicas[place].append(rank)
    groups = {ranks: dist.new_group(list(ranks)) for ranks in zip(*replicas, strict=True)}  # the n-th replica of each
    return next(group for ranks, group in groups.items() if dist.get_rank() in ranks)
