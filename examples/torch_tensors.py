"""A PyTorch model trained on several processes: its tensors go through the ring as they are.

    mpirun -n 4 python -m mpi4py examples/torch_tensors.py

Every rank has a model of its own and works on its own shard of every batch.  Three calls of mpiring make one
training of it, and none of them converts a tensor:

* ``ring.broadcast(parameter)`` fills every rank's parameters with those of rank 0, in place;
* ``mpiring.average_gradients({name: parameter.grad}, ring)`` gives new tensors with the average over the ranks;
* ``ring.allreduce(right)`` adds up how many test images each rank has recognised.

The same training in one process, without mpiring, gives the same parameters but for rounding: the program
compares them, and its exit status is 1 if they differ by more.  Why a shard's gradient is weighted as it is,
``train_digits.py`` says, whose images and batches these are.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

import train_digits as digits  # first: it tells NumPy to leave the cores to the ranks

from mpi4py import MPI  # isort: skip

import mpiring  # isort: skip
from mpiring.plan import Segments  # isort: skip

import job  # isort: skip

# torch is imported where it is used: main() says first, in a sentence, if it is not there.
PACKAGES = {"torch": "torch", "sklearn": "scikit-learn"}

HIDDEN = 256
MOMENTUM = 0.9

Model = Any
Tensor = Any


def new_model(seed: int) -> Model:
    """64 pixels, HIDDEN units with a ReLU, 10 digits; float64, so that rounding is far below a mistake."""
    import torch
    from torch import nn

    torch.manual_seed(seed)
    layers = nn.Linear(64, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 10)
    return nn.Sequential(*layers).double()


def loss_of(model: Model, images: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy, summed over the images: zero for an empty shard."""
    from torch.nn import functional

    return functional.cross_entropy(model(images), labels, reduction="sum")


class Data:
    """The images and labels as tensors on the device."""

    def __init__(self, data: digits.Digits, device: str) -> None:
        import torch

        self.images = torch.from_numpy(data.images).to(device)
        self.labels = torch.from_numpy(data.labels).to(device)
        self.digits = data

    def of(self, numbers: digits.Array) -> tuple[Tensor, Tensor]:
        """The images with these numbers, and their labels."""
        import torch

        index = torch.from_numpy(numbers).to(self.images.device)
        return self.images[index], self.labels[index]


def train(
    model: Model,
    data: Data,
    args: argparse.Namespace,
    rank: int,
    size: int,
    average: Callable[[dict[str, Tensor]], dict[str, Tensor]],
) -> list[float]:
    """Train in place, on this rank's shards; gives this rank's part of each epoch's loss."""
    import torch

    optimizer = torch.optim.SGD(
        model.parameters(), lr=digits.LEARNING_RATE, momentum=MOMENTUM
    )
    losses = []
    for epoch in range(args.epochs):
        total = 0.0
        for batch in digits.batches(data.digits, args.batch, args.seed + 1 + epoch):
            mine = batch[Segments(len(batch), size)[rank].slice]
            loss = loss_of(model, *data.of(mine))
            optimizer.zero_grad()
            (loss * (size / len(batch))).backward()
            parameters = dict(model.named_parameters())
            averaged = average({name: p.grad for name, p in parameters.items()})
            for name, parameter in parameters.items():
                parameter.grad = averaged[name]
            # Small batches take small steps.
            for group in optimizer.param_groups:
                group["lr"] = digits.LEARNING_RATE * min(1, len(batch) / 256)
            optimizer.step()
            total += float(loss.detach())
        losses.append(total / len(data.digits.train))
    return losses


def right_answers(model: Model, data: Data, numbers: digits.Array) -> Tensor:
    """How many of these images are recognised: a tensor without dimensions."""
    import torch

    images, labels = data.of(numbers)
    with torch.no_grad():
        return (model(images).argmax(dim=1) == labels).sum()


def largest_difference(one: Model, other: Model) -> float:
    """Over all parameters."""
    pairs = zip(one.parameters(), other.parameters())
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


def main() -> int:
    """One rank's part; the exit status is 0 if both trainings gave the same model."""
    comm = MPI.COMM_WORLD
    args = job.arguments(comm, command_line())
    job.need_packages(comm, PACKAGES)
    import torch

    torch.set_num_threads(1)  # the ranks are the parallelism
    device = args.device
    if device == "cuda":
        device += f":{mpiring.local_rank(comm) % torch.cuda.device_count()}"
    loaded = comm.bcast(digits.load_digits(args.seed) if comm.rank == 0 else None)
    data = Data(loaded, device)
    with mpiring.Ring(comm) as ring:
        model = new_model(args.seed + ring.rank).to(device)  # each has its own
        for parameter in model.parameters():
            ring.broadcast(parameter, root=0)
        losses = train(
            model,
            data,
            args,
            ring.rank,
            ring.size,
            lambda grads: mpiring.average_gradients(grads, ring),
        )
        shard = Segments(len(loaded.test), ring.size)[ring.rank]
        right = ring.allreduce(right_answers(model, data, loaded.test[shard.slice]))
        loss = ring.allreduce(torch.tensor(losses, device=device))
    job.wait_idle(comm)
    status = 0
    if comm.rank == 0:
        alone = new_model(args.seed).to(device)
        train(alone, data, args, 0, 1, lambda grads: grads)
        difference = largest_difference(model, alone)
        status = int(difference > digits.ROUNDING)
        count = sum(p.numel() for p in model.parameters())
        kind = f"{next(model.parameters()).dtype} on {device}"
        accuracy = int(right) / len(loaded.test)
        rows = [
            ("ranks", str(comm.size), job.plural(args.epochs, "epoch")),
            ("parameters", str(count), kind),
            ("loss", f"{float(loss[-1]):.4f}", f"{float(loss[0]):.4f} in the first"),
            ("test accuracy", f"{accuracy:.4f}", f"{int(right)} of {len(loaded.test)}"),
            digits.difference_row(difference),
        ]
        job.print_table(rows)
    job.wait_idle(comm)
    return int(comm.bcast(status))


def command_line() -> argparse.ArgumentParser:
    """What the user may choose."""
    parser = argparse.ArgumentParser(
        usage="mpirun -n 4 python -m mpi4py examples/torch_tensors.py [options]",
        description="Train a PyTorch model on handwritten digits, on any number of ranks.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--epochs", type=job.positive, default=20, help="times through all images")
    add("--batch", type=job.positive, default=256, help="images in a batch, of all")
    add("--seed", type=int, default=0, help="of parameters and shuffling")
    add(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help="where the tensors are; cuda needs CuPy too, and nobody has tried it yet",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
