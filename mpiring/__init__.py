"""Ring all-reduce over MPI: schedules as data, proven, priced, drawn and run.

The public names load when first used: importing ``mpiring`` starts no MPI, no NumPy and no CUDA.

Glossary
    rank, size
        who a process is in its communicator, and of how many; MPI's words.
    segment
        one of ``size`` contiguous pieces of a flat buffer; segment r is the home of rank r.
    chunk
        a piece of a segment, for pipelining.
    step
        one exchange.
    phase
        reduce-scatter or allgather.
    schedule
        one collective as data: which segment goes where at which step.
    bucket
        several gradients in one flat buffer.
    scratch
        memory that a ring keeps for its next call.
    algbw, busbw
        bytes over time, and the same corrected by the collective's factor, as nccl-tests defines them.
    alpha, beta, gamma
        seconds for a message, for a byte moved, for a byte reduced.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .device import choose_device, local_rank
    from .errors import DeadlockError, RingError, RingTimeout, ScheduleError
    from .ring import Ring
    from .training.gradients import average_gradients
    from .training.parameter_server import ParameterServer
    from .wire.ring.operations import Work

__version__ = "0.1.0"

_HOMES = {
    "DeadlockError": ".errors",
    "ParameterServer": ".training.parameter_server",
    "Ring": ".ring",
    "RingError": ".errors",
    "RingTimeout": ".errors",
    "ScheduleError": ".errors",
    "Work": ".wire.ring.operations",
    "average_gradients": ".training.gradients",
    "choose_device": ".device",
    "local_rank": ".device",
    "plan": ".plan",
}

_NEED_MPI = ("ParameterServer", "Ring", "Work", "average_gradients")

__all__ = [
    "DeadlockError",
    "ParameterServer",
    "Ring",
    "RingError",
    "RingTimeout",
    "ScheduleError",
    "Work",
    "average_gradients",
    "choose_device",
    "local_rank",
    "plan",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'mpiring' has no attribute {name!r}")
    if name in _NEED_MPI:
        from .wire.settings.packages import need_mpi

        need_mpi(f"mpiring.{name}")
    module = import_module(home, __name__)
    value = module if name == "plan" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
