"""A kernel that takes long, on a card and on the pretended device: what is queued behind it is still to be done."""

from __future__ import annotations


def slow_copy(cupy, turns):
    """``copy(x, y)``: a kernel that takes long to give ``y`` the float32 numbers of ``x``.

    Args:
        turns: of its loop, which no compiler may leave out: ``z`` might become NaN.
    """
    kernel = cupy.ElementwiseKernel(
        "float32 x, int32 turns",
        "float32 y",
        "float z = x; for (int k = 0; k < turns; ++k) z = (z + x) * 0.5f; y = z != z ? z : x",
        "mpiring_test_slow_copy",
    )
    return lambda x, y: kernel(x, turns, y)
