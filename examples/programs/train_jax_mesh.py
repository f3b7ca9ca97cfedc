"""Train with JAX and tensor parallelism: processes with equal rows read once."""

import os
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

import energon_grain as eg

BATCH, STEPS = 48, 20


class Images(eg.DefaultTaskEncoder):
    decoder = eg.SampleDecoder(image_decode="rgb")  # float32 (height, width, 3)

    def encode_sample(self, sample):
        sample.label = np.asarray(sample.label, np.int32)
        return sample


def loss_of(w, image, label):
    hidden = jax.nn.relu(image.reshape(len(image), -1) @ w["in"])
    scores = jax.nn.log_softmax(hidden @ w["out"])
    return -jnp.take_along_axis(scores, label[:, None], axis=1).mean()


@jax.jit
def train_step(w, image, label):
    loss, grads = jax.value_and_grad(loss_of)(w, image, label)
    return jax.tree.map(lambda w, g: w - 0.05 * g, w, grads), loss


def main(data, tensor_parallel):
    if "COORDINATOR" in os.environ:  # on clusters, `initialize` needs no arguments
        hosts, host = int(os.environ["HOSTS"]), int(os.environ["HOST"])
        jax.distributed.initialize(os.environ["COORDINATOR"], hosts, host)
    devices = np.array(jax.devices()).reshape(-1, int(tensor_parallel))
    mesh = Mesh(devices, ("dp", "tp"))
    rows = NamedSharding(mesh, P("dp"))
    config = eg.WorkerConfig.of_sharding(rows, global_shape=(BATCH,), num_workers=2)
    train = eg.get_train_dataset(
        data,
        worker_config=config,
        batch_size=BATCH // config.world_size,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        task_encoder=Images(),
    )
    rng = np.random.default_rng(0)
    w = {"in": rng.normal(0, 0.03, (768, 64)), "out": rng.normal(0, 0.1, (64, 10))}
    parts = {"in": P(None, "tp"), "out": P("tp")}
    place = jax.make_array_from_callback
    w = {
        k: place(a.shape, NamedSharding(mesh, parts[k]), a.astype("f4").__getitem__)
        for k, a in w.items()
    }
    to_mesh = partial(jax.make_array_from_process_local_data, rows)
    with eg.get_savable_loader(train) as loader:
        for step, batch in zip(range(1, STEPS + 1), loader):
            w, loss = train_step(w, to_mesh(batch.image), to_mesh(batch.label))
            if jax.process_index() == 0:
                print(f"step {step}: loss {float(loss):.4f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
