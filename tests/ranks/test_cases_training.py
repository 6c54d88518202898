"""Cases people ran into with what is built on the ring: gradients by name, and a parameter server."""

from __future__ import annotations

import copy
import enum
import pickle
from collections import Counter, OrderedDict, defaultdict, namedtuple
from typing import Any, NamedTuple

import numpy as np
import pytest
from mpi4py import MPI

from mpiring import ParameterServer, Ring, average_gradients, plan

from ranks.reference import outcome, same_bits
from ranks.test_cases import raised_everywhere
from ranks.test_promise_6_no_silent_hang import meet, timed_out

MODES = pytest.mark.parametrize("mode", ["sync", "async"])
several = pytest.mark.ranks(2, 3, 5)

# ---- B39: an operation as an object -----------------------------------------------------------------


class Op(str, enum.Enum):
    """As a program may name its operations: ``str(Op.SUM)`` is not "sum"."""

    SUM = "sum"
    MAX = "max"


OPS = [
    (MPI.SUM, "sum"),
    (MPI.PROD, "prod"),
    (MPI.MIN, "min"),
    (MPI.MAX, "max"),
    (Op.SUM, "sum"),
    (np.str_("max"), "max"),
]


@pytest.mark.parametrize("op, name", OPS, ids=range(len(OPS)))
def test_b39_an_operation_as_an_object(comm, ring, op, name):
    """It is as good as its name, be it the name on other ranks."""
    grads = {"w": np.full(3, 2.0 + comm.rank), "n": np.full(2, comm.rank - 1)}
    mixed = op if comm.rank % 2 else name
    schedule = plan.ring_allreduce(comm.size)
    results = [
        [
            average_gradients(grads, ring, op=which)["w"],
            average_gradients(grads, ring, op=which)["n"],
            *(ring.allreduce(grads[n], which) for n in grads),
            *(ring.allreduce(np.full(5000, 1.0 + comm.rank), which) for _ in range(3)),
            ring.reduce_scatter(grads["w"], which),
            ring.reduce(grads["w"], which),
            ring.run(schedule, grads["w"], which),
        ]
        for which in (name, op, mixed)
    ]
    for one, other, third in zip(*results):
        if one is None:
            assert other is None and third is None
            continue
        same_bits(other, one)
        same_bits(third, one)


NO_OPS = [MPI.LAND, MPI.OP_NULL, object(), None, 3, ["sum"], np.array(["sum", "max"])]


def test_b39_complex_with_max_names_the_gradient(comm, ring):
    grads = {"w": np.ones(3), "spectrum": np.ones(2, "c16")}
    for op in (MPI.MAX, "max", MPI.MIN, Op.MAX):
        call = lambda: average_gradients(grads, ring, op=op)  # noqa: E731
        words = ("gradient ['spectrum']", "complex128", "complex numbers have no order")
        raised_everywhere(comm, ring, call, "TypeError", *words)


@pytest.mark.parametrize("op", NO_OPS, ids=range(len(NO_OPS)))
def test_b39_a_wrong_operation(comm, ring, op):
    """The same everywhere: no text of it has a place in memory that differs between ranks."""
    x, name = np.ones(3), plan.ring_allreduce(comm.size)
    calls = [
        lambda: average_gradients([x], ring, op=op),
        lambda: average_gradients([None], ring, op=op),
        lambda: average_gradients([], ring, op=op),
        lambda: ring.allreduce(x, op),
        lambda: ring.reduce_scatter(x, op),
        lambda: ring.reduce(x, op),
        lambda: ring.run(name, x, op),
    ]
    for call in calls:
        raised_everywhere(
            comm, ring, call, "ValueError", "unknown op", "known: sum, prod"
        )
    mine = op if comm.rank == comm.size - 1 else "sum"
    call = lambda: average_gradients([x], ring, op=mine)  # noqa: E731
    raised_everywhere(
        comm, ring, call, "ValueError", "unknown op", f"rank {comm.size - 1}"
    )


class How(str, enum.Enum):
    """What a program may call other arguments that are names."""

    RANK = "rank"
    DIRECT = "direct"
    ASYNC = "async"


