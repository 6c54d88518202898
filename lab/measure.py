"""The job that measures, one rank on each host: mpirun ... python -m mpi4py lab/measure.py PLAN RESULT

``lab/lecture.py`` writes the plan, starts this on the hosts and reads the result; both are JSON:

plan
    ``items``: a list of ``{"case", "nbytes", "segments", "weight"}``; ``rounds``; ``points``: sizes of single
    messages, or none; ``stream``: bytes of the plain TCP stream, 0 for none; ``update``: bytes of
    parameters for the update, 0 for none; ``progress``: a file that grows by a line for each measurement.
result
    ``items``, with ``seconds``, one for each round, and ``sent`` and ``received``, the bytes of the busiest
    host; ``points``: ``[bytes, seconds]``; ``stream``, bytes a second; ``update`` and ``add``, seconds.

Rules: everything is warmed up at a sixteenth of its size first.  Rounds are interleaved, so what disturbs the
machine for a while disturbs all cases.  A time runs from the first rank's start to the last one's end (the
hosts are one machine, so they have one clock).  Every result is checked, outside the time, and a wrong one
ends the job.
"""

from __future__ import annotations

import json
import socket
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

import mpiring
from mpiring import plan

from expected import CHUNK_BYTES

Array = np.ndarray[Any, np.dtype[Any]]
Call = Callable[[], None]

PORT = 5001
COUNTERS = Path("/sys/class/net/eth0/statistics")
TRAIN_BYTES = 1 << 20  # of messages in a row, where one of them is less


class Bench:
    """The arrays of one measurement on this rank, and what they have to become."""

    def __init__(
        self, ring: mpiring.Ring, cut: mpiring.Ring, nbytes: int, segments: int
    ) -> None:
        count = nbytes // 4
        self.ring = ring
        self.cut = cut  # the same ranks, long messages in pieces
        self.segments = segments
        self.pattern = np.arange(count, dtype=np.float32) % 1021
        self.mine = self.pattern + ring.rank  # integers: every sum is exact
        self.out = np.zeros(count, np.float32)
        size = ring.size
        self.total = self.pattern * size + size * (size - 1) // 2

    @property
    def is_root(self) -> bool:
        """Whether this is rank 0."""
        return self.ring.rank == 0

    def have(self, found: Any, expected: Array) -> None:
        """End the job unless the result is right."""
        if not np.array_equal(found, expected):
            raise AssertionError(f"rank {self.ring.rank}: a wrong result")


# ---- the cases: each prepares, yields the call to be timed, and checks ------------------------------

Prepared = Iterator[Call]


def broadcast_by_name(algorithm: str) -> Callable[[Bench], Prepared]:
    """Ring.broadcast."""

    def case(bench: Bench) -> Prepared:
        buffer = bench.mine.copy()
        yield lambda: bench.ring.broadcast(buffer, algorithm=algorithm)
        bench.have(buffer, bench.pattern)

    return case


def broadcast_in_pieces(bench: Bench) -> Prepared:
    """A chain of as many pieces as the plan says."""
    schedule = plan.chain_broadcast(bench.ring.size, 0, bench.segments)
    yield lambda: bench.ring.run(schedule, bench.mine, out=bench.out)
    bench.have(bench.out, bench.pattern)


def mpi_broadcast(bench: Bench) -> Prepared:
    """The peer."""
    buffer = bench.mine.copy()
    yield lambda: MPI.COMM_WORLD.Bcast(buffer)
    bench.have(buffer, bench.pattern)


def reduce_by_name(algorithm: str) -> Callable[[Bench], Prepared]:
    """Ring.reduce."""

    def case(bench: Bench) -> Prepared:
        out = bench.out if bench.is_root else None
        yield lambda: bench.ring.reduce(bench.mine, out=out, algorithm=algorithm)
        if bench.is_root:
            bench.have(bench.out, bench.total)

    return case


def allreduce_by_name(algorithm: str, cut: bool = False) -> Callable[[Bench], Prepared]:
    """Ring.allreduce."""

    def case(bench: Bench) -> Prepared:
        ring = bench.cut if cut else bench.ring
        yield lambda: ring.allreduce(bench.mine, out=bench.out, algorithm=algorithm)
        bench.have(bench.out, bench.total)

    return case


def messages_both_ways(bench: Bench) -> Prepared:
    """Every rank sends to its right neighbour and receives from its left one, in one group."""
    ring = bench.ring

    def exchange() -> None:
        with ring.group():
            ring.send(bench.mine, (ring.rank + 1) % ring.size)
            ring.recv(bench.out, (ring.rank - 1) % ring.size)

    yield exchange
    bench.have(bench.out, bench.pattern + (ring.rank - 1) % ring.size)


