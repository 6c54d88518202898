"""A JAX model trained on several processes: its arrays go through the ring as they are.

    mpirun -n 4 python -m mpi4py examples/jax_arrays.py

JAX computes gradients inside ``jit``, where arrays have no values yet; the ring works on values.  So a step is
three parts, and the ring is between two of JAX's:

1. ``value_and_grad`` under ``jit``, on this rank's shard of the batch;
2. ``mpiring.average_gradients(gradients, ring)``: the same nest, with new JAX arrays in it;
3. the update under ``jit``.

JAX's arrays cannot be changed, so nothing is done in place: every call returns new arrays, and ``out=`` is an
error.  ``ring.broadcast(parameter)`` returns rank 0's array on every rank.

The same training in one process, without mpiring, gives the same parameters but for rounding: the program
compares them, and its exit status is 1 if they differ by more.  Why a shard's gradient is weighted as it is,
``train_digits.py`` says, whose images and batches these are.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from typing import Any

import train_digits as digits  # first: it tells NumPy to leave the cores to the ranks

from mpi4py import MPI  # isort: skip

import mpiring  # isort: skip
from mpiring.plan import Segments  # isort: skip

import job  # isort: skip

# JAX is imported where it is used: main() says first, in a sentence, if it is not there.
PACKAGES = {"jax": "jax", "sklearn": "scikit-learn"}

HIDDEN = 256
MOMENTUM = 0.9

Array = Any
Arrays = dict[str, Any]


def new_parameters(seed: int) -> Arrays:
    """64 pixels, HIDDEN units with a ReLU, 10 digits; float64, so that rounding is far below a mistake."""
    from jax import numpy as jnp
    from jax import random

    first, second = random.split(random.key(seed))
    return {
        "w1": random.normal(first, (64, HIDDEN)) * (2 / 64) ** 0.5,
        "b1": jnp.zeros(HIDDEN),
        "w2": random.normal(second, (HIDDEN, 10)) * (2 / HIDDEN) ** 0.5,
        "b2": jnp.zeros(10),
    }


def scores(parameters: Arrays, images: Array) -> Array:
    """What the network says of each image, for each digit."""
    from jax import nn

    hidden = nn.relu(images @ parameters["w1"] + parameters["b1"])
    return hidden @ parameters["w2"] + parameters["b2"]


def loss_of(parameters: Arrays, images: Array, labels: Array) -> Array:
    """Cross entropy, summed over the images: zero for an empty shard."""
    from jax import nn
    from jax import numpy as jnp

    log_probability = nn.log_softmax(scores(parameters, images))
    return -jnp.take_along_axis(log_probability, labels[:, None], axis=1).sum()


def descend(
    parameters: Arrays, velocity: Arrays, gradients: Arrays, rate: float
) -> tuple[Arrays, Arrays]:
    """One step of gradient descent with momentum: new parameters, new velocity."""
    from jax import tree

    def faster(v: Array, gradient: Array) -> Array:
        return MOMENTUM * v - rate * gradient

    velocity = tree.map(faster, velocity, gradients)
    return tree.map(lambda p, v: p + v, parameters, velocity), velocity


def train(
    parameters: Arrays,
    data: digits.Digits,
    args: argparse.Namespace,
    rank: int,
    size: int,
    average: Callable[[Any], Any],
) -> tuple[Arrays, list[float]]:
    """Train on this rank's shards; gives the parameters, and each epoch's loss of all ranks."""
    import jax
    from jax import numpy as jnp

    images, labels = jnp.asarray(data.images), jnp.asarray(data.labels)
    differentiate = jax.jit(jax.value_and_grad(loss_of))
    update = jax.jit(descend)
    velocity = jax.tree.map(jnp.zeros_like, parameters)
    losses = []
    for epoch in range(args.epochs):
        total = 0.0
        for batch in digits.batches(data, args.batch, args.seed + 1 + epoch):
            mine = batch[Segments(len(batch), size)[rank].slice]
            loss, gradients = differentiate(parameters, images[mine], labels[mine])
            weight = size / len(batch)
            scaled = jax.tree.map(lambda g: g * weight, gradients)
            averaged = average({"loss": loss * weight, "gradients": scaled})
            # Small batches take small steps.
            rate = digits.LEARNING_RATE * min(1, len(batch) / 256)
            parameters, velocity = update(
                parameters, velocity, averaged["gradients"], rate
            )
            total += float(averaged["loss"]) * len(batch)
        losses.append(total / len(data.train))
    return parameters, losses


def right_answers(
    parameters: Arrays, data: digits.Digits, numbers: digits.Array
) -> Array:
    """How many of these images are recognised: an array without dimensions."""
    said = scores(parameters, data.images[numbers]).argmax(axis=1)
    return (said == data.labels[numbers]).sum()


def largest_difference(one: Arrays, other: Arrays) -> float:
    """Over all parameters."""
    return max(float(abs(one[name] - other[name]).max()) for name in one)


def main() -> int:
    """One rank's part; the exit status is 0 if both trainings gave the same model."""
    comm = MPI.COMM_WORLD
    args = job.arguments(comm, command_line())
    job.need_packages(comm, PACKAGES)
    os.environ["JAX_ENABLE_X64"] = "1"  # JAX reads it when it is imported
    data = comm.bcast(digits.load_digits(args.seed) if comm.rank == 0 else None)
    with mpiring.Ring(comm) as ring:
        own = new_parameters(args.seed + ring.rank)  # each rank's; rank 0's count
        parameters = {name: ring.broadcast(p, root=0) for name, p in own.items()}
        parameters, losses = train(
            parameters,
            data,
            args,
            ring.rank,
            ring.size,
            lambda nest: mpiring.average_gradients(nest, ring),
        )
        shard = Segments(len(data.test), ring.size)[ring.rank]
        right = ring.allreduce(right_answers(parameters, data, data.test[shard.slice]))
    job.wait_idle(comm)
    status = 0
    if comm.rank == 0:
        alone, _ = train(new_parameters(args.seed), data, args, 0, 1, lambda nest: nest)
        difference = largest_difference(parameters, alone)
        status = int(difference > digits.ROUNDING)
        count = sum(p.size for p in parameters.values())
        kind = f"{parameters['w1'].dtype} on {parameters['w1'].device}"
        accuracy = int(right) / len(data.test)
        rows = [
            ("ranks", str(comm.size), job.plural(args.epochs, "epoch")),
            ("parameters", str(count), kind),
            ("loss", f"{losses[-1]:.4f}", f"{losses[0]:.4f} in the first"),
            ("test accuracy", f"{accuracy:.4f}", f"{int(right)} of {len(data.test)}"),
            digits.difference_row(difference),
        ]
        job.print_table(rows)
    job.wait_idle(comm)
    return int(comm.bcast(status))


def command_line() -> argparse.ArgumentParser:
    """What the user may choose."""
    parser = argparse.ArgumentParser(
        usage="mpirun -n 4 python -m mpi4py examples/jax_arrays.py [options]",
        description="Train a JAX model on handwritten digits, on any number of ranks.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--epochs", type=job.positive, default=20, help="times through all images")
    add("--batch", type=job.positive, default=256, help="images in a batch, of all")
    add("--seed", type=int, default=0, help="of parameters and shuffling")
    return parser


if __name__ == "__main__":
    sys.exit(main())
