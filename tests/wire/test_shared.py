"""``ring.empty`` and the collectives on its arrays, all ranks in one process, under adversarial interleavings.

The ranks of one process map a region once and find each other's parts in it; all else is as between processes.
"""

from __future__ import annotations

import errno
import gc
import os
import resource
import tempfile

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from mpiring.errors import RingError
from mpiring.wire.arrays import NUMPY, mapped
from mpiring.wire.arrays.mapped import Place, locate
from mpiring.wire.collectives.gather import allgather
from mpiring.wire.collectives.rooted import broadcast, reduce
from mpiring.wire.node import unnamed
from mpiring.wire.node.shared import empty, place_of
from mpiring.wire.node.unnamed import Backing
from mpiring.wire.opening import closing
from mpiring.wire.opening.agree import PAYLOAD_BYTES
from mpiring.wire.opening.calls import Call, at_address, facts_of, with_facts
from mpiring.wire.transport.position import Position

from wire import reference
from wire.interleaving import protocols, seeds
from wire.ranks import Ranks
from wire.reference import same_bits

pytestmark = pytest.mark.untraced


@pytest.fixture(scope="module", autouse=True)
def directory():
    """A place for the files of this module alone; at the end it has to be empty."""
    before = unnamed.DIRECTORY
    unnamed.DIRECTORY = tempfile.mkdtemp(dir=before)
    yield
    os.rmdir(unnamed.DIRECTORY)
    unnamed.DIRECTORY = before


def descriptors():
    """The open files of this process."""
    return len(os.listdir("/proc/self/fd"))


class Node(Ranks):
    """Ranks of one node, or of several: ``nodes[rank]`` says of which."""

    def __init__(self, size, seed=None, rendezvous=True, nodes=None, **more):
        nodes = nodes or [0] * size

        def node(rank):
            return tuple(r for r in range(size) if nodes[r] == nodes[rank])

        super().__init__(size, seed, rendezvous, node=node, **more)
        self.made = []

    def empty(self, shape, dtype="float32"):
        """A new array on each rank; ``shape`` may be a function of the rank."""

        def program(rank, c):
            wanted = shape(rank) if callable(shape) else shape
            return empty(c, wanted, dtype, Position(), self.made.append)

        try:
            return self.run(program)
        finally:
            for backing in self.made:
                backing.close()
            self.made.clear()

    def arrays(self, values):
        """Such arrays with these values."""
        arrays = self.empty(values[0].shape, values[0].dtype)
        for array, value in zip(arrays, values):
            array[...] = value
        return arrays


def where(array):
    return place_of(NUMPY, array)


# ---- making arrays --------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 3, 5])
def test_each_rank_has_a_part_of_its_own(size):
    arrays = Node(size, seed=size, rendezvous=None).empty((3, 1000), "int16")
    places = [where(array) for array in arrays]
    assert [place.offset for place in places] == [8192 * rank for rank in range(size)]
    assert len({place.region for place in places}) == 1
    for rank, array in enumerate(arrays):
        assert array.shape == (3, 1000) and array.dtype == np.int16
        assert array.flags.writeable and array.flags.c_contiguous
        array[...] = rank
    assert all((array == rank).all() for rank, array in enumerate(arrays))


@pytest.mark.parametrize("shape", [(), (0,), 5, (2, 0), [2, 3]])
def test_shapes(shape):
    for array in Node(2).empty(shape, "float16"):
        lengths = (shape,) if shape == 5 else tuple(shape)
        assert array.shape == lengths and array.dtype == np.float16
        assert where(array) is not None


@pytest.mark.parametrize("dtype", [*reference.DTYPES, ">f4", np.float64, None])
def test_dtypes(dtype):
    expected = np.empty(0, reference.dtype_of(dtype)).dtype.newbyteorder("=")
    for array in Node(2).empty(3, dtype):
        assert array.dtype == expected and array.dtype.isnative


