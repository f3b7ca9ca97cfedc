"""axlearn's own trainer and checkpoints, on the batches of `axlearn_input.py`.

python train_axlearn.py DATASET --checkpoints DIR --notes NOTES [--die-at STEP]
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from axlearn.common import input_grain, layers, learner, optimizers, param_init, summary_writer
from axlearn.common.base_model import BaseModel
from axlearn.common.checkpointer import Checkpointer, every_n_steps_policy
from axlearn.common.config import config_class, config_for_function
from axlearn.common.trainer import SpmdTrainer
from axlearn_input import energon_source
from jax import numpy as jnp
from notes import Notes, parse_options

from energon_grain import DefaultTaskEncoder


class Numbers(DefaultTaskEncoder):
    """Samples as dictionaries, of which batches are dictionaries of arrays: what axlearn is made for."""

    thread_safe = True

    def encode_sample(self, sample: Any) -> dict[str, Any]:
        return {"number": np.int32(sample.__key__), "length": np.float32([len(sample.text)])}


class Model(BaseModel):
    """A line through the lengths of texts."""

    @config_class
    class Config(BaseModel.Config):
        """Of its one layer."""

        linear: layers.Linear.Config = layers.Linear.default_config().set(input_dim=1, output_dim=1, bias=True)

    def __init__(self, cfg: Any, *, parent: Any) -> None:
        super().__init__(cfg, parent=parent)
        self._add_child("linear", self.config.linear)

    def forward(self, input_batch: Any) -> Any:
        return jnp.mean((self.linear(input_batch["length"] / 50) - 1) ** 2), {}


class NotingTrainer(SpmdTrainer):
    """Notes what it trains on."""

    notes: Notes

    def _run_step(self, input_batch: Any, **options: Any) -> Any:
        self.notes.add(int(self.step), jax.device_get(input_batch))
        return super()._run_step(input_batch, **options)


def main() -> None:
    options = parse_options()
    jax.config.update("jax_default_prng_impl", "rbg")  # whose keys have the shape that axlearn restores
    source = config_for_function(energon_source).set(
        path=str(options.data), global_batch_size=options.global_batch, task_encoder=Numbers
    )
    sgd = config_for_function(optimizers.sgd_optimizer).set(learning_rate=0.1, decouple_weight_decay=True)
    policy = config_for_function(every_n_steps_policy).set(n=3)
    initializer = param_init.DefaultInitializer.default_config()
    config = NotingTrainer.default_config().set(
        name="trainer",
        dir=str(options.checkpoints),
        mesh_axis_names=("data",),
        mesh_shape=(jax.device_count(),),
        model=Model.default_config().set(dtype=jnp.float32, param_init=initializer),
        input=input_grain.Input.default_config().set(source=source),
        learner=learner.Learner.default_config().set(optimizer=sgd),
        max_step=options.steps,
        save_input_iterator=True,  # or it begins again
        checkpointer=Checkpointer.default_config().set(save_policy=policy),
        summary_writer=summary_writer.NoOpWriter.default_config(),
    )
    NotingTrainer.notes = Notes(options)
    config.instantiate(parent=None).run(jax.random.PRNGKey(0))


if __name__ == "__main__":
    main()
