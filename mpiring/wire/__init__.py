"""HOW a schedule happens, in folders that each use only those above them in this list:

* ``settings``: the numbers that paths depend on, and where they come from;
* ``reduce``: what an operation means, and kernels;
* ``arrays``: the kinds of array, and nobody else knows them;
* ``gpu_aware``: may device pointers be handed to MPI?
* ``transport``: moving bytes;
* ``opening``: do all ranks mean the same call?  And the member that the rest stands on;
* ``node``: memory that the ranks of a host share;
* ``execute``: runs a schedule;
* ``collectives``: the collectives of one rank;
* ``ring``: a ring's life, its calls in order, and its messages.
"""
