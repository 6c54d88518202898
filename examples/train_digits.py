"""Train a small network on several processes; its gradients travel around the ring.

    mpirun -n 4 python -m mpi4py examples/train_digits.py

Data-parallel training: every rank has a copy of the parameters and works on its own shard of every
batch.  The gradients are averaged over the ranks, every rank takes the same step with them, and so
the copies stay equal, bit for bit.

Why this is the same training as in one process
    The gradient of a batch of ``B`` images is the mean of the images' gradients ``g``.  Cut the
    batch into a shard for each of ``K`` ranks, of any lengths:

        1/B sum(g of all)  =  average over the ranks of  K/B sum(g of the rank's shard)

    A rank that took the mean of its own shard would be right only if all shards were equally long.

    Only the order of the additions differs, so the parameters of both trainings differ by rounding.
    They are float64 here for that reason: rounding then stays many orders of magnitude below what a
    lost, doubled or wrongly weighted gradient does, and one look at it tells which it is.

The network is written out, forward and backward, in what NumPy and its like have in common: ``xp`` is
the module whose arrays it works on, here NumPy, in ``train_cupy.py`` CuPy.  Its data are scikit-learn's
digits, 1797 images of 8 x 8 pixels.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

# The ranks are the parallelism: a matrix product on one rank must not take the cores of the others.
# NumPy reads this when it is imported.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import numpy as np  # noqa: E402
from mpi4py import MPI  # noqa: E402

import mpiring  # noqa: E402

import job  # noqa: E402

PACKAGES = {"sklearn": "scikit-learn", "tqdm": "tqdm", "matplotlib": "matplotlib"}

HIDDEN = 512
LEARNING_RATE = 0.1  # for batches of 256 and more; in proportion below
MOMENTUM = 0.9
TEST_IMAGES = 360

# Far above rounding, far below what the mildest mistake does: if shards of 85 and 86 images count
# the same (on 3 ranks), some parameter is off by 1e-4 after one epoch and by 1e-2 after thirty.
ROUNDING = 1e-9

SPEED_RUNS, SPEED_STEPS = 5, 20

Array = np.ndarray[Any, np.dtype[Any]]
Arrays = dict[str, Array]


# ---- the network --------------------------------------------------------------------------------


def new_parameters(seed: int, xp: Any = np) -> Arrays:
    """64 pixels, HIDDEN units with a ReLU, 10 digits; the same numbers on every rank."""
    random = np.random.default_rng(seed)
    parameters = {
        "w1": random.normal(0, np.sqrt(2 / 64), (64, HIDDEN)),
        "b1": np.zeros(HIDDEN),
        "w2": random.normal(0, np.sqrt(2 / HIDDEN), (HIDDEN, 10)),
        "b2": np.zeros(10),
    }
    return {name: xp.asarray(values) for name, values in parameters.items()}


def forward(parameters: Arrays, images: Array, xp: Any = np) -> tuple[Array, Array]:
    """The hidden units, and the logarithm of each digit's probability (log-softmax)."""
    hidden = xp.maximum(images @ parameters["w1"] + parameters["b1"], 0)
    scores = hidden @ parameters["w2"] + parameters["b2"]
    scores -= scores.max(axis=1, keepdims=True)
    return hidden, scores - xp.log(xp.exp(scores).sum(axis=1, keepdims=True))


def loss_and_gradients(
    parameters: Arrays, images: Array, labels: Array, xp: Any = np
) -> tuple[Array, Arrays]:
    """Cross entropy and its gradients, *summed* over the images: zeros for an empty shard."""
    hidden, log_probability = forward(parameters, images, xp)
    right = xp.arange(len(labels)), labels
    d_scores = xp.exp(log_probability)
    d_scores[right] -= 1
    d_hidden = d_scores @ parameters["w2"].T * (hidden > 0)
    gradients = {
        "w1": images.T @ d_hidden,
        "b1": d_hidden.sum(axis=0),
        "w2": hidden.T @ d_scores,
        "b2": d_scores.sum(axis=0),
    }
    return -log_probability[right].sum(), gradients


