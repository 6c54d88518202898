"""Promise 1, in and out: any stride, offset, overlap and count; the input is not changed, nothing else written.

Values are fingerprints: rank r contributes ``8**r``, so a sum in octal has one digit for each rank.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mpiring import Ring

from ranks.reference import balanced, outcome, random_array, reduced, same_bits

ALGORITHMS = ("auto", "ring", "direct", "mpi")


def brought(rank: int, count: int) -> Any:
    """What a rank brings: its fingerprint, times the position, so that a misplaced element shows."""
    return 8**rank * np.arange(1, count + 1)


def total(size: int, count: int) -> Any:
    return sum(brought(rank, count) for rank in range(size))


def counts(size: int) -> list[int]:
    return [*range(2 * size + 2), 4 * size + 1]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_allreduce_of_every_small_count(comm, ring, algorithm):
    results = []
    for count in counts(comm.size):
        x = brought(comm.rank, count)
        results.append((count, ring.allreduce(x, algorithm=algorithm)))
        same_bits(x, brought(comm.rank, count), "x was changed")
        results.append((count, ring.allreduce(x, out=x, algorithm=algorithm)))
        assert results[-1][1] is x
    # The same in memory that all ranks of the node reach: views into one array.
    room = ring.empty((2, 8 * comm.size), "int64")
    there = "shared" if algorithm == "auto" else algorithm
    for count in counts(comm.size):
        x, out = room[0, 3 : 3 + count], room[1, :count]
        x[...], room[1] = brought(comm.rank, count), -1
        results.append((count, ring.allreduce(x, out=out, algorithm=there).copy()))
        same_bits(x, brought(comm.rank, count), "x was changed")
        assert (room[1, count:] == -1).all()
        results.append((count, ring.allreduce(x, out=x, algorithm=there).copy()))
    for count, result in results:
        same_bits(result, total(comm.size, count), count)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_reduce_scatter_of_every_small_count(comm, ring, algorithm):
    results = []
    for count in counts(comm.size):
        mine = balanced(count, comm.size)[comm.rank]
        x = brought(comm.rank, count)
        results.append((count, mine, ring.reduce_scatter(x, algorithm=algorithm)))
        out = np.zeros(mine.stop - mine.start, int)
        assert ring.reduce_scatter(x, out=out, algorithm=algorithm) is out
        results.append((count, mine, out))
        same_bits(x, brought(comm.rank, count), "x was changed")
        ring.reduce_scatter(x, out=x[mine], algorithm=algorithm)
        results.append((count, mine, x[mine].copy()))
        x[mine] = brought(comm.rank, count)[mine]
        same_bits(x, brought(comm.rank, count), "x was changed beside out")
    for count, mine, result in results:
        same_bits(result, total(comm.size, count)[mine], count)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_allgather_of_every_small_length(comm, ring, algorithm):
    results = []
    for count in counts(comm.size):
        # All of a length, and lengths that differ: 0, 1, 2, 0, ...
        for lengths in ([count] * comm.size, [r % 3 for r in range(comm.size)]):
            rows = [1000 * r + np.arange(n) for r, n in enumerate(lengths)]
            x = rows[comm.rank]
            expected = np.concatenate(rows)
            results.append((ring.allgather(x, algorithm=algorithm), expected))
            out = np.full(len(expected), -1)
            mine = out[sum(lengths[: comm.rank]) :][: lengths[comm.rank]]
            mine[...] = x
            assert ring.allgather(mine, out=out, algorithm=algorithm) is out
            results.append((out, expected))
            same_bits(x, rows[comm.rank], "x was changed")
    for result, expected in results:
        same_bits(result, expected)


def test_allgather_of_rows_keeps_the_other_dimensions(comm, ring):
    rows = [np.full((r % 3, 2, 3), r) + np.arange(3) for r in range(comm.size)]
    expected = np.concatenate(rows)
    wide = np.full((len(expected), 2, 6), -1)
    plain = ring.allgather(rows[comm.rank])
    turned = ring.allgather(np.asfortranarray(rows[comm.rank]), out=wide[:, :, ::2])
    none = ring.allgather(np.zeros((2, 0)))
    numbers = ring.allgather(np.array(comm.rank + 0.5))
    same_bits(plain, expected)
    assert (turned == expected).all() and (wide[:, :, 1::2] == -1).all()
    same_bits(none, np.zeros((2 * comm.size, 0)))
    same_bits(numbers, np.arange(comm.size) + 0.5)


def test_guards_around_an_output_stay(comm, ring):
    results = []
    for algorithm in ALGORITHMS:
        for shift in (0, 1, 3):
            raw = np.full(8 * 23 + 16, 99, "u1")
            out = raw[8 + shift :][: 8 * 23].view(int)
            ring.allreduce(brought(comm.rank, 23), out=out, algorithm=algorithm)
            results.append((raw, shift))
    for raw, shift in results:
        same_bits(
            raw[8 + shift :][: 8 * 23].view(int).copy(), total(comm.size, 23), shift
        )
        assert (raw[: 8 + shift] == 99).all() and (
            raw[8 + shift + 8 * 23 :] == 99
        ).all()


def test_inputs_that_cannot_be_written_or_share_places(comm, ring):
    fixed = brought(comm.rank, 7)
    fixed.flags.writeable = False
    one_place = np.broadcast_to(8**comm.rank, (2, 5))
    windows = np.lib.stride_tricks.sliding_window_view(brought(comm.rank, 6), 3)
    results = [ring.allreduce(x) for x in (fixed, one_place, windows)]
    ones = sum(8**r for r in range(comm.size))
    same_bits(results[0], total(comm.size, 7))
    same_bits(results[1], np.full((2, 5), ones))
    expected = np.lib.stride_tricks.sliding_window_view(total(comm.size, 6), 3)
    same_bits(results[2], np.ascontiguousarray(expected))


def test_other_byte_orders_and_scalars(comm, ring):
    swapped = np.dtype(int).newbyteorder()
    x = brought(comm.rank, 9).astype(swapped)
    out = np.zeros(9, swapped)
    native = ring.allreduce(x)
    assert ring.allreduce(x, out=out) is out
    assert ring.allreduce(x, out=x) is x
    scattered = ring.reduce_scatter(brought(comm.rank, 9).astype(swapped))
    gathered = ring.allgather(brought(comm.rank, 2).astype(swapped))
    same_bits(native, total(comm.size, 9))
    assert out.tolist() == x.tolist() == total(comm.size, 9).tolist()
    mine = balanced(9, comm.size)[comm.rank]
    same_bits(scattered, total(comm.size, 9)[mine])
    same_bits(gathered, np.concatenate([brought(r, 2) for r in range(comm.size)]))


@pytest.mark.limit(120)
@settings(max_examples=40)
@given(data=st.data())
def test_any_view_into_any_view(comm, agreed, data):
    """Basic indexing of arrays of up to three dimensions, transposed, as x and as out."""
    shape = data.draw(hnp.array_shapes(max_dims=3, min_side=0, max_side=5), "shape")
    index = data.draw(hnp.basic_indices(shape, allow_ellipsis=False), "index")
    order = data.draw(st.sampled_from("CF"), "order")
    algorithm = data.draw(st.sampled_from(ALGORITHMS[:3]), "algorithm")

    def base(rank: int) -> np.ndarray:
        return np.asarray(random_array("int64", shape, rank), order=order)

    x = np.asarray(base(comm.rank)[index]).T
    expected = reduced([np.asarray(base(r)[index]).T for r in range(comm.size)])
    field = np.full_like(base(0), 99)
    with Ring(comm) as ring:
        result = ring.allreduce(x, algorithm=algorithm)
        if isinstance(field[index], np.ndarray):
            ring.allreduce(x, out=field[index].T, algorithm=algorithm)
    with agreed():
        same_bits(result, np.ascontiguousarray(expected).reshape(expected.shape))
        rest = np.full_like(field, 99)
        if isinstance(field[index], np.ndarray):
            rest[index] = expected.T
        assert (field == rest).all()


@pytest.mark.limit(120)
@settings(max_examples=40)
@given(data=st.data())
def test_overlaps_give_the_right_answer_or_an_error(comm, agreed, data):
    """x and out are any two views of one buffer: forwards, backwards, interleaved."""
    count = data.draw(st.integers(1, 3 * comm.size), "count")
    steps = [data.draw(st.sampled_from((1, 2, 3, -1, -2)), "step") for _ in "xo"]
    starts = [data.draw(st.integers(0, count + 2), "start") for _ in "xo"]
    algorithm = data.draw(st.sampled_from(ALGORITHMS[:3]), "algorithm")
    collective = data.draw(st.sampled_from(("allreduce", "reduce_scatter")), "name")
    mine = balanced(count, comm.size)[comm.rank]
    length = count if collective == "allreduce" else mine.stop - mine.start

    def view(buffer: np.ndarray, which: int, length: int) -> np.ndarray:
        indices = starts[which] + abs(steps[which]) * np.arange(length)
        first, last = (indices[0], indices[-1]) if length else (0, -1)
        part = buffer[first : last + 1 : abs(steps[which])]
        return part[:: -1 if steps[which] < 0 else 1]

    buffers = [random_array("int64", 8 * count + 8, r) for r in range(comm.size)]
    expected = reduced([view(b, 0, count) for b in buffers])
    if collective == "reduce_scatter":
        expected = expected[mine]
    rest = buffers[comm.rank].copy()
    view(rest, 1, length)[...] = expected
    buffer = buffers[comm.rank]
    before = buffer.copy()
    with Ring(comm) as ring:
        x, out = view(buffer, 0, count), view(buffer, 1, length)
        call = getattr(ring, collective)
        kind, text = outcome(lambda: call(x, out=out, algorithm=algorithm))
        after = ring.allreduce(np.ones(3))
    with agreed():
        assert kind in ("", "ValueError"), text
        same_bits(buffer, before if kind else rest)
        same_bits(after, np.full(3, float(comm.size)))


def test_a_misplaced_segment_would_show(comm):
    """The fingerprints tell every segment from every other one."""
    right = total(comm.size, 4 * comm.size + 1)
    parts = [right[part] for part in balanced(len(right), comm.size)]
    for shift in range(1, comm.size):
        wrong = np.concatenate(parts[shift:] + parts[:shift])
        assert outcome(lambda: same_bits(wrong, right))[0] == "AssertionError"
