"""Run a schedule over a transport: the lecture's loops, for any schedule.

Each step is what the lecture's C does in one turn of its loop.  For a step of the ring:

===================================================  ==============================================
the lecture's C                                      here
===================================================  ==============================================
``MPI_Irecv(buffer, ..., recv_from, ...)``           ``recv_req = transport.irecv(buffer, recv_from)``
``MPI_Send(segment_send, ..., send_to, ...)``        ``isend`` and ``yield from wait(send_req)``
``MPI_Wait(&recv_req, ...)``                         ``yield from wait(recv_req)``
``reduce(segment_update, buffer, ...)``              ``memory.combine(...)``
``MPI_Sendrecv(segment_send, ..., segment_recv)``    the same, ``buffer`` being ``segment_recv`` itself
===================================================  ==============================================

A step may have several sends and receives; all receives are posted before any send, and all are complete
before anything is combined, as :mod:`mpiring.plan.schedules` defines a step.
"""

from __future__ import annotations

from collections.abc import Callable

from ...plan.schedules import Step
from ..transport.position import Position
from ..transport.protocol import Program, Transport, wait
from .memory import Memory

AfterStep = Callable[[int, Step], None]


def execute(
    memory: Memory,
    transport: Transport,
    tag: int,
    position: Position,
    after_step: AfterStep | None = None,
) -> Program[None]:
    """Do one rank's part of a schedule.

    Args:
        memory: the rank's steps, and where the segments live.
        transport: carries the messages.
        tag: of all messages.
        position: kept up to date.
        after_step: called with each step and its number when this rank has completed it, for those who
            want to watch; it may look at the buffers, and must not block or change them.
    """
    kind, program = memory.kind, memory.program
    position.phase = f"{program.schedule.algorithm} {program.schedule.collective}"
    for number, step in enumerate(program.steps):
        position.step = number
        buffers = memory.incoming(step.receives)
        recv_reqs = [
            transport.irecv(kind.message(buffer), receive.peer, tag)
            for buffer, receive in zip(buffers, step.receives)
        ]
        send_reqs = [
            transport.isend(kind.message(memory.outgoing(send)), send.peer, tag)
            for send in step.sends
        ]
        for send_req, send in zip(send_reqs, step.sends):
            position.segment = send.segment
            yield from wait(send_req)
        for recv_req, receive in zip(recv_reqs, step.receives):
            position.segment = receive.segment
            yield from wait(recv_req)
        in_use = [*(receive.segment for receive in step.receives), *step.finishes]
        memory.forget(program.dead[number], except_for=in_use)
        memory.combine(step.receives, buffers)
        memory.finish(step.finishes)
        memory.forget(program.dead[number])
        if after_step is not None:
            after_step(number, step)
