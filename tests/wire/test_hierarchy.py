"""Arrays of ``ring.empty`` on several hosts, all ranks in one process, under adversarial interleavings.

The ranks are told which of them are one host's; those share a region, as the ranks of a real host do.  That the
calls go this way is told by ``algorithm="shared"``, which is an error where they cannot.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from mpiring.plan.hierarchy import hosts_allreduce
from mpiring.wire.arrays.mapped import Place
from mpiring.wire.collectives import reductions
from mpiring.wire.execute import hierarchy
from mpiring.wire.opening import closing
from mpiring.wire.settings.tuning import WHOLE
from mpiring.wire.transport.position import Position

from wire import reference
from wire.interleaving import protocols, seeds
from wire.reference import same_bits
from wire.test_shared import Node, where

pytestmark = pytest.mark.untraced

layouts = st.lists(st.integers(1, 4), min_size=2, max_size=4).filter(
    lambda hosts: max(hosts) > 1 and sum(hosts) <= 8
)
orders = st.sampled_from(["ring", "rank"])


def spread(hosts, *rest, chunk_bytes=WHOLE, **more):
    """Ranks on hosts of so many each."""
    nodes = [host for host, count in enumerate(hosts) for _ in range(count)]
    tuning = {"chunk_bytes": chunk_bytes, "window": 3}
    return Node(len(nodes), *rest, nodes=nodes, tuning=tuning, **more)


# ---- numbers --------------------------------------------------------------------------------------


@examples(max_examples=250)
@given(
    hosts=layouts,
    count=st.integers(0, 40),
    dtype=st.sampled_from(reference.DTYPES),
    order=orders,
    in_place=st.lists(st.booleans(), min_size=4, max_size=4),
    chunk_bytes=st.sampled_from([1, 8, 1 << 20]),
    data=st.data(),
    seed=seeds,
    rendezvous=protocols,
)
def test_bits_of_allreduce(
    hosts, count, dtype, order, in_place, chunk_bytes, data, seed, rendezvous
):
    op = data.draw(st.sampled_from(reference.ops_of(dtype)))
    size = sum(hosts)
    values = [reference.varied(dtype, count, rank, seed) for rank in range(size)]
    ranks = spread(hosts, seed, rendezvous, message_bytes=24, chunk_bytes=chunk_bytes)
    xs, outs = ranks.arrays(values), ranks.arrays(values[::-1])
    is_in_place = [in_place[host] for host, n in enumerate(hosts) for _ in range(n)]
    outs = [x if is_in else out for x, out, is_in in zip(xs, outs, is_in_place)]
    results = ranks.call("allreduce", lambda r: (xs[r], op, outs[r], order, "shared"))
    want = reference.reduced_flat(op, values, order)
    for result, out in zip(results, outs):
        assert result is out and same_bits(result, want)
    for x, out, value in zip(xs, outs, values):
        assert x is out or same_bits(x, value)


@examples(max_examples=200)
@given(
    hosts=layouts,
    count=st.integers(0, 40),
    dtype=st.sampled_from(reference.DTYPES),
    order=orders,
    place=st.sampled_from(["new", "shared", "in place"]),
    chunk_bytes=st.sampled_from([1, 8, 1 << 20]),
    data=st.data(),
    seed=seeds,
    rendezvous=protocols,
)
def test_bits_of_reduce_scatter(
    hosts, count, dtype, order, place, chunk_bytes, data, seed, rendezvous
):
    op = data.draw(st.sampled_from(reference.ops_of(dtype)))
    size = sum(hosts)
    values = [reference.varied(dtype, count, rank, seed) for rank in range(size)]
    ranks = spread(hosts, seed, rendezvous, message_bytes=24, chunk_bytes=chunk_bytes)
    xs, rooms = ranks.arrays(values), ranks.arrays(values[::-1])
    mine = [slice(*bounds) for bounds in reference.bounds(count, size)]
    outs = {
        "new": [None] * size,
        "shared": [room[part] for room, part in zip(rooms, mine)],
        "in place": [x[part] for x, part in zip(xs, mine)],
    }[place]
    results = ranks.call(
        "reduce_scatter", lambda r: (xs[r], op, outs[r], order, "shared")
    )
    want = reference.reduced_flat(op, values, order)
    for rank, (result, part) in enumerate(zip(results, mine)):
        assert same_bits(result, want[part])
        kept = values[rank].copy()
        if place == "in place":
            kept[part] = want[part]
        assert same_bits(xs[rank], kept)


@pytest.mark.parametrize("hosts", [(2, 2), (3, 1, 2), (1, 4)])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_the_same_bits_as_by_messages(hosts, dtype):
    size = sum(hosts)
    values = [reference.varied(dtype, 1000, rank, 5) for rank in range(size)]
    found = []
    for algorithm in ("shared", "auto", "ring", "direct"):
        ranks = spread(hosts, chunk_bytes=64)
        xs = ranks.arrays(values)
        found += ranks.call(
            "allreduce", lambda r: (xs[r], "avg", xs[r], "ring", algorithm)
        )
    assert all(same_bits(result, found[0]) for result in found)


# ---- what travels ---------------------------------------------------------------------------------


def bytes_between(ranks, hosts, call):
    """What a call's messages between hosts, and its messages inside hosts, carry."""
    node = [host for host, count in enumerate(hosts) for _ in range(count)]
    carried = [0, 0]
    for rank, transport in enumerate(ranks.network.transports):

        def post_send(
            buffer, dest, tag, rank=rank, post=type(transport).post_send, self=transport
        ):
            if tag == ranks.collectives[0].tag:
                carried[node[rank] == node[dest]] += len(buffer)
            return post(self, buffer, dest, tag)

        transport.post_send = post_send
    call()
    return carried


