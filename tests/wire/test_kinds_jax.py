"""What JAX's arrays have that others have not: devices and commitment, tracers, 64 bits that are off."""

from __future__ import annotations

import os
import sys

import numpy as np
import pytest

from mpiring.wire.arrays import kind_of
from mpiring.wire.collectives import rooted
from mpiring.wire.ring.messages import Message, exchange
from mpiring.wire.transport.device import Carriage
from mpiring.wire.transport.local import LocalNetwork
from mpiring.wire.transport.position import Position

from launch import run
from wire.libraries import JAX, check, need
from wire.ranks import Ranks, kept

need(JAX)


@pytest.fixture
def jax():
    return JAX.xp


def allreduce(xs, outs=None):
    outs = outs or [None] * len(xs)
    return Ranks(len(xs)).call("allreduce", lambda r: (xs[r], "sum", outs[r]))


def broadcast(xs, root=0):
    return Ranks(len(xs)).run(
        lambda r, c: rooted.broadcast(c, xs[r], root, "auto", Position())
    )


def test_out_is_refused(jax):
    x = jax.numpy.ones(3)
    results = allreduce([x, x], [None, x])
    assert {type(error) for error in results} == {ValueError}
    told = "rank 1: out is a ArrayImpl, which cannot be filled; leave it out"
    assert all(told in str(error) for error in results)


def test_an_immutable_array_cannot_be_filled_in_a_group():
    network = LocalNetwork(1)
    x = JAX.asarray(np.ones(3))
    calls = [Message(True, x, 0, 0), Message(False, x, 0, 0)]
    program = kept(exchange(Carriage(network.transports[0], "direct"), calls))
    (error,) = network.run([program])
    assert type(error) is TypeError and "cannot be filled in a group" in str(error)


def test_the_input_stays_as_it_is(jax):
    x = jax.numpy.arange(4.0)
    first, _ = allreduce([x, x])
    assert first is not x and x.tolist() == [0, 1, 2, 3]
    assert first.tolist() == [0, 2, 4, 6]
    received = broadcast([x, x + 1])
    assert received[0] is x and received[1].tolist() == [0, 1, 2, 3]


def test_a_result_shares_no_memory_with_the_next(jax):
    """JAX takes our memory as it is, so it must be ours no more."""
    x = jax.numpy.ones(64)
    first, _ = allreduce([x, x])
    allreduce([first, first])
    assert first.tolist() == [2.0] * 64


def test_a_result_is_taken_without_a_copy(jax):
    kind = kind_of(jax.numpy.ones(3))
    for shape in ((5,), (), (2, 3), 4):
        theirs, array = kind.new(shape, "float32")
        array[...] = 7
        result = kind.finished(theirs, array)
        assert theirs is None and (np.asarray(result) == 7).all()
        pointer = array.__array_interface__["data"][0]
        assert result.unsafe_buffer_pointer() == pointer


@pytest.mark.parametrize("name", ["float64", "int64", "uint64", "complex128"])
def test_64_bits_are_kept_where_they_are_off(jax, name):
    assert not jax.config.jax_enable_x64
    x = JAX.asarray(np.array([1, 2], name))
    assert x.dtype == name
    for result in [*allreduce([x, x]), *broadcast([x, None])]:
        assert result.dtype == name
    assert not jax.config.jax_enable_x64
    assert allreduce([jax.numpy.ones(2)] * 2)[0].dtype == "float32"


def test_a_tracer_is_refused(jax):
    told = "a JAX tracer has no values yet: call the ring outside of jit, grad, vmap"

    def body(x):
        results = allreduce([1.0, x])
        assert {type(error) for error in results} == {TypeError}
        assert all(f"rank 1: {told}" in str(error) for error in results)
        with pytest.raises(TypeError, match=told):
            kind_of(x).as_array(x)
        return x.sum()

    x = jax.numpy.ones(3)
    jax.jit(body)(x)
    jax.grad(body)(x)
    jax.vmap(body)(jax.numpy.ones((2, 3)))


def test_a_random_key_is_refused(jax):
    key = jax.random.key(0)
    results = allreduce([1.0, key])
    assert {type(error) for error in results} == {TypeError}
    assert all(
        "key<fry> is not supported: pass jax.random.key_d" in str(e) for e in results
    )


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "int4"])
def test_dtypes_that_no_collective_takes(jax, dtype):
    x = jax.numpy.ones(3, dtype)
    results = allreduce([x, x])
    assert {type(error) for error in results} == {TypeError}
    assert all(f"dtype {dtype} is not supported" in str(error) for error in results)


def test_a_deleted_array_says_so(jax):
    x = jax.numpy.ones(3)
    x.delete()
    results = allreduce([1.0, x])
    assert all("rank 1: Array has been deleted" in str(error) for error in results)


DEVICES = """
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from wire.test_kinds_jax import allreduce, broadcast
from wire.ranks import Ranks, kept

first, second, third = jax.devices()
x = jax.numpy.ones(4)
assert not x.committed
for result in allreduce([x, x]):
    assert not result.committed and result.device == first
with jax.default_device(third):
    y = jax.numpy.ones(4)
for result in allreduce([y, y]):  # made there, not put there
    assert not result.committed and result.device == third
z = jax.device_put(x, second)
for result in [*allreduce([z, z]), *Ranks(2).call("allgather", lambda r: (z,))]:
    assert result.committed and result.device == second
mixed = allreduce([x, z])
assert [r.device for r in mixed] == [first, second]
assert broadcast([z, None])[1].device == first
one = jax.device_put(jax.numpy.ones((2, 2)), NamedSharding(Mesh([second], "a"), PartitionSpec(None, "a")))
parts = Ranks(2).call("reduce_scatter", lambda r: (one,))
assert all(p.device == second and p.tolist() == [2, 2] for p in parts)

mesh = Mesh(np.array([first, second]), "a")
for spec in (PartitionSpec("a"), PartitionSpec()):
    sharded = jax.device_put(x, NamedSharding(mesh, spec))
    for error in allreduce([x, sharded]):
        assert type(error) is TypeError, error
        assert "rank 1: a JAX array on 2 devices: pass what is on one of them" in str(error)
shards = [[s.data for s in sharded.addressable_shards] for _ in range(2)]
assert allreduce([shards[0][0], shards[1][1]])[1].device == second
print("all well")
"""


def test_devices(tmp_path):
    """Three devices, which a process has to ask for before JAX starts."""
    program = tmp_path / "devices.py"
    program.write_text(DEVICES)
    env = {
        **os.environ,
        "XLA_FLAGS": "--xla_force_host_platform_device_count=3",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": ":".join(sys.path),
    }
    job = run([sys.executable, str(program)], timeout=120, env=env)
    assert job.check().stdout == "all well\n"


def test_on_the_cpu_it_is_seen_by_numpy(jax):
    x = jax.numpy.arange(3.0)
    kind = kind_of(x)
    assert kind.name == "jax" and not kind.is_device
    assert kind.as_array(x).__array_interface__["data"] == (
        x.unsafe_buffer_pointer(),
        True,
    )
    check(JAX, allreduce([x])[0], np.arange(3, dtype="f4"))