def descend(
    parameters: Arrays, velocity: Arrays, gradients: Arrays, rate: float
) -> None:
    """One step of gradient descent with momentum, in place."""
    for name, gradient in gradients.items():
        velocity[name] = MOMENTUM * velocity[name] - rate * gradient
        parameters[name] += velocity[name]


# ---- training -----------------------------------------------------------------------------------


class Digits(NamedTuple):
    """The images, and which of them are for training and for the test."""

    images: Array
    labels: Array
    train: Array
    test: Array


class Team(NamedTuple):
    """The ranks that train together: who I am among them, and how they average."""

    rank: int
    size: int
    average: Callable[[Any], Any]


ALONE = Team(0, 1, lambda nest: nest)  # without MPI and without mpiring


def team(ring: mpiring.Ring) -> Team:
    """The ranks of a ring: the one line of this program in which they meet."""
    return Team(
        ring.rank, ring.size, lambda nest: mpiring.average_gradients(nest, ring)
    )


def batches(digits: Digits, batch: int, seed: int) -> Iterator[Array]:
    """One epoch's batches of training images, shuffled alike on every rank."""
    order = np.random.default_rng(seed).permutation(digits.train)
    for start in range(0, len(order), batch):
        yield order[start : start + batch]


class Trainer:
    """Parameters and their momentum on one rank."""

    def __init__(self, digits: Digits, seed: int, ranks: Team, xp: Any = np) -> None:
        self.parameters = new_parameters(seed, xp)
        self._velocity = {name: xp.zeros_like(p) for name, p in self.parameters.items()}
        self._digits = digits
        self._ranks = ranks
        self._xp = xp

    def step(self, batch: Array) -> Array:
        """Do one step of gradient descent with momentum; returns the loss of the whole batch.

        A loss on a GPU is one that may still have to be computed: reading it waits for it.
        """
        rank, size, average = self._ranks
        mine = batch[mpiring.plan.Segments(len(batch), size)[rank].slice]
        where = self._xp.asarray(mine)
        images, labels = self._digits.images[where], self._digits.labels[where]
        loss, gradients = loss_and_gradients(self.parameters, images, labels, self._xp)
        weight = size / len(batch)
        averaged = average(
            {
                "loss": loss * weight,
                "gradients": {name: g * weight for name, g in gradients.items()},
            }
        )
        # Small batches take small steps, or training is chaos, in which even rounding grows.
        rate = LEARNING_RATE * min(1, len(batch) / 256)
        descend(self.parameters, self._velocity, averaged["gradients"], rate)
        total: Array = averaged["loss"]
        return total


def train(
    digits: Digits,
    args: argparse.Namespace,
    ranks: Team,
    after_epoch: Callable[[float], None],
    xp: Any = np,
) -> tuple[Arrays, list[float]]:
    """The whole training; gives the parameters, and each epoch's mean loss."""
    trainer = Trainer(digits, args.seed, ranks, xp)
    losses = []
    for epoch in range(args.epochs):
        seed = args.seed + 1 + epoch
        steps = [trainer.step(batch) for batch in batches(digits, args.batch, seed)]
        losses.append(statistics.fmean(map(float, steps)))
        after_epoch(losses[-1])
    return trainer.parameters, losses


# ---- what is measured ---------------------------------------------------------------------------


def right_answers(parameters: Arrays, digits: Digits, xp: Any = np) -> int:
    """How many of the test images are recognised."""
    test = xp.asarray(digits.test)
    _, log_probability = forward(parameters, digits.images[test], xp)
    return int((log_probability.argmax(axis=1) == digits.labels[test]).sum())


def largest_difference(one: Arrays, other: Arrays) -> float:
    """Over all parameters."""
    return max(float(abs(one[name] - other[name]).max()) for name in one)


