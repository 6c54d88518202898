"""All-reduces of buffers in a GPU's memory, against the card's copies and what else there is.

    mpirun -n 2 python -m mpi4py lab/device.py --out docs/gpu

Every rank takes a GPU (:func:`mpiring.choose_device`), or shares one.  Measured are the ring's all-reduce of device
memory, staged and, where the MPI takes device memory, direct; the same of host memory; the MPI's own all-reduce of
copies on the host; NCCL's, where each rank has a GPU of its own; and copies on the device and to and from pinned host
memory, which all ranks make at the same time.  The columns are those of nccl-tests:

    algbw   bytes of the buffer / time
    busbw   algbw * 2 (K - 1) / K: bytes through each rank's link, were it a ring; copies have none
    #wrong  elements that differ from the exact result, in all rounds and on all ranks

Rules: the first round warms up and does not count; rounds are interleaved, so what disturbs the machine for a while
disturbs all ways; a time runs from the first rank's start to the last one's end, the device's work included; a figure
is the median of all rounds.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import re
import sys
from pathlib import Path
from typing import Any

import mpiring

CHOSEN = (
    mpiring.choose_device()
)  # before MPI starts: one that takes device memory starts CUDA

from mpi4py import MPI  # noqa: E402

from mpiring.cli.quantities import argument, as_bytes, bytes_text  # noqa: E402
from mpiring.wire.settings.packages import CUPY, install  # noqa: E402

import cards  # noqa: E402
import device_cases  # noqa: E402
import device_report  # noqa: E402
import measure  # noqa: E402
from device_cases import Buffers, Case, Ways  # noqa: E402

Row = dict[str, Any]

SIZES = "64Ki 256Ki 1Mi 4Mi 16Mi 64Mi 256Mi".split()
LITTLE = 4 << 20  # bytes that short buffers move in a round, with several calls
MOST_CALLS = 8


def main() -> int:
    """One rank's part; the exit status is 1 if anything was wrong."""
    comm = MPI.COMM_WORLD
    args = comm.bcast(read_arguments() if comm.rank == 0 else None)
    if not isinstance(args, argparse.Namespace):
        return int(args)
    cupy, problem = find_cupy(comm)
    if problem:
        if comm.rank == 0:
            print(f"lab/device.py: {problem}", file=sys.stderr)
        return 2
    machine = about(cupy, comm)
    with mpiring.Ring(comm) as default:
        decided = default.device_transport
        direct = default if decided.transport == "direct" else None
        nccl, no_nccl = device_cases.find_nccl(comm, machine["cards"])
        missing = {device_cases.NCCL: no_nccl} if no_nccl else {}
        if direct is None:
            missing[device_cases.DIRECT] = decided.why
        with mpiring.Ring(comm, device_transport="staged") as staged:
            ways = Ways(staged, direct, nccl, missing)
            rows = measure_all(cupy, comm, args, ways)
    machine |= {"transport": decided.transport, "why": decided.why, "missing": missing}
    if comm.rank == 0:
        text = "\n".join(device_report.lines(machine, rows))
        print(text)
        if args.out is not None:
            write(args.out, machine, rows, text)
    return 1 if any(row["wrong"] for row in rows) else 0


def read_arguments() -> argparse.Namespace | int:
    """The command line, or the status to end with."""
    parser = argparse.ArgumentParser(
        usage="mpirun -n 2 python -m mpi4py lab/device.py [options]",
        description="Measure all-reduces of buffers in a GPU's memory.",
    )
    add, size = parser.add_argument, argument(as_bytes)
    add("--sizes", nargs="+", type=size, default=[as_bytes(text) for text in SIZES],
        metavar="BYTES", help=f"of a buffer (default: {' '.join(SIZES)})")  # fmt: skip
    add("--dtypes", nargs="+", choices=device_cases.EXACT, default=list(device_cases.EXACT),
        help="(default: all)")  # fmt: skip
    add("--rounds", type=int, default=7, help="that count (default: 7)")
    add("--out", type=Path, metavar="FOLDER",
        help="where the figures go too, as JSON and as Markdown (docs/gpu, say)")  # fmt: skip
    try:
        args = parser.parse_args()
        if args.rounds < 1:
            parser.error(f"--rounds must be 1 or more, got {args.rounds}")
    except SystemExit as leaving:
        return int(leaving.code or 0)
    return args


def find_cupy(comm: MPI.Intracomm) -> tuple[Any, str]:
    """CuPy with a GPU on every rank, or what is missing."""
    cupy, problem = import_cupy()
    if comm.size < 2:
        problem = "needs 2 ranks or more: mpirun -n 2 python -m mpi4py lab/device.py"
    problems = [told for told in comm.allgather(problem) if told]
    return cupy, problems[0] if problems else ""