def reduce_scatter_ring(bench: Bench) -> Prepared:
    """Phase 1 of the ring."""
    ring = bench.ring
    part = plan.Segments(bench.out.size, ring.size)[ring.rank].slice
    out = bench.out[part]
    yield lambda: ring.reduce_scatter(bench.mine, out=out, algorithm="ring")
    bench.have(out, bench.total[part])


def allgather_ring(bench: Bench) -> Prepared:
    """Phase 2 of the ring: from its segments to the whole of ``N`` bytes."""
    ring = bench.ring
    part = bench.pattern[plan.Segments(bench.out.size, ring.size)[ring.rank].slice]
    yield lambda: ring.allgather(part, out=bench.out, algorithm="ring")
    bench.have(bench.out, bench.pattern)


def mpi_allreduce(bench: Bench) -> Prepared:
    """The peer."""
    yield lambda: MPI.COMM_WORLD.Allreduce(bench.mine, bench.out)
    bench.have(bench.out, bench.total)


def server_of_primitives(bench: Bench) -> Prepared:
    """The lecture's section 2.3 as a star: parameters to every worker, gradients from every worker."""
    params = bench.pattern if bench.is_root else np.zeros_like(bench.pattern)
    out = bench.out if bench.is_root else None

    def step() -> None:
        bench.ring.broadcast(params, algorithm="direct")
        bench.ring.reduce(bench.mine, out=out, algorithm="direct")

    yield step
    bench.have(params, bench.pattern)
    if bench.is_root:
        bench.have(bench.out, bench.total)


def server(mode: str) -> Callable[[Bench], Prepared]:
    """One iteration of mpiring.ParameterServer: pull, push, update, done."""

    def update(params: dict[str, Array], grads: dict[str, Array]) -> None:
        params["w"] += grads["w"]

    def case(bench: Bench) -> Prepared:
        served = mpiring.ParameterServer(
            bench.ring, {"w": bench.pattern}, update, mode=mode
        )

        def step() -> None:
            if bench.is_root:
                served.serve()
            else:
                served.pull()
                served.push({"w": bench.mine})
                served.done()

        yield step
        if (
            bench.is_root
        ):  # the pattern, and every worker's gradients: rank 0 gives none
            bench.have(served.params["w"], bench.total)

    return case


CALLS: dict[str, Callable[[Bench], Prepared]] = {
    "broadcast, naive": broadcast_by_name("naive"),
    "broadcast, pipelined": broadcast_in_pieces,
    "broadcast, MPI_Bcast": mpi_broadcast,
    "reduce, chain": reduce_by_name("ring"),
    "reduce, star": reduce_by_name("direct"),
    "messages, both ways": messages_both_ways,
    "reduce-scatter, ring": reduce_scatter_ring,
    "all-gather, ring": allgather_ring,
    "all-reduce, ring": allreduce_by_name("ring"),
    "all-reduce, direct": allreduce_by_name("direct"),
    "all-reduce, ring, cut": allreduce_by_name("ring", cut=True),
    "all-reduce, direct, cut": allreduce_by_name("direct", cut=True),
    "all-reduce, MPI_Allreduce": mpi_allreduce,
    "server, star": server_of_primitives,
    "server, star, async": server("async"),
    "server, chain": server("sync"),
}


# ---- measuring --------------------------------------------------------------------------------------


def timed(call: Call) -> tuple[float, int, int]:
    """Seconds from the first start to the last end; bytes sent and received by the busiest host."""
    before = counters()
    seconds = elapsed(call)  # no rank looks at its counters before all are through
    sent, received = (now - then for now, then in zip(counters(), before))
    busiest = MPI.COMM_WORLD.allgather((sent, received))
    return seconds, max(s for s, _ in busiest), max(r for _, r in busiest)


def elapsed(call: Call) -> float:
    """Seconds from the first rank's start to the last one's end, the same on every rank."""
    comm = MPI.COMM_WORLD
    comm.Barrier()
    start = time.perf_counter()
    call()
    end = time.perf_counter()
    ranks = comm.allgather((start, end))
    return float(max(end for _, end in ranks) - min(start for start, _ in ranks))


def counters() -> tuple[int, int]:
    """Bytes this host's link has sent and received so far."""
    sent, received = (
        int((COUNTERS / f"{way}_bytes").read_text()) for way in ("tx", "rx")
    )
    return sent, received


