"""What stays in memory until MPI is finalised, because MPI or another rank may still read it or write to it.

A request that is never waited for, and an array whose address another rank knows, outlive whoever made them.  mpi4py
finalises MPI when the interpreter has gone: after the globals of all modules have been cleared, so that a list in one
of them is no place to keep such things.  Here they hang on a dictionary that owns a reference to itself which nobody
gives back; neither the end of a module nor the garbage collector takes it away.
"""

from __future__ import annotations

import ctypes

_kept: dict[int, object] = {}
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_kept))


def keep_alive(thing: object) -> None:
    """Hold something, and all that it refers to, until :func:`let_go` or the end of the process."""
    _kept[id(thing)] = thing


def let_go(thing: object) -> None:
    """Hold it no more: nobody else uses it now.  Of what was not held there is nothing to do."""
    _kept.pop(id(thing), None)
