"""Train on mix.yaml and print the loss of each dataset. Edit mix.yaml and run again to continue."""

import json
import os
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from orbax.checkpoint import v1 as ocp

import energon_grain as eg
from energon_grain.loader import to_device

MIXTURE, RUN, STEPS = sys.argv[1], os.path.abspath(sys.argv[2]), int(sys.argv[3])
GLOBAL_BATCH, SAVE_EVERY, LOG_EVERY, REWEIGHT_AT, EXCLUDE_AT = 48, 20, 10, 60, 80
CONTEXT, BYTES, MOST_DATASETS = 6, 80, 8


@eg.edataclass
class Text(eg.Sample):
    bytes: np.ndarray


@eg.edataclass
class Texts(eg.Batch):
    bytes: jax.Array  # (batch, BYTES) uint8
    leaf: jax.Array  # (batch,) int32: filled by the loader, on the device as the rest of the batch


class Encoder(eg.TaskEncoder):
    def encode_sample(self, sample):
        text = sample.text.encode()[:BYTES].ljust(BYTES)
        return Text.derive_from(sample, bytes=np.frombuffer(text, np.uint8))

    def batch(self, samples):
        return Texts.from_samples(samples)


def losses_of(w, batch):  # of each text: predict each byte from those before it
    ids = jnp.stack([batch.bytes[:, n : n + BYTES - CONTEXT] for n in range(CONTEXT)], -1)
    hidden = jax.nn.relu(w["embed"][ids].reshape(*ids.shape[:2], -1) @ w["in"])
    scores = jax.nn.log_softmax(hidden @ w["out"])
    return -jnp.take_along_axis(scores, batch.bytes[:, CONTEXT:, None], axis=-1).mean((1, 2))


@jax.jit
def train_step(state, batch):
    def loss_of(w):
        losses = losses_of(w, batch)
        sums = jax.ops.segment_sum(losses, batch.leaf, MOST_DATASETS)
        return losses.mean(), (sums, jnp.bincount(batch.leaf, length=MOST_DATASETS))

    (_, by_leaf), grads = jax.value_and_grad(loss_of, has_aux=True)(state["w"])
    w = jax.tree.map(lambda w, g: w - 0.5 * g, state["w"], grads)
    return {"step": state["step"] + 1, "w": w}, by_leaf


if "HOSTS" in os.environ:
    hosts, host = int(os.environ["HOSTS"]), int(os.environ["HOST"])
    jax.distributed.initialize(os.environ["COORDINATOR"], hosts, host)
mesh = jax.sharding.Mesh(jax.devices(), ("data",))
shapes = {"embed": (256, 8), "in": (8 * CONTEXT, 64), "out": (64, 256)}
rng = np.random.default_rng(0)
w = {name: rng.standard_normal(shape, "f") / shape[0] ** 0.5 for name, shape in shapes.items()}
state = jax.device_put({"step": 0, "w": w}, NamedSharding(mesh, PartitionSpec()))

dataset = eg.get_train_dataset(
    MIXTURE,
    worker_config=eg.WorkerConfig.default_worker_config(num_workers=2),
    batch_size=GLOBAL_BATCH // jax.process_count(),
    shuffle_buffer_size=None,
    max_samples_per_sequence=None,
    task_encoder=Encoder(),
)
ckpt = ocp.training.Checkpointer(os.path.join(RUN, "checkpoints"))
os.makedirs(RUN, exist_ok=True)
log = os.path.join(RUN, f"samples-{jax.process_index()}.jsonl")
with ckpt, open(log, "a", 1) as log, eg.get_savable_loader(dataset, on_change="amend") as loader:
    if ckpt.latest is not None:
        state = ckpt.load_checkpointables(None, {"state": state, "loader": loader})["state"]
    batches = to_device(loader, NamedSharding(mesh, PartitionSpec("data")))
    for step in range(int(state["step"]) + 1, STEPS + 1):
        batch = next(batches)
        state, (sums, counts) = train_step(state, batch)
        names = [loader.leaf_names[number] for number in loader.leaf_of(batch)]
        log.write(json.dumps([step, jax.process_count(), list(zip(names, batch.__key__))]) + "\n")
        if step % LOG_EVERY == 0:
            by_dataset = dict(zip(loader.leaf_names, (sums / np.maximum(counts, 1)).tolist()))
            if jax.process_index() == 0:
                print(f"step {step}: " + ", ".join(f"{n} {x:.2f}" for n, x in by_dataset.items()))
        if step == REWEIGHT_AT:  # the losses are of all hosts, so every host makes the same call
            weights = {name: loss for name, loss in by_dataset.items() if loss}
            loader.reweight(weights, note="shares by loss")
        if step == EXCLUDE_AT:
            loader.amend(exclude={"code": ["shard-000002.tar"]}, note="broken shard")
        if step % SAVE_EVERY == 0:
            ckpt.save_checkpointables(step, {"state": state, "loader": loader})
