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


@pytest.mark.parametrize("name", MODULES)
def test_doctests(name):
    outcome = doctest.testmod(importlib.import_module(name))
    assert outcome.attempted > 0
    assert outcome.failed == 0


def test_all_names_are_there():
    names = mpiring.plan.__all__
    assert names == sorted(names) and len(set(names)) == len(names)
    for name in names:
        assert hasattr(mpiring.plan, name)
