"""Levanter's own trainer and checkpoints, with a tiny GPT-2, on the samples of `levanter_dataset.py`.

python train_levanter.py DATASET --checkpoints DIR --notes NOTES [--die-at STEP]
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import haliax
import jax
import levanter
import numpy as np
from levanter.checkpoint import CheckpointerConfig
from levanter.distributed import DistributedConfig
from levanter.models.gpt2 import Gpt2Config
from levanter.models.lm_model import LmExample
from levanter.optim import AdamConfig
from levanter.tracker import NoopConfig
from levanter.trainer import Trainer, TrainerConfig
from levanter_dataset import EnergonAsyncDataset
from notes import Notes, parse_options

LENGTH = 32


def main() -> None:
    options = parse_options()
    notes = Notes(options)
    model = Gpt2Config(max_seq_len=LENGTH, hidden_dim=32, num_layers=1, num_heads=2, gradient_checkpointing=False)
    vocabulary = haliax.Axis("vocab", 256)

    def encode(sample: Any) -> LmExample:
        """A text's bytes, behind the number of its sample."""
        tokens = np.zeros(LENGTH, np.int32)
        text = np.frombuffer(sample.text.encode()[: LENGTH - 1], np.uint8)
        tokens[0] = int(sample.__key__)
        tokens[1 : 1 + len(text)] = text
        return LmExample.causal(haliax.named(tokens, model.max_Pos), ignore_id=0)

    config = TrainerConfig(
        id="run",
        tracker=NoopConfig(),
        log_dir=options.checkpoints / "logs",
        train_batch_size=options.global_batch,
        num_train_steps=options.steps,
        checkpointer=CheckpointerConfig(base_path=str(options.checkpoints), save_interval=None, keep=[{"every": 3}]),
        distributed=DistributedConfig(initialize_jax_distributed=False),
        require_accelerator=False,
        log_jaxprs=False,
        log_xla_hlo=False,
    )
    levanter.initialize(config)

    def loss(model: Any, example: LmExample, *, key: Any = None) -> Any:
        return model.compute_next_token_loss(example, key=key)

    with Trainer(config, AdamConfig(learning_rate=1e-3).build(options.steps), loss) as trainer:
        for_state, for_model, for_order = jax.random.split(jax.random.PRNGKey(0), 3)
        state = trainer.initial_state(for_state, model_init=lambda: model.build(vocabulary, key=for_model))
        first = int(state.step)
        dataset = EnergonAsyncDataset(str(options.data), encode).shuffle(for_order)

        def noted() -> Iterator[Any]:
            for step, batch in enumerate(trainer.data_loader(dataset).iter_from_step(first), first):
                notes.add(step, {"number": np.asarray(batch.tokens.array)[:, 0]})
                yield batch

        trainer.train(state, noted())


if __name__ == "__main__":
    main()
