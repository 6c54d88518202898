"""For cases on a device: a ring whose collectives are programs to ``yield from``, and a kernel that takes long."""

from __future__ import annotations


class Programs:
    """A :class:`mpiring.Ring` whose calls are programs.

    Args:
        ring: with one member a process.
        many: elements that are many.
        repeats: how often to try what has to repeat.
    """

    def __init__(self, ring, many, repeats):
        self._ring = ring
        self.rank, self.size = ring.rank, ring.size
        self.many, self.repeats = many, repeats

    def __getattr__(self, name):
        def program(*args, **kwargs):
            return getattr(self._ring, name)(*args, **kwargs)
            yield

        return program

    def exchange(self, *messages):
        """Messages ``(True, x, dest, tag)`` and ``(False, out, source, tag)`` of one group."""
        with self._ring.group():
            for is_send, array, peer, tag in messages:
                post = self._ring.send if is_send else self._ring.recv
                post(array, peer, tag)
        return
        yield


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


def drive(program):
    """Run a case to its end."""
    assert list(program) == []