@pytest.mark.parametrize("order", [How.RANK, "rank"])
def test_b39_other_names_as_objects(comm, ring, order):
    """On some ranks only: they mean the same."""
    mine: dict[str, Any] = {"order": order if comm.rank else "rank"}
    algorithm: Any = How.DIRECT if comm.rank else "direct"
    x = np.full(3, 8.0**comm.rank)
    results = [
        average_gradients([x], ring, op="sum", **mine)[0],
        ring.allreduce(x, algorithm=algorithm, **mine),
        ring.allgather(ring.reduce_scatter(x, algorithm=algorithm, **mine)),
        ring.broadcast(ring.allreduce(x), algorithm=algorithm),
        ring.allgather(x[:1], algorithm=algorithm).sum().repeat(3),
    ]
    ring.reduce(x, algorithm=algorithm, **mine)
    if comm.size > 1:
        mode: Any = How.ASYNC if comm.rank else "async"
        server = ParameterServer(ring, {"w": x}, print, mode=mode)
        _ = server.serve() if comm.rank == 0 else server.done()
    for result in results:
        same_bits(result, np.full(3, float(int("1" * comm.size, base=8))))


def test_b39_a_wrong_order_is_found_before_anything_moves(comm, ring):
    wrong: tuple[Any, ...] = ("tree", None, 3)
    for grads in ([], [np.ones(3)], [np.ones(3), np.ones(3, "f4")]):
        for order in wrong:
            call = lambda: average_gradients(grads, ring, order=order)  # noqa: E731
            raised_everywhere(comm, ring, call, "ValueError", "unknown order")


# ---- B42: names are values --------------------------------------------------------------------------


class Layer(enum.IntEnum):
    """Its keys look alike."""

    FIRST = 1
    SECOND = 2

    def __repr__(self):
        return "<Layer>"

    __str__ = __repr__


class Key(str):
    """A name that does not show itself."""

    def __repr__(self):
        return "<Key>"

    __str__ = __repr__


class Color(enum.Enum):
    RED = 1


class Where(str, enum.Enum):
    W = "w"
    B = "b"


KEYS: list[tuple[Any, Any, Any, Any]] = [
    # on rank 0, and what other ranks call the same
    (Layer.FIRST, Layer.SECOND, Layer.FIRST, Layer.SECOND),
    (Layer.FIRST, Layer.SECOND, 1, 2),
    (Layer.SECOND, Layer.FIRST, 2, 1),
    (Key("w"), Key("b"), "w", "b"),
    (Where.W, Where.B, "w", "b"),
    (np.str_("w"), "b", "w", "b"),
    ("1", 1, "1", np.int64(1)),
    ("1", True, "1", 1),
    (10, 9, np.uint8(10), 9),
]


@pytest.mark.parametrize("keys", KEYS, ids=range(len(KEYS)))
@pytest.mark.parametrize("bucket_bytes", [1, None])
def test_b42_names_are_values(comm, ring, keys, bucket_bytes):
    """And what comes back has the very keys of this rank, in its order."""
    one, other = keys[2:] if comm.rank else keys[:2]
    scale = 8**comm.rank
    grads = {one: np.full(2, scale), other: np.full(3, 5 * scale)}
    if comm.rank % 2:
        grads = dict(reversed(grads.items()))
    result = average_gradients(grads, ring, op="sum", bucket_bytes=bucket_bytes)
    assert [id(key) for key in result] == [id(key) for key in grads]
    fingerprint = int("1" * comm.size, base=8)
    same_bits(result[one], np.full(2, fingerprint))
    same_bits(result[other], np.full(3, 5 * fingerprint))


@pytest.mark.ranks(2, 3)
def test_b42_a_name_is_text_or_a_number(comm, ring):
    x = np.ones(2)
    last = comm.rank == comm.size - 1
    pairs: list[tuple[Any, Any, str]] = [
        ({"1": x}, {1: x}, "['1']"),
        ({Key("w"): x}, {Key("v"): x}, "['w']"),
        ({"a": {Layer.FIRST: x}}, {"a": {Layer.SECOND: x}}, "['a'][1]"),
    ]
    for here, there, words in pairs:
        call = lambda: average_gradients(there if last else here, ring)  # noqa: E731
        raised_everywhere(comm, ring, call, "ValueError", words)
    for key in (1.5, None, (1, 2), b"w", Color.RED):
        call = lambda: average_gradients({"a": {key: x}}, ring)  # noqa: E731
        raised_everywhere(comm, ring, call, "TypeError", "str or int", "in ['a']")


