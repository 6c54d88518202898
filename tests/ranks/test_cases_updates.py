"""B38: an update of a parameter server is taken whole, or not at all, whatever it moves and whatever does not fit."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from mpiring import ParameterServer

from ranks.reference import outcome, same_bits

MODES = pytest.mark.parametrize("mode", ["sync", "async"])
several = pytest.mark.ranks(2, 3, 5)


def served(comm, ring, params, update, mode) -> dict[str, Any]:
    """What the parameters are on the server after one push, of worker 1 alone, has been applied."""
    server = ParameterServer(ring, params, update, mode=mode)
    if comm.rank == 0:
        return server.serve()
    if comm.rank == 1:
        server.push({"a": np.full_like(params["a"], 0.5)})
    server.done()
    return {}


@several
@MODES
@pytest.mark.parametrize("shape", [(), (1,), (3,), (40_000,)])
def test_b38_an_update_that_moves_parameters(comm, ring, mode, shape):
    def update(p, g):
        p["b"] = p["a"]
        p["a"] = p["a"] - g["a"]

    final = served(
        comm, ring, {"a": np.ones(shape), "b": np.zeros(shape)}, update, mode
    )
    if comm.rank == 0:
        same_bits(final["a"], np.full(shape, 0.5))
        same_bits(final["b"], np.full(shape, 1.0))


def swap(p, g):
    p["a"], p["b"] = p["b"], p["a"]


def swap_returned(p, g):
    return {"b": p["a"], "a": p["b"]}


def rotate_across_dtypes(p, g):
    p["a"], p["b"], p["c"], p["d"] = p["d"], p["a"], p["b"], p["c"]


def part_of_another(p, g):
    p["long"], p["small"] = np.arange(6.0) * 100, p["long"][1:4]


def overlapping_parts(p, g):
    p["a"], p["b"] = p["b"].base[1:4], p["b"].base[2:5]


def backwards(p, g):
    p["a"] = p["a"][::-1]
    p["long"] = p["long"][::-1]


def in_place_and_moved(p, g):
    p["b"] = p["a"]  # the same array, not what is in it
    p["a"] -= 1


def in_place_and_all_returned(p, g):
    p["a"] -= 1
    return p


def one_for_two(p, g):
    p["a"] = p["b"] = p["small"]


def one_part_broadcast(p, g):
    p["b"] = np.broadcast_to(p["a"][2:], (3,))
    p["a"] = p["a"] * 2


def gradients_kept(p, g):
    p["b"] = g["a"]


MOVES: dict[Any, dict[str, list[float]]] = {
    swap: {"a": [10, 20, 30], "b": [1, 2, 3]},
    swap_returned: {"a": [10, 20, 30], "b": [1, 2, 3]},
    rotate_across_dtypes: {
        "a": [7, 8, 9],
        "b": [1, 2, 3],
        "c": [10, 20, 30],
        "d": [4, 5, 6],
    },
    part_of_another: {"long": [0, 100, 200, 300, 400, 500], "small": [12, 13, 14]},
    overlapping_parts: {"a": [2, 3, 10], "b": [3, 10, 20]},
    backwards: {"a": [3, 2, 1], "long": [16, 15, 14, 13, 12, 11]},
    in_place_and_moved: {"a": [0, 1, 2], "b": [0, 1, 2]},
    in_place_and_all_returned: {"a": [0, 1, 2]},
    one_for_two: {"a": [-1, -2, -3], "b": [-1, -2, -3]},
    one_part_broadcast: {"a": [2, 4, 6], "b": [3, 3, 3]},
    gradients_kept: {"b": [0.5, 0.5, 0.5]},
}
START = {
    "a": np.array([1.0, 2, 3]),
    "b": np.array([10.0, 20, 30]),
    "c": np.array([4, 5, 6], "f4"),
    "d": np.array([7, 8, 9], "i8"),
    "long": np.arange(11.0, 17.0),
    "small": np.array([-1.0, -2, -3]),
}


@pytest.mark.ranks(2, 3)
@MODES
@pytest.mark.parametrize("update", MOVES, ids=lambda update: update.__name__)
def test_b38_all_is_taken_before_anything_is_written(comm, ring, mode, update):
    final = served(comm, ring, START, update, mode)
    expected = {**START, **MOVES[update]}
    for name, array in final.items():
        same_bits(array, np.asarray(expected[name], START[name].dtype), name)


# dtype, what an update gives, and how the message has it
MISFITS: list[tuple[Any, Any, str]] = [
    ("i8", 9.5, "9.5"),
    ("i8", float("nan"), "nan"),
    ("i8", float("-inf"), "-inf"),
    ("i8", 2**63, "9223372036854775808"),
    ("i8", 2.0**63, "9.223372036854776e+18"),
    ("i8", 2**70, "int64 cannot hold 1180591620717411303424"),
    ("i8", np.float16(0.5), "0.5"),
    ("u1", 300, "300"),
    ("u1", -1, "-1"),
    ("u8", -1, "-1"),
    ("u8", np.int64(-5), "-5"),
    ("i4", np.uint32(2**31), "2147483648"),
    ("f8", 10 + 1j, "(10+1j)"),
    ("f4", np.complex64(2j), "2j"),
    ("i2", 1j, "1j"),
    ("f4", 1e39, "1e+39"),
    ("f2", 70000.0, "70000.0"),
    ("f2", 70000, "70000"),
    ("f8", 10**400, "int too large to convert to float"),
    (ml_dtypes.bfloat16, 1e39, "1e+39"),
    ("c8", 1e39, "1e+39"),
]


@pytest.mark.ranks(2, 3)
@MODES
@pytest.mark.parametrize("is_array", [False, True])
def test_b38_what_does_not_fit_is_an_error_and_nothing_is_lost(
    comm, ring, mode, is_array
):
    told: list[tuple[tuple[str, str], Any, Any]] = []
    for dtype, value, _ in MISFITS:
        params = {
            "a": np.full(2, 5.0),
            "n": np.full((2, 2) if is_array else (), 7, dtype),
            "z": np.full(3, 9.0),
        }

        def update(p, g):
            p["a"] -= 1  # in place, so it has happened when the rest turns out wrong
            p["z"] = p["z"] * 2
            p["n"] = [[1, 2], [value, 4]] if is_array else value

        server = ParameterServer(ring, params, update, mode=mode)
        if comm.rank == 0:
            told.append((outcome(server.serve), server.params, params))
            continue
        error = outcome(lambda: (comm.rank == 1 and server.push({}), server.done()))
        told.append((error, None, None))
    for (_, value, words), ((kind, text), after, before) in zip(MISFITS, told):
        if comm.rank > 1 and mode == "async" and not text:
            continue  # it was done before it happened
        assert "update: gave " in text and " for n" in text, (value, text)
        where = " at [1, 0]" if is_array and "too large" not in words else ""
        assert words + where in text, (value, text)
        assert kind == ("ValueError" if comm.rank == 0 else "RingError"), text
        if comm.rank == 0:
            for name in before:
                same_bits(after[name], before[name], (value, name))
        else:
            assert "the update raised on rank 0: ValueError: " in text


FITS: list[tuple[Any, Any, Any]] = [
    ("i8", 9.0, 9),
    ("i8", np.float32(3), 3),
    ("i8", True, 1),
    ("i8", -(2**63), -(2**63)),
    ("i8", -(2.0**63), -(2**63)),
    ("u8", 2**64 - 1, 2**64 - 1),
    ("u1", 255, 255),
    ("i2", 4 + 0j, 4),
    ("f8", 10 + 0j, 10.0),
    ("f8", 2**70, 2.0**70),
    ("f8", float("inf"), float("inf")),
    ("f4", 0.1, np.float32(0.1)),
    ("f4", -float("inf"), -float("inf")),
    ("f4", float("nan"), float("nan")),
    ("f4", 2**24 + 1, 2.0**24),
    ("f2", 65504.0, 65504.0),
    ("f2", 1e-30, 0.0),
    (ml_dtypes.bfloat16, 1.001, 1.0),
    ("c8", 3, 3 + 0j),
]


@pytest.mark.ranks(2)
def test_b38_what_fits_is_taken(comm, ring):
    for is_array in (False, True):
        params = {
            str(i): np.zeros((2,) if is_array else (), dtype)
            for i, (dtype, _, _) in enumerate(FITS)
        }

        def update(p, g):
            for i, (_, value, _) in enumerate(FITS):
                p[str(i)] = [1, value] if is_array else value

        server = ParameterServer(ring, params, update)
        if comm.rank:
            server.push({})
            server.done()
            continue
        final = server.serve()
        for i, (dtype, value, taken) in enumerate(FITS):
            expected = np.array([1, taken] if is_array else taken, dtype)
            same_bits(final[str(i)], expected, (dtype, value))


@several
@MODES
@pytest.mark.parametrize("fault", ["raises", "text", "no array", "masked", "no map"])
def test_b38_whatever_goes_wrong_in_an_update_changes_nothing(comm, ring, mode, fault):
    def update(p, g):
        p["a"] += 1
        p["b"][...] = 99
        if fault == "raises":
            raise LookupError("boom-17")
        if fault == "no map":
            return 5
        p["b"] = {
            "text": np.array(["1", "2"]),
            "no array": object(),
            "masked": np.ma.masked_array(np.ones(2)),
        }[fault]

    params = {"a": np.full(2, 5), "b": np.full(2, 7.0)}
    server = ParameterServer(ring, params, update, mode=mode)
    if comm.rank == 0:
        kind, text = outcome(server.serve)
        for name, array in server.params.items():
            same_bits(array, params[name])
        again = outcome(server.serve)
        assert kind == ("LookupError" if fault == "raises" else "TypeError"), text
        assert fault == "raises" or text.startswith("update: "), text
        assert fault in ("raises", "no map") or " for b" in text, text
        assert again[0] == "RingError" and kind in again[1], again
    else:
        if comm.rank == 1:
            server.push({"a": np.ones(2, int)})
        kind, text = outcome(server.done)
        was_done = comm.rank > 1 and mode == "async" and not text
        assert was_done or "the update raised on rank 0: " in text, text
    assert ring.allreduce(8**comm.rank) == int("1" * comm.size, base=8)


@pytest.mark.ranks(2, 3)
@MODES
def test_b38_arrays_of_a_server_keep_their_memory(comm, ring, mode):
    """Who has ``server.params`` before, as an optimizer has, sees what the updates do; and writes them."""
    mine: dict[str, Any] = {}

    def update(p, g):
        mine["a"] -= 1

    server = ParameterServer(ring, START, update, mode=mode)
    if comm.rank == 0:
        mine.update(server.params)
        final = server.serve()
        assert mine["a"].tolist() == [0, 1, 2] and final["a"].tolist() == [0, 1, 2]
    else:
        if comm.rank == 1:
            server.push({})
        server.done()
