"""The examples in the docstrings of mpiring.plan are true."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import mpiring.plan

MODULES = [
    "mpiring.plan",
    *(
        f"mpiring.plan.{module.name}"
        for module in pkgutil.iter_modules(mpiring.plan.__path__)
    ),
]


# `mpiring.plan.verify` and others are also names of functions, so modules are taken by their full name.
@pytest.mark.parametrize("name", MODULES)
def test_doctests(name):
    importlib.import_module(name)
    outcome = doctest.testmod(importlib.sys.modules[name], verbose=False)
    assert outcome.attempted > 0
    assert outcome.failed == 0


def test_all_names_are_there():
    names = mpiring.plan.__all__
    assert names == sorted(names) and len(set(names)) == len(names)
    for name in names:
        assert getattr(mpiring.plan, name).__doc__ if name != "ALGORITHMS" else True