def fingerprint(parameters: Arrays) -> str:
    """Equal if and only if every bit of every parameter is."""
    digest = hashlib.sha256()
    for name in sorted(parameters):
        digest.update(parameters[name].tobytes())
    return digest.hexdigest()


def images_per_second(
    comm: MPI.Intracomm, ranks: int, digits: Digits, args: argparse.Namespace, xp: Any
) -> float:
    """The speed of training on the first ``ranks`` of ``comm``, the others idle (0 there)."""
    part = comm.Split(0 if comm.rank < ranks else MPI.UNDEFINED, comm.rank)
    speed = 0.0
    if part != MPI.COMM_NULL:
        with mpiring.Ring(part) as ring:
            trainer = Trainer(digits, args.seed, team(ring), xp)
            whole = np.resize(digits.train, args.batch)
            times = []
            for _ in range(1 + SPEED_RUNS):
                ring.barrier()
                start = time.perf_counter()
                for _ in range(SPEED_STEPS):
                    loss = trainer.step(whole)
                float(loss)  # a GPU may still be at it
                times.append(time.perf_counter() - start)
            # The first run warms up.
            speed = SPEED_STEPS * args.batch / statistics.median(times[1:])
        part.Free()
    job.wait_idle(comm)
    return speed


# ---- the program --------------------------------------------------------------------------------


class Workers(NamedTuple):
    """What the ranks compute with: the arrays' module, and how many of what they share."""

    xp: Any
    number: int
    noun: str


def main() -> int:
    """One rank's part; the exit status is 0 if both trainings gave the same model."""
    comm = MPI.COMM_WORLD
    args = job.arguments(comm, command_line("train_digits"))
    job.need_packages(comm, PACKAGES)
    return run(comm, args, Workers(np, job.cores(comm), "core"))


def run(comm: MPI.Intracomm, args: argparse.Namespace, workers: Workers) -> int:
    """Train on all ranks, measure, train in one process, and compare; gives the exit status."""
    begin = time.perf_counter()
    xp = workers.xp
    loaded = comm.bcast(load_digits(args.seed) if comm.rank == 0 else None)
    digits = loaded._replace(
        images=xp.asarray(loaded.images), labels=xp.asarray(loaded.labels)
    )
    if comm.rank == 0:
        print(
            f"{len(digits.train)} images in batches of {args.batch}, "
            f"{job.plural(args.epochs, 'epoch')}; "
            f"{job.plural(comm.size, 'rank')} on {job.plural(workers.number, workers.noun)}",
            flush=True,
        )
    with mpiring.Ring(comm) as ring, epoch_bar(comm, args.epochs) as advance:
        parameters, losses = train(digits, args, team(ring), advance, xp)
        how = ring.device_transport
    fingerprints = comm.allgather(fingerprint(parameters))
    if comm.rank == 0:
        print("now the speed, and the same training in one process", flush=True)
    speeds = {
        ranks: images_per_second(comm, ranks, digits, args, xp)
        for ranks in sorted({1, 2, 4, comm.size})
        if ranks <= comm.size
    }
    status = 0
    if comm.rank == 0:
        alone, losses_alone = train(digits, args, ALONE, lambda loss: None, xp)
        same = fingerprints.count(fingerprints[0])
        difference = largest_difference(parameters, alone)
        status = 0 if same == comm.size and difference <= ROUNDING else 1
        plot(args.plot, comm.size, losses, losses_alone)
        print()
        job.print_table(
            [
                *model_rows(parameters, losses, right_answers(parameters, digits, xp)),
                ("same bits", f"{same} of {comm.size}", "ranks, in all parameters"),
                difference_row(difference),
                *([] if xp is np else [("device memory", how.transport, how.why)]),
                *speed_rows(speeds, workers),
            ]
        )
        seconds = time.perf_counter() - begin
        print(f"\nThe loss is drawn in {args.plot}; all of this took {seconds:.0f} s.")
    job.wait_idle(comm)
    return int(comm.bcast(status))