class Shy(str):
    """Two of them are never equal, so a dict has both."""

    __hash__ = object.__hash__

    def __eq__(self, other):
        return self is other


def test_b42_two_keys_of_one_value(comm, ring):
    grads = {Shy("w"): np.ones(2), "w": np.full(2, 5.0)}
    call = lambda: average_gradients(grads, ring)  # noqa: E731
    raised_everywhere(comm, ring, call, "ValueError", "two gradients", "['w']")
    if comm.size > 1:
        call = lambda: ParameterServer(ring, grads, print)  # noqa: E731
        raised_everywhere(comm, ring, call, "ValueError", "two parameters", "'w'")


class Plain(NamedTuple):
    w: Any
    b: Any


class Doubled(namedtuple("Doubled", "w b")):
    """Its ``__new__`` takes other arguments than its fields."""

    def __new__(cls, w):
        return super().__new__(cls, w, 2 * w)


class Named(dict):
    """A dict that is made with a name, and keeps it."""

    def __init__(self, name, **items):
        super().__init__(**items)
        self.name = name


class Stack(list):
    def __init__(self, name, items):
        super().__init__(items)
        self.name = name


class Pair(tuple):
    note = ""

    def __new__(cls, first, second):
        new = super().__new__(cls, (first, second))
        new.note = "kept"
        return new


def test_b42_containers_come_back_as_what_they_were(comm, ring):
    x = np.full(2, float(8**comm.rank))
    total = np.full(2, float(int("1" * comm.size, base=8)))
    factories: Any = defaultdict(list, {"w": x, "b": 2 * x})
    nests: list[Any] = [
        OrderedDict([("z", x), ("a", 2 * x)]),
        factories,
        Counter({"w": x, "b": 2 * x}),
        Named("conv", w=x, b=2 * x),
        Plain(x, 2 * x),
        Doubled(x),
        Stack("block", [x, 2 * x]),
        Pair(x, 2 * x),
        [x, 2 * x],
        (x, 2 * x),
        {"w": x, "b": 2 * x},
    ]
    whole: Any = {"all": nests, "more": Doubled(x)._replace(w=Pair(x, [None]))}
    results = average_gradients(whole, ring, op="sum")
    assert list(results) == ["all", "more"]
    for nest, result in zip(nests, results["all"]):
        assert type(result) is type(nest) and result is not nest
        items, before = (
            list(n.values()) if isinstance(n, dict) else list(n) for n in (result, nest)
        )
        same_bits(items[0], total, type(nest))
        same_bits(items[1], 2 * total, type(nest))
        same_bits(before[0], x)
        if isinstance(nest, dict):
            assert list(result) == list(nest)
        assert vars(result) == vars(nest) if hasattr(nest, "__dict__") else True
    assert results["all"][1].default_factory is list
    more = results["more"]
    assert type(more) is Doubled and type(more.w) is Pair and more.w[1] == [None]


class Frozen(dict):
    """Nobody can put anything in."""

    def __setitem__(self, key, value):
        raise TypeError("frozen-17")


class Forgetful(dict):
    """What is put in is something else afterwards."""

    def __setitem__(self, key, value):
        super().__setitem__(key, value + 1)


class Strict(list):
    def __copy__(self):
        return list(self)


def test_b42_what_cannot_be_made_again(comm, ring, monkeypatch):
    x = np.ones(3)
    nests = [
        (Frozen(w=x), ("Frozen", "frozen-17")),
        (Forgetful(w=x), ("Forgetful",)),
        (Strict([x]), ("Strict",)),
    ]
    moved = []
    monkeypatch.setattr(ring, "allreduce", lambda *a, **b: moved.append(a))
    told = [
        outcome(lambda: average_gradients({"outer": [nest]}, ring)) for nest, _ in nests
    ]
    mine = nests[0][0] if comm.rank == comm.size - 1 else {"w": x}
    alone = outcome(lambda: average_gradients({"outer": [mine]}, ring))
    everyone = comm.allgather([*told, alone])
    assert moved == []
    assert everyone == [everyone[0]] * comm.size
    for (kind, text), (_, words) in zip([*told, alone], [*nests, nests[0]]):
        assert kind == "TypeError" and "in ['outer'][0]" in text, text
        assert all(word in text for word in words), text
    assert f"rank {comm.size - 1}" in alone[1] and "rank 0" in told[0][1]