@pytest.mark.parametrize(
    "shape, dtype, kind, words",
    [
        (-1, "f4", ValueError, "0 or more"),
        ((2, -3), "f4", ValueError, "0 or more"),
        (2.5, "f4", TypeError, "int or a tuple of ints"),
        ("ab", "f4", TypeError, "int or a tuple of ints"),
        (3, "nothing", TypeError, "nothing"),
        (3, object, TypeError, "object"),
        (3, "M8[s]", TypeError, "datetime64"),
        (1 << 61, "f8", MemoryError, "node-shared memory"),
        (1 << 100, "f8", MemoryError, "node-shared memory"),
    ],
)
def test_wrong_arguments_raise_on_every_rank(shape, dtype, kind, words):
    ranks = Node(3)
    for error in ranks.empty(shape, dtype):
        assert type(error) is kind and words in str(error)
        assert str(error).startswith("empty: rank 0: ")
    assert ranks.call("allreduce", lambda r: (8**r,)) == [0o111] * 3


def test_shapes_that_differ_raise_on_every_rank():
    for error in Node(3).empty(lambda rank: (4, 3 if rank == 2 else 2)):
        assert type(error) is ValueError
        assert "rank 2 passed shape [4, 3], rank 0 passed shape [4, 2]" in str(error)


def test_never_wider_than_the_mpi_says():
    arrays = Node(5, nodes=[0, 1, 0, 2, 1]).empty(10)
    regions = [place and place.region for place in map(where, arrays)]
    assert regions[0] == regions[2] is not None
    assert regions[1] == regions[4] is not None and regions[1] != regions[0]
    # Alone, but others share: so it has a region, too, by which it is known as a host.
    assert regions[3] is not None and regions.count(regions[3]) == 1
    assert arrays[3].shape == (10,)


def test_where_nobody_shares_arrays_are_ordinary():
    for array in Node(3, nodes=[0, 1, 2]).empty(10):
        assert where(array) is None and array.shape == (10,)


def test_a_rank_that_cannot_attach_has_an_ordinary_array(monkeypatch):
    attach, asked = Backing.attach, []

    def fails_for_the_first(where):
        asked.append(where)
        return None if len(asked) == 1 else attach(where)

    monkeypatch.setattr(Backing, "attach", fails_for_the_first)
    ranks = Node(4)
    arrays = ranks.empty(100, "int64")
    assert sum(where(array) is None for array in arrays) == 1
    assert len({place.region for place in map(where, arrays) if place}) == 1
    for rank, array in enumerate(arrays):
        array[...] = 8**rank
    for result in ranks.call("allreduce", lambda r: (arrays[r], "sum", arrays[r])):
        assert (result == 0o1111).all()


def test_without_a_directory_arrays_are_ordinary(monkeypatch):
    monkeypatch.setattr(unnamed, "DIRECTORY", "/nowhere/at/all")
    for array in Node(3).empty((2, 3)):
        assert array.shape == (2, 3) and where(array) is None


@pytest.mark.parametrize("victim", [0, 2])
def test_too_little_memory_on_one_rank_raises_on_all(monkeypatch, victim):
    reserve = os.posix_fallocate

    def full(descriptor, offset, length):
        if offset == victim * 4096:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        reserve(descriptor, offset, length)

    ranks = Node(3)
    before = descriptors()
    monkeypatch.setattr(os, "posix_fallocate", full)
    for error in ranks.empty(1000):
        assert type(error) is MemoryError
        text = str(error)
        assert text.startswith(f"empty: rank {victim}: 0.0 MiB of node-shared memory")
        for words in (
            "3 ranks",
            f"{unnamed.DIRECTORY} has",
            "free",
            "--shm-size",
            "numpy.empty",
        ):
            assert words in text
    del error
    monkeypatch.undo()
    gc.collect()
    assert descriptors() == before
    assert all(where(array) is not None for array in ranks.empty(1000))


def created() -> Backing:
    backing = Backing.create()
    assert backing is not None
    return backing


