"""MaxText's own training loop and checkpoints, with a tiny model, on the batches of `maxtext_input.py`.

python train_maxtext.py DATASET --checkpoints DIR --notes NOTES [--die-at STEP]
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import jax
import maxtext
import maxtext_input
import numpy as np
from maxtext.input_pipeline import input_pipeline_interface
from maxtext.trainers.pre_train import train
from notes import Notes, parse_options

TINY = {
    "base_emb_dim": 16,
    "base_mlp_dim": 32,
    "base_num_decoder_layers": 1,
    "base_num_kv_heads": 2,
    "base_num_query_heads": 2,
    "head_dim": 8,
    "max_target_length": 32,
    "vocab_size": 256,
}


class NotedIterator(maxtext_input.DataIterator):
    """Notes sums of the rows that it gives: batches have no numbers of samples. Steps count from the start."""

    notes: Notes
    step = 0

    def __next__(self) -> Any:
        batch = super().__next__()
        rows = np.asarray(jax.device_get(batch["inputs"]))
        self.notes.add(self.step, {"number": np.array([zlib.crc32(row.tobytes()) for row in rows])})
        self.step += 1
        return batch


def main() -> None:
    options = parse_options()
    NotedIterator.notes = Notes(options)
    maxtext_input.DataIterator = NotedIterator

    def create_data_iterator(config: Any, mesh: Any) -> Any:
        return maxtext_input.create_data_iterator(
            config, mesh, path=str(options.data), tokenize=lambda text: list(text.encode())
        )

    input_pipeline_interface.create_data_iterator = create_data_iterator
    said = {
        **TINY,
        "base_output_directory": options.checkpoints,
        "checkpoint_period": 3,
        "dataset_type": "grain",  # or the iterator has no place in checkpoints
        "grain_train_files": "unused",
        "hardware": "cpu",
        "per_device_batch_size": options.global_batch // jax.device_count(),
        "run_name": "run",
        "skip_jax_distributed_system": True,
        "steps": options.steps,
    }
    base = Path(maxtext.__file__).parent / "configs" / "base.yml"
    train.main(["train", str(base), *(f"{name}={value}" for name, value in said.items())])


if __name__ == "__main__":
    main()