def measure(
    ring: mpiring.Ring, cut: mpiring.Ring, item: dict[str, Any], shrink: int = 1
) -> tuple[float, int, int]:
    """One measurement of one item of the plan."""
    nbytes = item["nbytes"] // shrink // 4 * 4
    steps = CALLS[item["case"]](Bench(ring, cut, nbytes, item["segments"]))
    found = timed(next(steps))
    for _ in steps:  # the checks
        raise AssertionError("a case has one call")
    return found


def message(ring: mpiring.Ring, nbytes: int) -> float:
    """Seconds for a message from rank 0 to rank 1, one of a train of them."""
    buffer = np.zeros(nbytes, np.uint8)
    number = max(1, TRAIN_BYTES // nbytes)

    def train() -> None:
        for _ in range(number):
            if ring.rank == 0:
                ring.send(buffer, 1)
            elif ring.rank == 1:
                ring.recv(buffer, 0)

    return timed(train)[0] / number


def stream(nbytes: int) -> float:
    """Bytes a second of a plain TCP stream from rank 0 to rank 1, without MPI; the first 1/8 warms up."""
    comm = MPI.COMM_WORLD
    rate = 0.0
    if comm.rank == 1:
        with socket.create_server(("", PORT)) as server_socket:
            address = server_socket.getsockname()
            comm.bcast((own_address(), address[1]), root=1)
            connection, _ = server_socket.accept()
            with connection:
                got, begun, at_begin = 0, 0.0, 0
                while block := connection.recv(1 << 16):
                    got += len(block)
                    if not begun and got > nbytes // 8:
                        begun, at_begin = time.perf_counter(), got
                rate = (got - at_begin) / (time.perf_counter() - begun)
    else:
        where = comm.bcast(None, root=1)
        if comm.rank == 0:
            with socket.create_connection(where) as connection:
                connection.sendall(bytes(nbytes))
    return float(comm.bcast(rate, root=1))


def own_address() -> str:
    """This host's address: the one from which a packet to a neighbour would leave; none is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("10.77.0.254", 9))
        return str(probe.getsockname()[0])


def update_and_add(nbytes: int) -> tuple[float, float]:
    """Seconds, on each host alike, for a step of momentum over ``nbytes`` of parameters, and for one addition."""
    params, velocity, grads = (np.ones(nbytes // 4, np.float32) for _ in range(3))
    comm = MPI.COMM_WORLD
    updates, additions = [], []
    for _ in range(7):
        comm.Barrier()
        start = time.perf_counter()
        velocity *= 0.9
        velocity += grads
        params -= np.float32(0.1) * velocity
        middle = time.perf_counter()
        np.add(params, grads, out=params)
        end = time.perf_counter()
        updates.append(middle - start)
        additions.append(end - middle)
    found = comm.allgather((statistics.median(updates), statistics.median(additions)))
    return max(u for u, _ in found), max(a for _, a in found)


@contextmanager
def progress(path: str) -> Iterator[Callable[[float], None]]:
    """What rank 0 calls with the weight of each measurement when it is through."""
    if MPI.COMM_WORLD.rank != 0:
        yield lambda weight: None
        return
    with open(path, "a", encoding="utf-8", buffering=1) as file:
        yield lambda weight: print(weight, file=file)


def main() -> None:
    """One rank's part."""
    planned = json.loads(Path(sys.argv[1]).read_text())
    items = planned["items"]
    result: dict[str, Any] = {}
    with (
        mpiring.Ring() as ring,
        mpiring.Ring(message_bytes=CHUNK_BYTES) as cut,
        progress(planned["progress"]) as advance,
    ):
        if planned["stream"]:
            result["stream"] = stream(planned["stream"])
        if planned["points"]:
            rounds = [
                [message(ring, nbytes) for nbytes in planned["points"]]
                for _ in range(1 + planned["rounds"])
            ]
            medians = map(statistics.median, zip(*rounds[1:]))  # the first warms up
            result["points"] = list(zip(planned["points"], medians))
        if planned["update"]:
            result["update"], result["add"] = update_and_add(planned["update"])
        for item in items:
            measure(ring, cut, item, shrink=16)
        found: list[list[tuple[float, int, int]]] = []
        for _ in range(planned["rounds"]):
            found.append([])
            for item in items:
                found[-1].append(measure(ring, cut, item))
                advance(item["weight"])
    result["items"] = [
        {
            **item,
            "seconds": [seconds for seconds, _, _ in samples],
            "sent": statistics.median(sent for _, sent, _ in samples),
            "received": statistics.median(received for _, _, received in samples),
        }
        for item, samples in zip(items, zip(*found))
    ]
    if ring.rank == 0:
        Path(sys.argv[2]).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
