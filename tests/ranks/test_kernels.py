"""Some ranks have the kernels for 16-bit floats and others have not: nobody can tell from the bits (promise 4)."""

from __future__ import annotations

import numpy as np
import pytest

from mpiring import Ring
from mpiring.wire.reduce import kernels

from ranks.reference import HALVES, dtype_of, reduced, same_bits, same_on_all_ranks


@pytest.mark.parametrize("without", [(0,), (1,), (0, 1, 2, 3)])
@pytest.mark.parametrize("order", ["ring", "rank"])
def test_nan_is_the_same_everywhere(comm, monkeypatch, without, order):
    """Kernels and NumPy choose different payloads: no rank may combine for itself what another one combines, too."""
    if comm.rank in without:
        monkeypatch.setattr(kernels, "find", lambda form: None)
        monkeypatch.setattr(kernels, "missing", lambda: "for this test")
    results = []
    with Ring(comm) as ring:
        for dtype in ("float32", "float64"):
            for count in (600, 2001, 20_001):
                x = nan_of(dtype, count, comm.rank)
                for op in ("sum", "avg", "prod", "min", "max"):
                    for _ in range(2):  # the second time all is known
                        results.append(ring.allreduce(x, op, order=order))
                        assert np.isnan(results[-1]).all()
        stages = ring._session.members[0].ways.stages
        is_mixed = 0 < len([r for r in without if r < comm.size]) < comm.size
        assert comm.size == 1 or (stages.lengths.one_shot < 0) == is_mixed
    same_on_all_ranks(comm, results)


def nan_of(dtype, count, rank):
    """NaN with many payloads, positive and negative."""
    word = {"float32": "u4", "float64": "u8"}[dtype]
    quiet = np.full(count, np.nan, dtype).view(word)
    signs = (np.arange(count, dtype=word) + rank) % 2 << np.array(
        8 * quiet.itemsize - 1, word
    )
    return (
        (quiet + signs + np.arange(count, dtype=word) % 1000 + 1000 * rank + 1)
        .astype(word)
        .view(dtype)
    )


@pytest.mark.parametrize("without", [(0,), (1, 2), (1, 3)])
def test_ranks_need_not_agree_on_kernels(comm, monkeypatch, without):
    count, results, wanted = 10_000, [], []
    if comm.rank in without:
        monkeypatch.setattr(kernels, "find", lambda form: None)
    with Ring(comm) as ring:
        for dtype in HALVES:
            inputs = []
            for rank in range(comm.size):
                bits = np.random.default_rng(rank).integers(0, 1 << 16, count, "u2")
                bits[:99] = 1 << rank  # subnormal numbers
                inputs.append(bits.view(dtype_of(dtype)))
            for op in ("sum", "avg", "prod", "min", "max"):
                for algorithm in ("ring", "direct"):
                    results.append(
                        ring.allreduce(inputs[comm.rank], op, algorithm=algorithm)
                    )
                    wanted.append(reduced(inputs, op))
    same_on_all_ranks(comm, results)
    for result, want in zip(results, wanted):
        is_nan = np.isnan(want.astype("f4"))
        assert (np.isnan(result.astype("f4")) == is_nan).all()
        result[is_nan] = want[is_nan] = 0  # payloads are equal, that is all
        same_bits(result, want, "16 bits")
