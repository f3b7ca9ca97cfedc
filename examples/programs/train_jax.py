"""Train an image classifier with JAX. Run it again, on any hosts, to resume."""

import os
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from orbax.checkpoint import v1 as ocp

import energon_grain as eg
from energon_grain.loader import to_device

GLOBAL_BATCH, STEPS, SAVE_EVERY, LOG_EVERY = 48, 100, 20, 5


class Images(eg.DefaultTaskEncoder):
    decoder = eg.SampleDecoder(image_decode="rgb")  # float32 (height, width, 3)

    def encode_sample(self, sample):
        if self.rng.random() < 0.5:  # the same flips on any host and after a resume
            sample.image = sample.image[:, ::-1]
        sample.label = np.asarray(sample.label, np.int32)
        return sample


def loss_of(w, batch):
    hidden = jax.nn.relu(batch.image.reshape(len(batch.image), -1) @ w["in"])
    scores = jax.nn.log_softmax(hidden @ w["out"])
    return -jnp.take_along_axis(scores, batch.label[:, None], axis=1).mean()


@jax.jit
def train_step(state, batch):  # SGD with momentum
    loss, grads = jax.value_and_grad(loss_of)(state["w"], batch)
    m = jax.tree.map(lambda m, g: 0.9 * m + g, state["m"], grads)
    w = jax.tree.map(lambda w, m: w - 0.02 * m, state["w"], m)
    return {"step": state["step"] + 1, "w": w, "m": m}, loss


if "HOSTS" in os.environ:  # SLURM, Kubernetes and TPUs need no arguments
    hosts, host = int(os.environ["HOSTS"]), int(os.environ["HOST"])
    jax.distributed.initialize(os.environ["COORDINATOR"], hosts, host)
mesh = jax.sharding.Mesh(jax.devices(), ("data",))
rng, shapes = np.random.default_rng(0), {"in": (768, 64), "out": (64, 10)}
w = {name: rng.standard_normal(shapes[name], "f") / 20 for name in shapes}
state = {"step": 0, "w": w, "m": jax.tree.map(np.zeros_like, w)}
state = jax.device_put(state, NamedSharding(mesh, PartitionSpec()))

train = eg.get_train_dataset(
    sys.argv[1],
    worker_config=eg.WorkerConfig.default_worker_config(num_workers=2),
    batch_size=GLOBAL_BATCH // jax.process_count(),
    shuffle_buffer_size=100,
    max_samples_per_sequence=100,
    task_encoder=Images(),
)
ckpt = ocp.training.Checkpointer(os.path.abspath(sys.argv[2]))
with ckpt, eg.get_savable_loader(train) as loader, loader.watch() as watch:
    if ckpt.latest is not None:
        saved = ckpt.load_checkpointables(None, {"state": state, "loader": loader})
        state = saved["state"]
    batches = to_device(loader, NamedSharding(mesh, PartitionSpec("data")))
    for step, batch in zip(range(int(state["step"]) + 1, STEPS + 1), batches):
        state, loss = train_step(state, batch)
        if step % SAVE_EVERY == 0:
            ckpt.save_checkpointables(step, {"state": state, "loader": loader})
        if step % LOG_EVERY == 0 and jax.process_index() == 0:
            print(f"step {step}: loss {loss:.4f}, waited {watch.lap().waiting:.0%}")