@several
@MODES
def test_b42_a_server_s_names_are_values(comm, ring, mode):
    params = {Key("w"): np.zeros(2), Where.B: np.zeros(3, "i8")}
    if comm.rank:
        params = {"b": np.zeros(3, "i8"), "w": np.zeros(2)}

    def update(p, g):
        p["w"] = p["w"] + g["w"]
        return {Where.B: p["b"] + g[Where.B]}

    server = ParameterServer(ring, params, update, mode=mode)
    if comm.rank == 0:
        final = server.serve()
        assert all(type(name) is str for name in final)
        total = sum(8**r for r in range(1, comm.size))
        same_bits(final["w"], np.full(2, float(total)))
        same_bits(final["b"], np.full(3, total))
    else:
        server.push({Key("w"): np.full(2, 8.0**comm.rank)})
        server.push({Where.B: np.full(3, 8**comm.rank)})
        server.done()


# ---- one array for two names, and arrays that overlap ------------------------------------------------


def test_the_same_array_under_two_names(comm, ring):
    x = np.arange(4.0) * 8**comm.rank
    fingerprint = int("1" * comm.size, base=8)
    grads = {"a": x, "b": x, "c": [x[:3], x[1:], x[::-1]], "d": x.reshape(2, 2).T}
    for bucket_bytes in (8, None):
        result = average_gradients(grads, ring, op="sum", bucket_bytes=bucket_bytes)
        all_of_it = np.arange(4.0) * fingerprint
        for mine in (result["a"], result["b"]):
            same_bits(mine, all_of_it)
        for mine, part in zip(result["c"], (slice(3), slice(1, None), slice(-1, None))):
            expected = all_of_it[::-1] if part == slice(-1, None) else all_of_it[part]
            same_bits(np.ascontiguousarray(mine), np.ascontiguousarray(expected))
        same_bits(result["d"], np.ascontiguousarray(all_of_it.reshape(2, 2).T))
        result["a"][:] = -1  # is its own
        same_bits(result["b"], all_of_it)
    same_bits(x, np.arange(4.0) * 8**comm.rank)


@several
@MODES
def test_the_same_parameter_under_two_names(comm, ring, mode):
    x = np.arange(4.0)

    def update(p, g):
        for name in p:
            p[name] -= g[name]

    server = ParameterServer(ring, {"a": x, "b": x, "c": x[1:3]}, update, mode=mode)
    expected = {"a": x - 1, "b": x - 4, "c": x[1:3] - 2}
    if comm.rank == 0:
        results = server.serve()
    elif comm.rank == 1:
        g = np.full(4, 2.0)
        server.push({"a": g / 2, "b": 2 * g, "c": g[:2]})
        results = server.pull()
        results["a"][:], again = 99, server.pull()
        same_bits(results["b"], expected["b"])
        results = again
        server.done()
    else:
        server.done()
        return
    for name, array in expected.items():
        same_bits(results[name], array, name)


# ---- B45: NumPy's integers --------------------------------------------------------------------------


@pytest.mark.ranks(2, 3)
@MODES
def test_b45_numpy_integers(comm, ring, mode):
    mine: Any = np.int64(1) if comm.rank else 1
    x = np.full(3, 8.0**comm.rank)
    result = average_gradients([x, x], ring, op="sum", bucket_bytes=8 * mine)
    same_bits(result[1], np.full(3, float(int("1" * comm.size, base=8))))
    server = ParameterServer(ring, {"w": x}, print, root=mine, mode=mode)
    if comm.rank == 1:
        same_bits(server.serve()["w"], np.full(3, 8.0))
    else:
        same_bits(server.pull()["w"], np.full(3, 8.0))
        server.done()
    assert type(server.root) is int