def import_cupy() -> tuple[Any, str]:
    """CuPy, or what is missing here."""
    try:
        import cupy
    except ImportError:
        return (
            None,
            f"CuPy is not installed: {' or '.join(map(install, CUPY.values()))}",
        )
    if not cupy.cuda.is_available():
        return None, cards.ask().problem or "CuPy finds no GPU"
    return cupy, ""


# ---- measuring --------------------------------------------------------------------------------------


def measure_all(
    cupy: Any, comm: MPI.Intracomm, args: argparse.Namespace, ways: Ways
) -> list[Row]:
    """A row for each way, dtype and size."""
    rows: list[Row] = []
    for dtype in args.dtypes:
        for nbytes in args.sizes:
            buffers = Buffers(cupy, comm, dtype, nbytes)
            rows += measure_size(comm, buffers, ways, args.rounds)
            if comm.rank == 0:
                told = f"{dtype} {bytes_text(nbytes)}: done"
                print(told, file=sys.stderr, flush=True)
            del buffers
            cupy.get_default_memory_pool().free_all_blocks()
            cupy.get_default_pinned_memory_pool().free_all_blocks()
    return rows


def measure_size(
    comm: MPI.Intracomm, buffers: Buffers, ways: Ways, rounds: int
) -> list[Row]:
    """Interleaved rounds of all ways with these buffers; the first one warms up."""
    found = list(device_cases.cases(buffers, ways))
    calls = max(1, min(MOST_CALLS, LITTLE // max(1, buffers.nbytes)))
    rows: list[Row] = [
        {
            "way": case.name,
            "in_place": case.in_place,
            "dtype": buffers.dtype,
            "nbytes": buffers.nbytes,
            "seconds": [],
            "wrong": 0,
        }
        for case in found
    ]
    for turn in range(1 + rounds):
        for row, case in zip(rows, found):
            for _ in range(calls):
                seconds, wrong = measure_call(buffers, case)
                row["wrong"] += wrong
                if turn:
                    row["seconds"].append(seconds)
    for row in rows:
        row["wrong"] = comm.allreduce(row["wrong"])
    return rows


def measure_call(buffers: Buffers, case: Case) -> tuple[float, int]:
    """Seconds of one call, the same on every rank, and how many elements are wrong here."""
    case.prepare()
    buffers.synchronize()

    def call() -> None:
        case.call()
        buffers.synchronize()

    return measure.elapsed(call), case.wrong()


# ---- telling ----------------------------------------------------------------------------------------


def about(cupy: Any, comm: MPI.Intracomm) -> Row:
    """The card, what drives it, and the job."""
    runtime = cupy.cuda.runtime
    properties = runtime.getDeviceProperties(runtime.getDevice())
    places = comm.allgather((MPI.Get_processor_name(), CHOSEN))
    version = MPI.Get_library_version().split("\n")[0].strip("\0 ")
    command = ["mpirun", "-n", str(comm.size), "python", "-m", "mpi4py", *sys.argv]
    return {
        "card": properties["name"].decode(),
        "cards": len(set(places)),
        "ranks": comm.size,
        "hosts": len({host for host, _ in places}),
        "driver": driver_version(),
        "driver_cuda": cuda_text(runtime.driverGetVersion()),
        "cuda": cuda_text(runtime.runtimeGetVersion()),
        "cupy": cupy.__version__,
        "mpi": version.split(",")[0],
        "mpiring": mpiring.__version__,
        "python": platform.python_version(),
        "date": datetime.date.today().isoformat(),
        "command": " ".join(command),
    }


def cuda_text(number: int) -> str:
    """CUDA's version from its number.

    >>> cuda_text(12080), cuda_text(13000)
    ('12.8', '13.0')
    """
    return f"{number // 1000}.{number % 1000 // 10}"


def driver_version(path: Path = Path("/proc/driver/nvidia/version")) -> str:
    """The driver's own version, where the kernel tells it."""
    try:
        found = re.search(r"\s(\d+\.\d+(\.\d+)?)\s", path.read_text())
    except OSError:
        found = None
    return found[1] if found else "unknown"


def write(folder: Path, machine: Row, rows: list[Row], text: str) -> None:
    """The figures as JSON and as Markdown, under a name that says card and ranks."""
    folder.mkdir(parents=True, exist_ok=True)
    card = re.sub(r"[^a-z0-9]+", "-", machine["card"].lower()).strip("-")
    name = f"{card}-{machine['ranks']}-ranks"
    content = {"machine": machine, "rows": rows}
    (folder / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")
    title = f"# All-reduces on {machine['card']}, {machine['ranks']} ranks"
    (folder / f"{name}.md").write_text(f"{title}\n\n{text}\n")
    print(f"\nwritten: {folder / name}.json and .md")


if __name__ == "__main__":
    sys.exit(main())
