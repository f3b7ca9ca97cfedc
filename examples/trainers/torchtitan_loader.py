"""torchtitan: a `BaseDataLoader`, and a source for its own Grain loader, each with its `Config`.

In a training recipe, in place of `GrainDataLoader.Config(...)`:

    dataloader=EnergonDataLoader.Config(path="/data/texts", task_encoder="my_project.data:Encoder")

torchtitan expects batches `({"input": tokens, "positions": …}, labels)`: flat tensors of the requested number of
tokens (in release 0.3, one row per sequence). Every entry except "input" is passed to the model as an argument, so
the dictionary has no other entries. The encoder `Tokens` makes such batches from texts.

torchtitan saves the loader with the model in its distributed checkpoints, and restores it on any data-parallel degree.
To use torchtitan's processors, packing and mixing on our data instead, pass `EnergonSource.Config(path=…)` as the
`source` of a `SingleDatasetConfig`. Order and state are then Grain's, and the data-parallel degree is fixed.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torchtitan.config import Configurable

try:
    from torchtitan.components.data.loader import BaseDataLoader
except ModuleNotFoundError:
    from torchtitan.components.dataloader import BaseDataLoader

    FLAT = False
else:
    FLAT = True  # torchtitan's main branch: `max_context_length` and `num_tokens_per_batch`, and no rows

from energon_grain.loader import EnergonDataSource
from energon_grain_torch import DefaultTaskEncoder, WorkerConfig, get_savable_loader, get_train_dataset

IGNORED = -100
"""torchtitan's label of padding."""


class Tokens(DefaultTaskEncoder):
    """Makes torchtitan's batches from samples with a text, one sequence per text.

    Args:
        tokenizer: Tokenizer of torchtitan.
        length: Number of tokens in a sequence. Longer texts are truncated.
    """

    thread_safe = True

    def __init__(self, tokenizer: Any, length: int) -> None:
        super().__init__()
        self.tokenizer = tokenizer
        self.length = length

    def encode_sample(self, sample: Any) -> dict[str, torch.Tensor]:
        tokens = torch.tensor(self.tokenizer.encode(sample.text, add_bos=True, add_eos=True)[: self.length + 1])
        padding = self.length + 1 - len(tokens)
        return {
            "input": torch.nn.functional.pad(tokens, (0, padding))[:-1],
            "labels": torch.nn.functional.pad(tokens, (0, padding), value=IGNORED)[1:],
        }

    def encode_batch(self, batch: dict[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        positions = torch.arange(self.length).repeat(len(batch["input"]), 1)
        tensors = [batch["input"], positions, batch["labels"]]
        tokens, positions, labels = [tensor.flatten() for tensor in tensors] if FLAT else tensors
        return {"input": tokens, "positions": positions}, labels


class EnergonDataLoader(BaseDataLoader):
    """Delivers the batches of this rank, as returned by the task encoder's `encode_batch`.

    Args:
        config: See `Config`.
        dp_world_size: Number of ranks that read different data.
        dp_rank: Index of this rank among them.
        tokenizer: Passed to the task encoder, together with the length of a sequence.
        **sizes: Sizes of this rank's batch: `max_context_length` and `num_tokens_per_batch`, or `seq_len` and
            `local_batch_size` in release 0.3.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        """The settings in a training recipe.

        Attributes:
            path: Prepared dataset or metadataset.
            task_encoder: `module:Class`, called with the tokenizer and the length of a sequence. Default: `Tokens`.
            packing_buffer_size: Number of samples from which packs of one sequence are chosen. None: no packing.
            num_workers: Number of workers of each rank.
            seed: Seed of the order.
        """

        path: str
        task_encoder: str = f"{__name__}:Tokens"
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
        **sizes: Any,
    ) -> None:
        length = sizes["max_context_length"] if FLAT else sizes["seq_len"]
        sequences = sizes["num_tokens_per_batch"] // length if FLAT else sizes["local_batch_size"]
        module, _, name = config.task_encoder.partition(":")
        encoder = getattr(importlib.import_module(module), name)(tokenizer, length)
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
                batch_size=sequences,
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
        """Return the state of all ranks. Every rank must call this method, as torchtitan's checkpoints do."""
        return self._loader.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if state_dict:  # torchtitan passes an empty state if the checkpoint has none
            self._loader.load_state_dict(state_dict)

    def close(self) -> None:
        self._loader.close()


class EnergonSource(Configurable):
    """Returns samples by index, as dictionaries, for torchtitan's `SingleDatasetConfig(source=…)`."""

    @dataclass(kw_only=True, slots=True)
    class Config(Configurable.Config):
        """The samples to read.

        Attributes:
            path: Prepared dataset.
            split_part: Split part of the dataset.
        """

        path: str
        split_part: str = "train"

    def __init__(self, config: Config, *, dataset_iteration_policy: Any) -> None:
        del dataset_iteration_policy  # torchtitan shuffles and distributes the samples
        self._samples = EnergonDataSource(config.path, split_part=config.split_part, as_dict=True)

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self._samples[index]


def _group(dp_rank: int, dp_world_size: int) -> Any:
    """Return the group of ranks that read different data, or None if all ranks do. All ranks must call this."""
    if not dist.is_initialized() or dist.get_world_size() == dp_world_size:
        return None
    everywhere: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everywhere, dp_rank)
    replicas: list[list[int]] = [[] for _ in range(dp_world_size)]
    for rank, place in enumerate(everywhere):
        replicas[place].append(rank)
    groups = {
        ranks: dist.new_group(list(ranks)) for ranks in zip(*replicas, strict=True)
    }  # group n: the n-th replica of each
    return next(group for ranks, group in groups.items() if dist.get_rank() in ranks)
