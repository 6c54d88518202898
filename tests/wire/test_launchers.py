"""The launcher of this process, from made-up ancestors."""

from __future__ import annotations

import doctest

import pytest

from mpiring.wire.settings import launchers
from mpiring.wire.settings.launchers import can_start, nearest


def test_doctests():
    outcome = doctest.testmod(launchers)
    assert outcome.attempted > 0 and outcome.failed == 0


def test_ancestors_are_read_from_proc(tmp_path):
    def process(pid, name, parent, exe):
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "stat").write_text(
            f"{pid} ({name}) S {parent} 1 1 0 -1 4194304"
        )
        if exe:
            (tmp_path / pid / "exe").symlink_to(exe)

    process("self", "python", 12, "/usr/bin/python3")
    process("12", "a (b) c", 7, "/opt/a b")
    process("7", "mpirun", 1, "/opt/bin/mpirun")
    process("1", "init", 0, "")
    expected = [("a (b) c", "/opt/a b"), ("mpirun", "/opt/bin/mpirun"), ("init", "")]
    assert launchers.find_ancestors(tmp_path) == expected
    assert launchers.find_ancestors(tmp_path / "not there") == []
    # The kernel cuts a name at 15 bytes, perhaps in the middle of a letter.
    (tmp_path / "7" / "stat").write_bytes(b"7 (\xc3) S 1 7 0")
    assert launchers.find_ancestors(tmp_path)[1] == ("\udcc3", "/opt/bin/mpirun")


@pytest.mark.parametrize(
    "ancestors, launcher",
    [
        ([], ""),
        ([("bash", "/bin/bash"), ("init", "")], ""),
        ([("mpirun", "/opt/bin/mpirun")], ""),  # whose may that be?
        ([("prterun", "/opt/bin/prterun")], launchers.OPEN_MPI),
        ([("mpirun", "/usr/bin/orterun")], launchers.OPEN_MPI),
        ([("hydra_pmi_proxy", ""), ("slurmstepd", "")], launchers.HYDRA),
        ([("bash", ""), ("slurmstepd", ""), ("prted", "")], launchers.SRUN),
        ([("hydra_pmi_proxy", ""), ("prterun", "")], launchers.HYDRA),
        ([("prterun", ""), ("hydra_pmi_proxy", "")], launchers.OPEN_MPI),
    ],
)
def test_the_nearest_counts(ancestors, launcher):
    assert nearest(ancestors) == launcher


def test_whose_programs_a_launcher_starts():
    assert can_start(launchers.OPEN_MPI, "Open MPI")
    assert can_start(launchers.HYDRA, "Intel MPI")
    assert not can_start(launchers.OPEN_MPI, "MPICH")
    assert not can_start(launchers.HYDRA, "Open MPI")
    for launcher in (launchers.SRUN, launchers.OPEN_MPI, "one of next year"):
        assert can_start(launcher, "") and can_start(launcher, "unknown")
    assert can_start(launchers.SRUN, "Open MPI") and can_start(launchers.SRUN, "MPICH")