def elsewhere(backing, pid=None, descriptor=None, identity=None):
    """Where a file is, but for what is another's."""
    given = unnamed._WHERE.unpack(backing.where)
    changed = (pid, descriptor, identity)
    return unnamed._WHERE.pack(
        *(old if new is None else new for old, new in zip(given, changed))
    )


def test_what_is_not_the_file_is_not_attached(tmp_path, monkeypatch):
    """A pid of another container, or a descriptor that has become another file's."""
    backing, other = created(), created()
    again = Backing.attach(backing.where)
    assert again is not None and again.identity == backing.identity
    again.close()
    before = descriptors()
    ours = tmp_path / "ours"
    ours.write_bytes(backing.identity)
    end, _ = ends = os.pipe()  # to open one for writing would wait for ever
    with ours.open() as file, ours.open("rb") as same:
        directory = os.open(tmp_path, os.O_RDONLY)
        for where in (
            elsewhere(backing, identity=b"12345678"),
            elsewhere(backing, identity=other.identity),
            elsewhere(backing, pid=2**22 + 1),
            elsewhere(backing, descriptor=end),
            elsewhere(backing, descriptor=directory),
            elsewhere(backing, descriptor=10_000),
        ):
            assert Backing.attach(where) is None
        there = elsewhere(backing, descriptor=file.fileno())
        assert Backing.attach(there) is not None  # as far as anybody can tell
        user = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: user + 1)
        assert Backing.attach(backing.where) is None
        assert same.read() == backing.identity
    for descriptor in (*ends, directory):
        os.close(descriptor)
    assert descriptors() == before


def test_b52_at_no_moment_has_a_file_a_name(monkeypatch):
    """Seen when each rank has just opened it, and when it takes memory in it."""
    seen = []
    for owner, name in ((Backing, "attach"), (os, "posix_fallocate")):
        do = getattr(owner, name)

        def watched(*args, do=do):
            seen.append(os.listdir(unnamed.DIRECTORY))
            return do(*args)

        monkeypatch.setattr(owner, name, watched)
    Node(3).empty(1000)
    assert seen == 5 * [[]]


def test_b52_memory_goes_with_the_last_that_has_it():
    """Free space is what it was: of the file system when nobody else uses it, here of the descriptor."""
    backing = created()
    backing.reserve(0, 4096, 1)
    status = os.stat(f"/proc/self/fd/{backing.descriptor}")
    assert status.st_nlink == 0 and status.st_size == 4096
    backing.close()
    backing.close()
    before = descriptors()
    del backing
    assert descriptors() == before


# ---- what there is no memory for ------------------------------------------------------------------


@pytest.mark.parametrize(
    "call, number, limit, words",
    [
        ("posix_fallocate", errno.ENOSPC, None, "/dev/shm"),
        ("posix_fallocate", errno.EFBIG, None, "/dev/shm"),
        ("posix_fallocate", errno.EFBIG, "RLIMIT_FSIZE", "no file longer than 5.0 MiB (ulimit -f)"),
        ("posix_fallocate", errno.ENOMEM, None, "memory cgroup"),
        ("mmap", errno.ENOMEM, "RLIMIT_AS", "limited to 5.0 MiB (ulimit -v)"),
        ("mmap", errno.ENOMEM, None, "vm.max_map_count"),
        ("pwrite", errno.EFBIG, "RLIMIT_FSIZE", "no file longer than 5.0 MiB (ulimit -f)"),
        ("pwrite", errno.ENOSPC, None, "/dev/shm"),
    ],
)  # fmt: skip
def test_b54_it_says_what_there_is_too_little_of(
    monkeypatch, call, number, limit, words
):
    def refused(*_):
        raise OSError(number, os.strerror(number))

    def limit_of(which):
        is_it = limit is not None and which == getattr(resource, limit)
        return (5 << 20 if is_it else resource.RLIM_INFINITY,) * 2

    ranks = Node(2)
    owner, name = (mapped, "_map") if call == "mmap" else (os, call)
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, refused)
        patch.setattr(resource, "getrlimit", limit_of)
        errors = ranks.empty(1000)
    for error in errors:
        assert type(error) is MemoryError and words in str(error), error
        assert ("/dev/shm" in str(error)) == (words == "/dev/shm"), error
        assert "node-shared memory" in str(error) and "numpy.empty" in str(error)
    assert all(where(array) is not None for array in ranks.empty(1000))


