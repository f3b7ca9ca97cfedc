"""MaxText: a `create_data_iterator` that uses our loader and stores its state in MaxText's checkpoints.

In your program, before MaxText's `train`:

    from maxtext.input_pipeline import input_pipeline_interface
    input_pipeline_interface.create_data_iterator = functools.partial(create_data_iterator, path="/data/texts")

MaxText's checkpoints (`GrainCheckpointable_v1`) store one file for all hosts if the iterator is an `ElasticIterator`.
They restore any other iterator only on the same number of hosts. The state of our loader is valid for any number of
hosts, so `LoaderState` subclasses `ElasticIterator`. MaxText saves it only with `dataset_type: grain`.
"""

from __future__ import annotations

from typing import Any

import grain
import jax
import numpy as np

from energon_grain import DefaultTaskEncoder, WorkerConfig, get_savable_loader, get_train_dataset, get_val_dataset
from energon_grain.loader import to_device


class Tokens(DefaultTaskEncoder):
    """Makes MaxText's batches from samples with a text: inputs, targets, and their positions and segments.

    Args:
        length: `config.max_target_length`.
        tokenize: Returns the tokens of a text. Each token is at least 1; 0 is padding.
    """

    thread_safe = True

    def __init__(self, length: int, tokenize: Any) -> None:
        super().__init__()
        self.length = length
        self.tokenize = tokenize

    def encode_sample(self, sample: Any) -> dict[str, Any]:
        tokens = np.asarray(self.tokenize(sample.text), np.int32)[: self.length + 1]
        padded = np.zeros(self.length + 1, np.int32)
        padded[: len(tokens)] = tokens
        made: dict[str, Any] = {"inputs": padded[:-1], "targets": padded[1:]}
        for name in ("inputs", "targets"):
            segments = (made[name] > 0).astype(np.int32)
            made |= {f"{name}_segmentation": segments, f"{name}_position": np.arange(self.length, dtype=np.int32)}
        return made


class LoaderState(grain.experimental.ElasticIterator):
    """The state of a loader for all hosts, in the form of Grain's elastic iterator, which MaxText expects.

    MaxText requests the state in every process at the same step, so hosts whose lanes hold samples exchange them.
    """

    def __init__(self, loader: Any) -> None:
        self._loader = loader  # without the base class's __init__, which builds a Grain iterator

    def get_state(self) -> dict[str, Any]:
        states = self._loader.save_state_global(jax.process_index())
        assert states is not None
        return states

    def set_state(self, state: dict[str, Any]) -> None:
        self._loader.restore_state_global(state)


class DataIterator:
    """The iterator of MaxText's batches, which are global arrays sharded over the mesh."""

    def __init__(self, loader: Any, mesh: jax.sharding.Mesh) -> None:
        sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(mesh.axis_names))
        self._loader = loader
        self._begin = loader.save_state_rank()
        self._batches = to_device(loader, sharding)
        self.local_iterator = LoaderState(loader)

    def __iter__(self) -> DataIterator:
        iter(self._batches)
        return self

    def __next__(self) -> Any:
        return next(self._batches)

    def reset(self) -> None:
        """Start again. MaxText calls this before each evaluation, as an evaluation may stop in the middle of a pass."""
        self._loader.restore_state_rank(self._begin)


def create_data_iterator(
    config: Any, mesh: jax.sharding.Mesh, *, path: str, tokenize: Any, eval_part: str = "val"
) -> tuple[DataIterator, DataIterator | None]:
    """Return the iterators for training and evaluation, as MaxText's function of this name does."""
    worker_config = WorkerConfig(rank=jax.process_index(), world_size=jax.process_count(), num_workers=2)
    encoder = Tokens(config.max_target_length, tokenize)
    train = get_train_dataset(
        path,
        worker_config=worker_config,
        batch_size=config.global_batch_size_to_load // jax.process_count(),
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        task_encoder=encoder,
        seed=config.data_shuffle_seed,
    )
    if config.eval_interval <= 0:
        return DataIterator(get_savable_loader(train), mesh), None
    evaluation = get_val_dataset(
        path,
        split_part=eval_part,
        worker_config=worker_config,
        batch_size=config.global_batch_size_to_load_eval // jax.process_count(),
        last_batch="drop",
        task_encoder=encoder,
    )
    return DataIterator(get_savable_loader(train), mesh), DataIterator(get_savable_loader(evaluation), mesh)
