"""A small convolutional classifier of 8 x 8 images and its training step, in plain JAX."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

Parameters = dict[str, jax.Array]


def init_model(seed: int) -> dict[str, Parameters]:
    """Return the whole training state: parameters and momenta."""
    keys = jax.random.split(jax.random.key(seed), 3)

    def he_normal(key: jax.Array, *shape: int) -> jax.Array:
        fan_in = jnp.prod(jnp.array(shape[:-1]))
        return jax.random.normal(key, shape) * jnp.sqrt(2.0 / fan_in)

    parameters = {
        "conv1": he_normal(keys[0], 3, 3, 1, 32),
        "conv2": he_normal(keys[1], 3, 3, 32, 64),
        "dense": he_normal(keys[2], 4 * 4 * 64, 10),
        "bias1": jnp.zeros(32),
        "bias2": jnp.zeros(64),
        "bias3": jnp.zeros(10),
    }
    return {"parameters": parameters, "momenta": jax.tree.map(jnp.zeros_like, parameters)}


def logits(parameters: Parameters, images: jax.Array) -> jax.Array:
    """Return the scores of the ten digits for images (n, 8, 8) with values in 0..1."""
    convolve = partial(jax.lax.conv_general_dilated, padding="SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    x = images[..., None] - 0.3
    x = jax.nn.relu(convolve(x, parameters["conv1"], (1, 1)) + parameters["bias1"])
    x = jax.nn.relu(convolve(x, parameters["conv2"], (2, 2)) + parameters["bias2"])
    return x.reshape(len(x), -1) @ parameters["dense"] + parameters["bias3"]


@jax.jit
def train_step(
    model: dict[str, Parameters], batch: Any, learning_rate: float
) -> tuple[dict[str, Parameters], jax.Array]:
    """Run one step of gradient descent with momentum. `batch` is the batch of the loader, which is a pytree."""

    def loss(parameters: Parameters) -> jax.Array:
        scores = jax.nn.log_softmax(logits(parameters, batch.image))
        return -jnp.take_along_axis(scores, batch.label[:, None], axis=1).mean()

    value, gradients = jax.value_and_grad(loss)(model["parameters"])
    momenta = jax.tree.map(lambda m, g: 0.9 * m + g, model["momenta"], gradients)
    parameters = jax.tree.map(lambda p, m: p - learning_rate * m, model["parameters"], momenta)
    return {"parameters": parameters, "momenta": momenta}, value


@jax.jit
def count_correct(parameters: Parameters, images: jax.Array, labels: jax.Array) -> jax.Array:
    """Count the images that are classified correctly."""
    return (logits(parameters, images).argmax(axis=1) == labels).sum()