# ---- what travels ---------------------------------------------------------------------------------

places = st.none() | st.builds(
    Place, st.binary(min_size=8, max_size=8), st.integers(0, 2**64 - 1)
)


addresses = st.none() | st.builds(at_address, st.integers(0, 2**64 - 1))


@given(
    st.booleans(),
    st.booleans(),
    st.tuples(places, places),
    st.tuples(addresses, addresses),
    st.binary(max_size=79),
)
@example(True, False, (None, None), (None, None), b"")
@example(False, False, (Place(b"12345678", 0), None), (None, None), b"x")
@example(False, False, (None, None), (at_address(0), None), b"")
@example(False, True, (None, None), (None, None), b"")
def test_facts_come_back(stages, brings, there, here, payload):
    call = Call("allreduce")
    call.stages, call.brings = stages, brings
    call.places, call.addresses = there, here
    said = with_facts(call, payload)
    assert facts_of(said) == (stages, brings, there, here, payload)
    assert len(said) <= PAYLOAD_BYTES
    if not (stages or brings or any(there) or any(here) or payload):
        assert said == b""


# ---- the collectives ------------------------------------------------------------------------------

sizes = st.sampled_from([1, 2, 3, 4, 5])


@examples(max_examples=150)
@given(
    size=sizes,
    count=st.integers(0, 19),
    dtype=st.sampled_from(reference.DTYPES),
    order=st.sampled_from(["ring", "rank"]),
    in_place=st.booleans(),
    data=st.data(),
    seed=seeds,
    rendezvous=protocols,
)
def test_bits_of_allreduce(size, count, dtype, order, in_place, data, seed, rendezvous):
    op = data.draw(st.sampled_from(reference.ops_of(dtype)))
    values = [reference.varied(dtype, count, rank, seed) for rank in range(size)]
    ranks = Node(size, seed, rendezvous)
    xs = ranks.arrays(values)
    outs = xs if in_place else ranks.arrays(values[::-1])
    results = ranks.call("allreduce", lambda r: (xs[r], op, outs[r], order, "shared"))
    want = reference.reduced_flat(op, values, order)
    for result, out in zip(results, outs):
        assert result is out and same_bits(result, want)
    if not in_place:
        assert all(same_bits(x, value) for x, value in zip(xs, values))