@pytest.mark.ranks(2)
def test_b45_what_is_no_number(comm, ring):
    no_numbers: tuple[Any, ...] = (1.0, "1", True, np.float64(1), [1])
    for wrong in no_numbers:
        call = lambda: ParameterServer(  # noqa: E731
            ring, {"w": np.ones(1)}, print, root=wrong
        )
        raised_everywhere(comm, ring, call, "ValueError", "root must be 0 to 1")
        call = lambda: average_gradients([], ring, bucket_bytes=wrong)  # noqa: E731
        raised_everywhere(comm, ring, call, "ValueError", "bucket_bytes must be 1 or")
    for low in (0, -1, np.int32(0)):
        call = lambda: average_gradients([], ring, bucket_bytes=low)  # noqa: E731
        raised_everywhere(comm, ring, call, "ValueError", "bucket_bytes must be 1 or")


# ---- B46: a copy of what holds a ring ---------------------------------------------------------------


@pytest.mark.ranks(2)
def test_b46_a_parameter_server_cannot_be_copied(comm, ring):
    server = ParameterServer(ring, {"w": np.ones(3)}, print)
    for make in (pickle.dumps, copy.copy, copy.deepcopy):
        kind, text = outcome(lambda: make(server))
        assert kind == "TypeError", (make, text)
        assert "a ParameterServer" in text and "ring" in text, text
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        kind, text = outcome(lambda: pickle.dumps([server], protocol))
        assert kind == "TypeError" and "a ParameterServer" in text, text
    if comm.rank == 0:
        server.serve()
    else:
        server.done()


# ---- B54: who is silent -----------------------------------------------------------------------------


@pytest.mark.ranks(3, 5)
def test_b54_a_worker_that_is_done_is_not_silent(comm):
    """Worker 1 is through and gone, worker 2 says nothing."""
    ring = Ring(comm, timeout=0.3)
    server = ParameterServer(ring, {"w": np.zeros(3)}, print, mode="async")
    error = None
    if comm.rank == 0:
        error, _ = timed_out(server.serve)
    elif comm.rank != 2:
        server.push({"w": np.ones(3)})
        server.pull()
        server.done()
    meet(comm)
    again = outcome(server.serve if comm.rank == 0 else server.done)
    ring.close()
    if error is not None:
        assert error.silent == (2,)
        assert "in no call of this ring: rank 2;" in f"{error};".replace(". ", "; ")
        assert again[0] == "RingError" and "RingTimeout" in again[1], again


@pytest.mark.ranks(3)
def test_b54_a_worker_told_of_a_failure_is_not_silent(comm):
    """The update raises; worker 1 hears of it, worker 2 never asks."""
    ring = Ring(comm, timeout=0.3)

    def update(p, g):
        raise LookupError("boom-17")

    server = ParameterServer(ring, {"w": np.zeros(3)}, update, mode="async")
    error = None
    if comm.rank == 0:
        error, _ = timed_out(server.serve)
    elif comm.rank == 1:
        server.push({"w": np.ones(3)})
        assert "boom-17" in outcome(server.pull)[1]
        kind, text = outcome(server.pull)
        assert kind == "RingError" and "boom-17" in text, text
    meet(comm)
    ring.close()
    if error is not None:
        assert error.silent == (2,)
        assert "boom-17" in str(error.__cause__ or error.__context__)


@pytest.mark.ranks(3)
def test_b54_a_worker_waits_for_the_server_alone(comm):
    """The server never serves; the other worker, which computes, is not to blame."""
    ring = Ring(comm, timeout=0.3)
    server = ParameterServer(ring, {"w": np.zeros(3)}, print, mode="async")
    error = timed_out(server.pull)[0] if comm.rank == 1 else None
    meet(comm)
    ring.close()
    if error is not None:
        assert error.silent == (0,)
        assert "in no call of this ring: rank 0" in str(error)
        assert "rank 2" not in str(error)


@pytest.mark.ranks(2, 3)
@MODES
def test_b54_what_is_over_says_so(comm, ring, mode):
    server = ParameterServer(ring, {"w": np.zeros(3)}, print, mode=mode)
    if comm.rank == 0:
        server.serve()
        assert "every worker is done" in outcome(server.serve)[1]
    else:
        server.done()
        for call in (server.pull, lambda: server.push({}), server.done):
            kind, text = outcome(call)
            assert kind == "RingError" and "this worker is done" in text, text
            assert "failed" not in text, text
