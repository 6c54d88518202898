"""Regions: found by address, as long as an array lives and no longer; nothing is left of them."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest

from mpiring.wire.arrays.mapped import Place, Region, locate, region_named

BYTES = 3 << 12


def mapping(name=b"12345678", nbytes=BYTES):
    descriptor = os.memfd_create("region")
    try:
        os.ftruncate(descriptor, nbytes)
        return Region(descriptor, nbytes, name)
    finally:
        os.close(descriptor)


def address(x):
    return x.__array_interface__["data"][0]


def mappings():
    return Path("/proc/self/maps").read_text().count("memfd:region")


def test_arrays_and_their_views_are_found():
    region = mapping()
    x = region.array(4096, 1024, "float32").reshape(4, 256)
    assert x.dtype == np.float32 and (x == 0).all()
    for view, offset in [
        (x, 4096),
        (x[1:], 4096 + 1024),
        (x[2, 5:], 4096 + 2048 + 20),
        (x.T, 4096),
        (x.view("u1"), 4096),
        (x[4:], 4096),  # where NumPy says that nothing is
        (np.frombuffer(memoryview(x), "f4")[1:], 4100),
    ]:
        assert locate(address(view)) == Place(b"12345678", offset)
    assert locate(region.address) == (b"12345678", 0)
    assert locate(region.address + BYTES - 1) == (b"12345678", BYTES - 1)
    assert locate(region.address + BYTES) is None
    assert locate(region.address - 1) is None
    assert locate(address(x.copy())) is None
    assert region_named(b"12345678") is region and region_named(b"another ") is None


def test_two_mappings_of_a_file_are_one_memory():
    descriptor = os.memfd_create("region")
    os.ftruncate(descriptor, BYTES)
    a, b = Region(descriptor, BYTES, b"a"), Region(descriptor, BYTES, b"b")
    os.close(descriptor)
    a.array(0, 3, "bfloat16")[...] = [1, 2, 3]
    assert b.array(0, 3, "bfloat16").tolist() == [1, 2, 3]


def test_the_last_array_unmaps():
    assert mappings() == 0
    region = mapping()
    whole, part = region.array(0, 100, "f4"), region.array(4096, 10, "f8")[::2]
    at = region.address
    del region, whole
    part[...] = 7
    assert mappings() == 1 and locate(at) is not None and part.sum() == 35
    del part
    assert mappings() == 0 and locate(at) is None and region_named(b"12345678") is None


def test_an_address_that_is_used_again_is_another_region():
    for turn in range(200):
        region = mapping(str(turn).encode(), 4096 * (1 + turn % 3))
        assert locate(region.address) == (str(turn).encode(), 0)
    del region
    ordinary = [np.empty(BYTES, "u1") for _ in range(200)]
    assert all(locate(address(x)) is None for x in ordinary)


def test_thousands_need_no_open_file():
    before = len(os.listdir("/proc/self/fd"))
    regions = [mapping(str(n).encode(), 4096) for n in range(3000)]
    assert len(os.listdir("/proc/self/fd")) == before
    for n in np.random.default_rng(0).permutation(3000)[:1500]:
        regions[n] = None
    for n, region in enumerate(regions):
        if region is not None:
            assert locate(region.address) == (str(n).encode(), 0)
    del regions, region
    assert mappings() == 0 and locate(0) is None


def test_threads_make_and_drop_them():
    wrong = []

    def work(me):
        for turn in range(300):
            region = mapping(f"{me} {turn}".encode(), 4096)
            if locate(region.address) != (f"{me} {turn}".encode(), 0):
                wrong.append((me, turn))

    threads = [threading.Thread(target=work, args=(me,)) for me in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [] and mappings() == 0


def test_what_cannot_be_mapped_is_an_error():
    with pytest.raises(OSError):
        Region(-1, 4096, b"nothing")
    with pytest.raises(OSError):
        mapping(nbytes=0)
    assert region_named(b"nothing") is None
