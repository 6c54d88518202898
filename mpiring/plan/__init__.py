"""WHAT will happen: segments, schedules, their proof, their price, their picture.

Standard library only.

>>> from mpiring.plan import ring_allreduce, verify
>>> verify(ring_allreduce(4)).order_text(0)
'((x1 op x2) op x3) op x0'
"""

from ..errors import DeadlockError, ScheduleError
from .bounds import Bound, algbw, bus_factor, busbw, lower_bound
from .catalog import ALGORITHMS, algorithms, schedule
from .choice import Choice, best_segments, choices, crossings, winner
from .cost import Model, Price, price
from .draw import svg, table
from .fit import Fit, fit
from .formulas import ClosedForm, closed_form, server_form
from .frames import Frame, Message, frames
from .rooted import chain_broadcast, chain_reduce, star_broadcast, star_reduce
from .schedules import (
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
)
from .segments import Segment, Segments
from .verify import Proof, verify

__all__ = [
    "ALGORITHMS",
    "Action",
    "Bound",
    "COLLECTIVES",
    "Choice",
    "ClosedForm",
    "DeadlockError",
    "Fit",
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
    "algorithms",
    "best_segments",
    "bus_factor",
    "busbw",
    "chain_broadcast",
    "chain_reduce",
    "choices",
    "closed_form",
    "crossings",
    "direct_allgather",
    "direct_allreduce",
    "direct_reduce_scatter",
    "fit",
    "frames",
    "from_steps",
    "lower_bound",
    "price",
    "ring_allgather",
    "ring_allreduce",
    "ring_reduce_scatter",
    "schedule",
    "server_form",
    "star_broadcast",
    "star_reduce",
    "svg",
    "table",
    "verify",
    "winner",
]