@examples(max_examples=100)
@given(
    size=sizes,
    count=st.integers(0, 19),
    dtype=st.sampled_from(reference.DTYPES),
    place=st.sampled_from(["new", "shared", "in place"]),
    data=st.data(),
    seed=seeds,
    rendezvous=protocols,
)
def test_bits_of_reduce_scatter_and_reduce(
    size, count, dtype, place, data, seed, rendezvous
):
    op = data.draw(st.sampled_from(reference.ops_of(dtype)))
    root = data.draw(st.integers(0, size - 1))
    values = [reference.varied(dtype, count, rank, seed) for rank in range(size)]
    ranks = Node(size, seed, rendezvous)

    xs = ranks.arrays(values)
    want = reference.reduced_flat(op, values, "ring")
    cuts = np.cumsum([0, *(count // size + (r < count % size) for r in range(size))])
    mine = [slice(a, b) for a, b in zip(cuts, cuts[1:])]
    rooms = ranks.arrays(values[::-1])
    outs = {
        "new": [None] * size,
        "shared": [room[part] for room, part in zip(rooms, mine)],
        "in place": [x[part] for x, part in zip(xs, mine)],
    }[place]
    results = ranks.call(
        "reduce_scatter", lambda r: (xs[r], op, outs[r], "ring", "shared")
    )
    for result, part in zip(results, mine):
        assert same_bits(result, want[part])

    xs = ranks.arrays(values)
    outs = {"new": [None] * size, "shared": rooms, "in place": xs}[place]
    results = ranks.run(
        lambda r, c: reduce(c, xs[r], op, root, outs[r], "ring", "shared", Position())
    )
    chain = [values[(root + 1 + turn) % size] for turn in range(size)]
    assert same_bits(results[root], reference.reduced_flat(op, chain, "rank"))
    assert all(results[r] is None for r in range(size) if r != root)
    for rank, (x, value) in enumerate(zip(xs, values)):
        assert same_bits(x, value) or place == "in place" and rank == root


@examples(max_examples=100)
@given(
    size=sizes,
    lengths=st.lists(st.integers(1, 4), min_size=5, max_size=5),
    in_place=st.booleans(),
    seed=seeds,
    rendezvous=protocols,
)
def test_allgather_and_broadcast(size, lengths, in_place, seed, rendezvous):
    lengths = lengths[:size]
    ranks = Node(size, seed, rendezvous)
    rows = [1000 * r + np.arange(2 * n).reshape(n, 2) for r, n in enumerate(lengths)]
    outs = ranks.empty((sum(lengths), 2), "int64")
    starts = np.cumsum([0, *lengths])
    if in_place:
        xs = [out[a:][:n] for out, a, n in zip(outs, starts, lengths)]
    else:
        xs = [x[:n] for x, n in zip(ranks.empty((4, 2), "int64"), lengths)]
        outs = [None] * size
    for x, row in zip(xs, rows):
        x[...] = row
    for result in ranks.call("allgather", lambda r: (xs[r], outs[r], "shared")):
        assert same_bits(result, np.concatenate(rows))
    assert all(same_bits(x, row) for x, row in zip(xs, rows))

    whole = ranks.arrays([np.arange(7) + 100 * r for r in range(size)])
    root = seed % size
    results = ranks.run(lambda r, c: broadcast(c, whole[r], root, "shared", Position()))
    for result, x in zip(results, whole):
        assert result is x and same_bits(x, np.arange(7) + 100 * root)


CALLS = {
    "allreduce": lambda r, x: (x, "sum", x, "ring"),
    "reduce_scatter": lambda r, x: (x, "sum", None, "ring"),
    "allgather": lambda r, x: (x, None),
}
FEW = 2  # bytes: one more than the closing exchange says


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("algorithm, is_short", [("auto", True), ("ring", False)])
def test_no_data_travels_by_message(name, algorithm, is_short):
    ranks = Node(3)
    xs = ranks.arrays([np.full(3000, 8.0**r) for r in range(3)])
    _, longest = ranks.sends(
        lambda: ranks.call(name, lambda r: (*CALLS[name](r, xs[r]), algorithm))
    )
    assert (longest < FEW) == is_short


def test_no_data_travels_by_message_from_and_to_a_root():
    ranks = Node(3)
    xs = ranks.arrays([np.full(3000, 8.0**r) for r in range(3)])

    def to_root(r, c):
        return reduce(c, xs[r], "sum", 1, xs[r], "ring", "auto", Position())

    results, longest = ranks.sends(lambda: ranks.run(to_root))
    assert longest < FEW and (results[1] == 0o111).all()
    results, longest = ranks.sends(
        lambda: ranks.run(lambda r, c: broadcast(c, xs[r], 1, "auto", Position()))
    )
    assert longest < FEW and all((x == 0o111).all() for x in results)


# ---- what is not all shared goes the ordinary way ---------------------------------------------------


def mixtures(ranks, values):
    """Ways to pass arrays that are not all of one region at contiguous places: name -> (xs, outs)."""
    size, count = len(values), values[0].size
    a, b = ranks.arrays(values), ranks.arrays(values)
    ordinary = [value.copy() for value in values]
    wide = [w[::2] for w in ranks.empty(2 * count, values[0].dtype)]
    for w, value in zip(wide, values):
        w[...] = value
    later = [None if r else w for r, w in enumerate(ranks.arrays(values))]
    return {
        "no out": (a, [None] * size),
        "an ordinary x": ([ordinary[0], *a[1:]], [ordinary[0], *a[1:]]),
        "an ordinary out": (a, [*b[1:], np.zeros_like(values[0])][::-1]),
        "regions that differ": ([a[0], b[1], *a[2:]], [a[0], b[1], *a[2:]]),
        "a strided x": (wide, b),
        "a strided out": (a, wide),
        "no out on some": (a, later),
    }


@pytest.mark.parametrize("size", [2, 3])
def test_mixtures_are_right_by_messages(size):
    values = [8.0**r * np.arange(1, 1001) for r in range(size)]
    want = sum(values)
    for name in mixtures(Node(size), values):
        for algorithm in ("auto", "shared"):
            ranks = Node(size)
            xs, outs = mixtures(ranks, values)[name]
            given = [None if r is None else r for r in outs]
            results, longest = ranks.sends(
                lambda: ranks.call(
                    "allreduce", lambda r: (xs[r], "sum", given[r], "ring", algorithm)
                )
            )
            if algorithm == "auto":
                assert longest > FEW, name
                assert all(same_bits(np.array(r), want) for r in results), name
            else:
                assert [type(error) for error in results] == [ValueError] * size
                assert len({str(error) for error in results}) == 1
                assert "algorithm='shared' needs" in str(results[0])


def test_who_passed_other_memory_is_named():
    ranks = Node(4)
    xs = ranks.empty(10)
    xs[2] = np.ones(10, "f4")
    for error in ranks.call(
        "allreduce", lambda r: (xs[r], "sum", xs[r], "ring", "shared")
    ):
        assert "rank 2 passed other memory" in str(error)
        assert "rank 0" not in str(error)


def test_places_may_differ_between_ranks():
    ranks = Node(3)
    values = [8**r * np.arange(10) for r in range(3)]
    xs = [w[7 * r :][:10] for r, w in enumerate(ranks.empty(30, "int64"))]
    for x, value in zip(xs, values):
        x[...] = value
    results, longest = ranks.sends(
        lambda: ranks.call(
            "allreduce", lambda r: (xs[r], "sum", xs[r], "ring", "shared")
        )
    )
    assert longest < FEW and all(same_bits(r, sum(values)) for r in results)


def test_views_of_any_shape_and_dtype():
    ranks = Node(2)
    whole = ranks.empty((4, 6), "float32")
    for rank, x in enumerate(whole):
        x[...] = 0
        x[1:3] = 8.0**rank
    parts = [x[1:3] for x in whole]
    for part in ranks.call(
        "allreduce", lambda r: (parts[r], "sum", parts[r], "ring", "shared")
    ):
        assert part.shape == (2, 6) and (part == 9).all()
    assert all((x[[0, 3]] == 0).all() for x in whole)
    bits = [x.view("uint32") for x in whole]
    for x in ranks.call(
        "allreduce", lambda r: (bits[r], "max", bits[r], "ring", "shared")
    ):
        assert x.dtype == np.uint32 and x.shape == (4, 6)


def test_an_allgather_that_would_be_written_while_others_read():
    """x is a part of out, but not this rank's: promise 1 has it right all the same."""
    for algorithm in ("auto", "shared"):
        ranks = Node(3)
        outs = ranks.empty(6, "int64")
        for rank, out in enumerate(outs):
            out[...] = 10 * rank + np.arange(6)
        xs = [out[1:3] for out in outs]
        results = ranks.call("allgather", lambda r: (xs[r], outs[r], algorithm))
        for result in results:
            if algorithm == "auto":
                assert result.tolist() == [1, 2, 11, 12, 21, 22]
            else:
                assert type(result) is ValueError
                assert "written and read at once" in str(result)


def test_unchecked_rings_open_for_shared_arrays_all_the_same():
    ranks = Node(2)
    for collectives in ranks.collectives:
        collectives._check = False
    xs = ranks.arrays([np.full(5, 8**r) for r in range(2)])
    for result in ranks.call("allreduce", lambda r: (xs[r], "sum", xs[r])):
        assert (result == 9).all()


def test_unknown_algorithms_are_told_of_this_one():
    for error in Node(2).call("allreduce", lambda r: (1, "sum", None, "ring", "fast")):
        assert "'shared'" in str(error)


def test_memory_that_is_short_after_all_raises_on_every_rank(monkeypatch):
    """Scratch that a rank takes only when it hears that others passed ordinary memory."""
    ranks = Node(2)
    xs = ranks.empty(1 << 19)
    xs[0] = np.ones(1 << 19, "f4")

    def short(*_):
        raise MemoryError("no scratch here")

    monkeypatch.setattr(ranks.collectives[1].scratch, "take", short)
    for error in ranks.call("allreduce", lambda r: (xs[r], "sum", xs[r])):
        assert type(error) is MemoryError and "rank 1: no scratch here" in str(error)
    assert not isinstance(error, RingError)
    monkeypatch.undo()
    for x in xs:
        x[...] = 1
    for result in ranks.call("allreduce", lambda r: (xs[r], "sum", xs[r])):
        assert (result == 2).all()


def test_arrays_live_as_long_as_one_of_them():
    xs = Node(3).empty(1000)
    at = xs[0].__array_interface__["data"][0]
    kept = xs[1][5:]
    del xs
    assert locate(at) is not None
    kept[...] = 3
    del kept
    assert locate(at) is None


# ---- nobody reads too early or writes too soon -----------------------------------------------------


def turns(ranks, rank, c, xs, outs):
    """Collectives behind each other; a rank writes its input as soon as it may."""
    size, found = ranks.size, []
    for turn in range(3):
        xs[rank][...] = 8**rank * (turn + 1)
        result = yield from c.allreduce(
            xs[rank], "sum", outs[rank], "ring", "shared", Position()
        )
        found.append(result.tolist())
        xs[rank][...] = -1
        outs[rank][...] = -2
        xs[rank][...] = 8**rank
        part = yield from c.reduce_scatter(
            xs[rank], "sum", None, "ring", "shared", Position()
        )
        xs[rank][...] = rank
        found.append(part.tolist())
        joined = yield from allgather(c, xs[rank][:1], None, "shared", Position())
        xs[rank][...] = 100 * rank + turn
        found.append(joined.tolist())
        root = turn % size
        yield from broadcast(c, xs[rank], root, "shared", Position())
        found.append(xs[rank].tolist())
        xs[rank][...] = 8**rank
        into = outs[rank] if turn else None
        total = yield from reduce(
            c, xs[rank], "sum", root, into, "ring", "shared", Position()
        )
        xs[rank][...] = -3
        found.append(None if total is None else total.tolist())
    return found


def expected(size, rank, count):
    length = count // size + (rank < count % size)
    total = int("1" * size, base=8)
    for turn in range(3):
        root = turn % size
        yield [total * (turn + 1)] * count
        yield [total] * length
        yield list(range(size))
        yield [100 * root + turn] * count
        yield [total] * count if rank == root else None


def order_of_turns(seed, rendezvous, size):
    ranks = Node(size, seed, rendezvous)
    xs, outs = ranks.empty(5, "int64"), ranks.empty(5, "int64")
    results = ranks.run(lambda rank, c: turns(ranks, rank, c, xs, outs))
    for rank, result in enumerate(results):
        assert result == list(expected(size, rank, 5))


@examples(max_examples=60)
@given(seeds, protocols, sizes)
def test_who_has_left_a_call_may_write(seed, rendezvous, size):
    order_of_turns(seed, rendezvous, size)


def test_without_the_closing_exchange_this_would_show(monkeypatch):
    def nothing(self, position):
        return
        yield

    monkeypatch.setattr(closing.Closing, "exchange", nothing)
    wrong = 0
    for seed in range(20):
        try:
            order_of_turns(seed, None, 3)
        except AssertionError:
            wrong += 1
    assert wrong > 0