@pytest.mark.parametrize("hosts", [(2, 2), (3, 3), (1, 4), (3, 1, 2), (4, 4)])
@pytest.mark.parametrize("name", ["allreduce", "reduce_scatter"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_never_more_bytes_between_hosts_than_the_ring(hosts, name, dtype):
    size = sum(hosts)
    carried = {}
    for algorithm in ("auto", "ring"):
        ranks = spread(hosts, chunk_bytes=256)
        xs = ranks.arrays(
            [reference.varied(dtype, 240 * size, r, 1) for r in range(size)]
        )
        outs = xs if name == "allreduce" else [None] * size
        carried[algorithm] = bytes_between(
            ranks,
            hosts,
            lambda: ranks.call(
                name, lambda r: (xs[r], "sum", outs[r], "ring", algorithm)
            ),
        )
    between, inside = carried["auto"]
    assert 0 < between <= carried["ring"][0]
    # Inside hosts there is the closing exchange only: a byte from each rank in each round.
    rounds = sum(count * (count - 1).bit_length() for count in hosts)
    assert inside == rounds < carried["ring"][1]


# ---- when it is the way ---------------------------------------------------------------------------

regions = st.sampled_from([None, b"a", b"b", b"c"])


@given(st.lists(regions, min_size=1, max_size=7))
def test_hosts_are_runs_of_regions(names):
    places = [None if name is None else Place(name, 0) for name in names]
    found = hierarchy.hosts_of(places)
    changes = sum(a != b for a, b in zip(names, names[1:]))
    is_host = None not in names and changes + 1 == len({*names})
    if is_host and 1 < changes + 1 < len(names):
        assert sum(found) == len(names) and len(found) == changes + 1
        at = 0
        for count in found:
            assert len({*names[at : at + count]}) == 1
            at += count
    else:
        assert found == ()


def test_inputs_and_outputs_must_have_the_same_hosts():
    a, b, c = (Place(name, 0) for name in (b"a", b"b", b"c"))
    assert hierarchy.hosts_of([a, a, b, b], [c, c, b, b]) == (2, 2)
    assert hierarchy.hosts_of([a, a, b, b], [a, b, b, b]) == ()
    assert hierarchy.hosts_of([a, a, b, b], [a, a, a, a]) == ()
    assert hierarchy.hosts_of([a, a, b, b], [a, a, None, b]) == ()


@pytest.mark.parametrize("nodes", [[0, 1, 0, 1], [0, 1, 1, 0], [0, 1, 2, 3]])
def test_other_ranks_on_a_host_go_by_messages(nodes):
    """Its ranks do not lie behind each other, or each has its own host: the ordinary way, or an error."""
    values = [8.0**r * np.arange(1, 1001) for r in range(4)]
    for algorithm in ("auto", "shared"):
        ranks = Node(4, nodes=nodes)
        xs = ranks.arrays(values)
        for result in ranks.call(
            "allreduce", lambda r: (xs[r], "sum", xs[r], "ring", algorithm)
        ):
            if algorithm == "auto":
                assert same_bits(result, sum(values))
            else:
                assert type(result) is ValueError
                assert "algorithm='shared' needs" in str(result)


def test_an_ordinary_array_on_one_rank_goes_by_messages():
    ranks = spread((2, 2))
    values = [8.0**r * np.arange(1, 1001) for r in range(4)]
    xs = ranks.arrays(values)
    xs[2] = values[2].copy()
    for result in ranks.call("allreduce", lambda r: (xs[r], "sum", xs[r])):
        assert same_bits(np.array(result), sum(values))
    xs = ranks.arrays(values)
    xs[2] = values[2].copy()
    for error in ranks.call(
        "allreduce", lambda r: (xs[r], "sum", xs[r], "ring", "shared")
    ):
        assert "rank 2 passed other memory" in str(error)


def test_a_rank_alone_on_its_host_is_one_of_its_own():
    ranks = spread((1, 2, 1))
    arrays = ranks.empty(5000, "int64")
    assert hierarchy.hosts_of(list(map(where, arrays))) == (1, 2, 1)
    for rank, array in enumerate(arrays):
        array[...] = 8**rank
    for result in ranks.call(
        "allreduce", lambda r: (arrays[r], "sum", arrays[r], "ring", "shared")
    ):
        assert (result == 0o1111).all()


def test_memory_that_is_short_raises_on_every_rank(monkeypatch):
    ranks = spread((2, 1))
    xs = ranks.empty(1 << 19)

    def short(*_):
        raise MemoryError("no scratch here")

    monkeypatch.setattr(ranks.collectives[1].scratch, "take", short)
    for error in ranks.call("allreduce", lambda r: (xs[r], "sum", xs[r])):
        assert type(error) is MemoryError and "rank 1: no scratch here" in str(error)
    monkeypatch.undo()
    for x in xs:
        x[...] = 1
    for result in ranks.call("allreduce", lambda r: (xs[r], "sum", xs[r])):
        assert (result == 3).all()


@pytest.mark.parametrize("hosts", [(2, 2), (4, 4), (2, 2, 2)])
def test_the_scratch_is_a_segment_and_what_is_under_way(hosts):
    size, count = sum(hosts), 100_000
    ranks = spread(hosts, chunk_bytes=256)
    xs = ranks.arrays([np.full(count, 8.0**r) for r in range(size)])
    ranks.call("allreduce", lambda r: (xs[r], "sum", xs[r], "ring", "shared"))
    segment = -(-count // size) * 8
    window = 2 * 3 * 256  # partials of two ranks, three chunks of each
    most = 1.01 * segment + window + 100 * 64
    assert all(c.scratch.nbytes <= most for c in ranks.collectives)


# ---- nobody reads too early or writes too soon ----------------------------------------------------


def turns(rank, c, xs, outs):
    """Calls behind each other, in place and not; a rank writes its arrays as soon as it may."""
    found = []
    for turn in range(3):
        xs[rank][...] = 8**rank * (turn + 1)
        out = (outs if turn % 2 else xs)[rank]
        result = yield from c.allreduce(xs[rank], "sum", out, "ring", "shared", AT)
        found.append(result.tolist())
        xs[rank][...] = -1
        outs[rank][...] = -2
        xs[rank][...] = 8**rank
        part = yield from c.reduce_scatter(
            xs[rank], "sum", None, "ring", "shared", Position()
        )
        xs[rank][...] = -3
        found.append(part.tolist())
    return found


AT = Position()


def order_of_turns(seed, rendezvous, hosts):
    size = sum(hosts)
    ranks = spread(hosts, seed, rendezvous, chunk_bytes=16)
    count = 3 * size + 1
    xs, outs = ranks.empty(count, "int64"), ranks.empty(count, "int64")
    results = ranks.run(lambda rank, c: turns(rank, c, xs, outs))
    total = int("1" * size, base=8)
    for (start, stop), result in zip(reference.bounds(count, size), results):
        wanted = []
        for turn in range(3):
            wanted += [[total * (turn + 1)] * count, [total] * (stop - start)]
        assert result == wanted


@examples(max_examples=60)
@given(seeds, protocols, layouts)
def test_who_has_left_a_call_may_write(seed, rendezvous, hosts):
    order_of_turns(seed, rendezvous, hosts)


def caught():
    """In how many of some runs something is wrong."""
    wrong = 0
    for hosts in [(2, 2), (3, 2), (2, 1, 2)]:
        for seed in range(20):
            try:
                order_of_turns(seed, None, hosts)
            except Exception:
                wrong += 1
    return wrong


def test_without_the_closing_exchange_this_would_show(monkeypatch):
    def nothing(closing, position):
        return
        yield

    monkeypatch.setattr(closing.Closing, "exchange", nothing)
    assert caught() > 0


# ---- each of these mistakes is caught -------------------------------------------------------------

MISTAKES = {
    "stores results to itself only": (
        "return [output[here] for output in self._host.outputs]",
        "return []",
    ),
    "sends what others of its host may write over": (
        "        if is_narrow and segment in self._host.kept:\n",
        "        if len(brought) == 1:\n",
    ),
    "combines where another keeper stores the result": (
        "        is_mine = segment in self._host.kept\n",
        "        is_mine = True\n",
    ),
    "brings its own input only": (
        "return [self._host.inputs[rank][here] for rank in ranks]",
        "return [self._host.inputs[self.program.rank][here] for rank in ranks]",
    ),
    "folds from the right": (
        "            self._whole[segment] = operands\n",
        "            self._whole[segment] = operands[::-1]\n",
    ),
    "does not copy what came to the others": (
        "            self.kind.copy(value, place)\n",
        "            pass\n",
    ),
    "closes with the ranks of the first host": (
        "mine = ranks_of_hosts(hosts)[host_of(hosts, rank)]",
        "mine = ranks_of_hosts(hosts)[0]",
    ),
}


def some_calls():
    """Whether all goes well in some runs; subtraction would show the order, products of floats do."""
    for hosts in [(2, 2), (3, 2), (2, 1, 2)]:
        size = sum(hosts)
        values = [reference.varied("float32", 37, rank, 3) for rank in range(size)]
        for seed in range(20):
            ranks = spread(hosts, seed, None, chunk_bytes=16)
            xs = ranks.arrays(values)
            results = ranks.call(
                "allreduce", lambda r: (xs[r], "prod", xs[r], "ring", "shared")
            )
            want = reference.reduced_flat("prod", values, "ring")
            assert all(same_bits(result, want) for result in results)


def test_none_of_them_is_there():
    some_calls()


@pytest.mark.parametrize("what", MISTAKES)
def test_each_mistake_is_caught(what, monkeypatch):
    right, wrong = MISTAKES[what]
    source = Path(hierarchy.__file__).read_text()
    assert source.count(right) == 1, "the source has changed; write the mistake anew"
    broken = types.ModuleType("mpiring.wire.execute.hierarchy_broken")
    broken.__package__ = hierarchy.__package__
    monkeypatch.setitem(sys.modules, broken.__name__, broken)
    exec(compile(source.replace(right, wrong), "broken", "exec"), broken.__dict__)
    monkeypatch.setattr(reductions, "hierarchy", broken)
    with pytest.raises(Exception):
        some_calls()


@pytest.mark.parametrize("collective", ["allreduce", "reduce_scatter"])
def test_a_schedule_of_hosts_is_not_for_the_user(collective):
    """``ring.run`` has no arrays of others to give it."""
    from mpiring.wire.collectives.custom import run

    ranks = spread((2, 2))
    plan = hosts_allreduce((2, 2))
    for error in ranks.run(
        lambda r, c: run(c, plan, np.ones(8), "sum", None, Position())
    ):
        assert type(error) is ValueError and "ring.empty" in str(error)
