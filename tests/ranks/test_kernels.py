"""Some ranks have the kernels for 16-bit floats and others have not: nobody can tell from the bits (promise 4)."""

from __future__ import annotations

import numpy as np
import pytest

from mpiring import Ring
from mpiring.wire import kernels

from ranks.reference import HALVES, dtype_of, reduced, same_bits, same_on_all_ranks


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