def command_line(program: str, where: str = "") -> argparse.ArgumentParser:
    """What the user may choose."""
    parser = argparse.ArgumentParser(
        usage=f"mpirun -n 4 python -m mpi4py examples/{program}.py [options]",
        description=f"Train a small network on handwritten digits, on any number of ranks{where}.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--epochs", type=job.positive, default=30, help="times through all images")
    add(
        "--batch",
        type=job.positive,
        default=256,
        help="images in a batch, of all ranks",
    )
    add(
        "--seed",
        type=int,
        default=0,
        help="of the first parameters and of the shuffling",
    )
    add(
        "--plot",
        type=Path,
        default=Path(f"out/{program}.png"),
        metavar="FILE",
        help="where the plot of the loss goes, a PNG",
    )
    return parser


def load_digits(seed: int) -> Digits:
    """scikit-learn's digits, pixels from 0 to 1, with test images set aside."""
    from sklearn import datasets

    images, labels = datasets.load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(images))
    return Digits(images / 16, labels, order[TEST_IMAGES:], order[:TEST_IMAGES])


@contextlib.contextmanager
def epoch_bar(comm: MPI.Intracomm, epochs: int) -> Iterator[Callable[[float], None]]:
    """A progress bar on rank 0; gives what to call with each epoch's loss."""
    if comm.rank > 0:
        yield lambda loss: None
        return
    from tqdm import tqdm

    with tqdm(total=epochs, desc="training", unit=" epochs", ncols=88) as bar:

        def advance(loss: float) -> None:
            bar.set_postfix_str(f"loss {loss:.4f}", refresh=False)
            bar.update()

        yield advance


def plot(path: Path, ranks: int, together: list[float], alone: list[float]) -> None:
    """The loss of each epoch, of both trainings, as PNG."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    epochs = range(1, len(together) + 1)
    axes.plot(
        epochs,
        together,
        color="tab:blue",
        label=f"{job.plural(ranks, 'rank')}, gradients averaged by mpiring",
    )
    axes.plot(epochs, alone, "o", color="tab:orange", markersize=4, label="one process")
    axes.set(
        yscale="log",
        xlabel="epoch",
        ylabel="cross entropy (mean of the epoch's batches)",
        title="Handwritten digits: the same training on the ring and alone",
    )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png", dpi=120)


def model_rows(
    parameters: Arrays, losses: list[float], right: int
) -> Iterator[tuple[str, str, str]]:
    """What was trained, and how well."""
    count = sum(p.size for p in parameters.values())
    yield "parameters", str(count), "float64"
    yield "loss", f"{losses[-1]:.4f}", f"in the last epoch, {losses[0]:.4f} in the first"
    remark = f"{right} of {TEST_IMAGES} new images"
    yield "test accuracy", f"{right / TEST_IMAGES:.4f}", remark


def difference_row(difference: float) -> tuple[str, str, str]:
    """How far the parameters are from those of one process."""
    verdict = "rounding" if difference <= ROUNDING else "MORE THAN ROUNDING"
    if difference == 0:
        verdict = "the same bits"
    return (
        "largest difference",
        f"{difference:.1e}",
        f"to the parameters trained in one process: {verdict}",
    )


def speed_rows(
    speeds: dict[int, float], workers: Workers
) -> Iterator[tuple[str, str, str]]:
    """How fast 1, 2, 4 ... ranks train; says where a comparison means little."""
    for ranks, speed in speeds.items():
        note = f"median of {SPEED_RUNS} runs of {SPEED_STEPS} batches"
        if ranks > 1:
            note = f"{speed / speeds[1]:.2f} times one rank"
        if ranks > workers.number:
            shared = job.plural(workers.number, workers.noun)
            note += f"; they take turns on {shared}"
        yield f"images/s, {job.plural(ranks, 'rank')}", f"{speed:,.0f}", note


if __name__ == "__main__":
    sys.exit(main())
