"""WHAT will happen: segments, schedules, their proof, their price, their picture.

Standard library only.

>>> from mpiring.plan import ring_allreduce, verify
>>> verify(ring_allreduce(4)).order_text(0)
'((x1 op x2) op x3) op x0'
"""

from ..errors import DeadlockError, ScheduleError
from .cost import (
    Bound,
    ClosedForm,
    Model,
    Price,
    algbw,
    bus_factor,
    busbw,
    closed_form,
    lower_bound,
    price,
)
from .draw import svg, table
from .frames import Frame, Message, frames
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
    "Action",
    "Bound",
    "COLLECTIVES",
    "ClosedForm",
    "DeadlockError",
    "Form",
    "Frame",
    "Message",
    "Model",
    "Price",
    "Proof",
    "Receive",
    "Schedule",
    "ScheduleError",
    "Segment",
    "Segments",
    "Send",
    "Step",
    "algbw",
    "bus_factor",
    "busbw",
    "closed_form",
    "direct_allgather",
    "direct_allreduce",
    "direct_reduce_scatter",
    "frames",
    "from_steps",
    "lower_bound",
    "price",
    "ring_allgather",
    "ring_allreduce",
    "ring_reduce_scatter",
    "schedule",
    "svg",
    "table",
    "verify",
]
