"""The checks of the kernels can fail: each of these mistakes in ``kernel_code.py`` is seen."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import numpy as np
import pytest

from mpiring.wire.reduce import kernel_code, kernels
from mpiring.wire.reduce.kernels import Form

from wire.kernel_checks import check_all

pytestmark = [
    pytest.mark.untraced,
    pytest.mark.skipif(
        bool(kernels.missing()), reason=f"no kernels here: {kernels.missing()}"
    ),
]


@pytest.fixture(autouse=True)
def numpy_does_not_warn():
    with np.errstate(all="ignore"):
        yield


SOURCE = Path(kernel_code.__file__).read_text()
MISTAKES = {
    "rounds ties up": ('self.same("int32", 0x7FFF)', 'self.same("int32", 0x8000)'),
    "rounds odd ones down": (
        'self.same("int32", 0x8000)',
        'self.same("int32", 0x7FFF)',
    ),
    "looks at the wrong bit": ("0x10000)", "0x20000)"),
    "lets NaN of bfloat16 overflow": (
        'return build.select(is_nan, self.same("int32", 0x7FC00000), words)',
        "return words",
    ),
    "keeps the payload of float16": (
        'build.select(is_nan, self.same("int16", 0x7E00), rounded)',
        "rounded",
    ),
    "has another NaN": ("0x7E00", "0x7E01"),
    "folds from the right": (
        "total = tiles[0]",
        "tiles = tiles[::-1]; total = tiles[0]",
    ),
    "has the accumulator on the right": (
        "self.step(total, tile)",
        "self.step(tile, total)",
    ),
    "leaves out an operand": ("for tile in tiles[1:]", "for tile in tiles[2:]"),
    "does not divide": ('if self.form.op == "avg":', 'if self.form.op == "mean":'),
    "multiplies by the reciprocal": (
        "total = self.build.fdiv(total, self.same(self.form.wide, divisor))",
        "one = self.build.fdiv(total.type([1.0] * self.width), self.same(self.form.wide, divisor))\n"
        "            total = self.build.fmul(total, one)",
    ),
    "adds products": ("build.fmul(a, b)", "build.fadd(a, b)"),
    "subtracts integers": ("build.add(a, b)", "build.sub(a, b)"),
    "has signs where there are none": (
        "build.icmp_unsigned if",
        "build.icmp_signed if",
    ),
    "has no signs": ("else build.icmp_signed", "else build.icmp_unsigned"),
    "takes the smaller for the larger": ('op == "min" else', 'op == "max" else'),
    "takes another of equal halves": ('"=" * (wide == "float16")', '""'),
    "takes NaN for a number": ("build.or_(is_first, is_nan)", "is_first"),
    "leaves out the end": ("(tiled, count, 1, single)", "(tiled, tiled, 1, single)"),
    "goes too far": ("(number(0), tiled, lanes", "(number(0), count, lanes"),
    "leaves out tiles": ("start.type(step)", "start.type(2 * step)"),
    "swaps even and odd": (
        "build.or_(low, high)",
        "build.or_(build.shl(low, sixteen), build.lshr(high, sixteen))",
    ),
    "stores to the first output only": ("for out in outs:", "for out in outs[:1]:"),
}


def mutant(old, new):
    """``find`` for kernels written by a changed ``kernel_code``."""
    assert old in SOURCE
    module = types.ModuleType("mpiring.wire.reduce.mutant")
    module.__package__ = "mpiring.wire.reduce"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, module.__name__, module)
        exec(SOURCE.replace(old, new), module.__dict__)
    made: dict[Form, object] = {}

    def find(form):
        if form not in made:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(kernels, "write", module.write)
                made[form] = kernels._compiler().compile(form)
        return made[form]

    return find


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_seen(name):
    with pytest.raises(AssertionError):
        check_all(mutant(*MISTAKES[name]))


def test_without_a_mistake_nothing_is_seen():
    check_all(mutant("align=1", "align=1"))
