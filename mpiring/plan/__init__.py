"""WHAT will happen: segments, schedules, their proof.  Standard library only.

>>> from mpiring.plan import ring_allreduce, verify
>>> verify(ring_allreduce(4)).order_text(0)
'((x1 op x2) op x3) op x0'
"""

from ..errors import DeadlockError, ScheduleError
from .schedules import (
    ALGORITHMS,
    COLLECTIVES,
    Action,
    Form,
    Receive,
    Schedule,
    Send,
    Step,
    direct_allgather,
    direct_allreduce,
    direct_reduce_scatter,
    from_steps,
    ring_allgather,
    ring_allreduce,
    ring_reduce_scatter,
    schedule,
)
from .segments import Segment, Segments
from .verify import Proof, verify

__all__ = [
    "ALGORITHMS",
    "COLLECTIVES",
    "Action",
    "DeadlockError",
    "Form",
    "Proof",
    "Receive",
    "Schedule",
    "ScheduleError",
    "Segment",
    "Segments",
    "Send",
    "Step",
    "direct_allgather",
    "direct_allreduce",
    "direct_reduce_scatter",
    "from_steps",
    "ring_allgather",
    "ring_allreduce",
    "ring_reduce_scatter",
    "schedule",
    "verify",
]
