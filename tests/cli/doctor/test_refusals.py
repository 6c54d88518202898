"""What Open MPI's mpirun refuses: root, and more ranks than cores; from made-up environments and files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mpiring.cli.doctor import refusals
from mpiring.cli.doctor.finding import as_text
from mpiring.cli.doctor.refusals import Setting, count_cores, judge_root, judge_slots
from mpiring.wire.gpu_aware.loaded import Library

from launch import ENVIRONMENT

README = Path(__file__).parents[3] / "README.md"

FIVE = Library("Open MPI v5.0.11, package: x", (3, 1), ("/opt/ompi/lib/libmpi.so.40",))
FOUR = Library("Open MPI v4.1.4, package: x", (3, 1), ("/opt/ompi/lib/libmpi.so.40",))
FIRST, SECOND = refusals.ROOT_VARIABLES
POLICY = "PRTE_MCA_rmaps_default_mapping_policy"
OLD = "OMPI_MCA_rmaps_base_oversubscribe"
SCRIPT = """#!/bin/sh
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
exec mpiexec "$@"
"""


@pytest.mark.parametrize(
    "uid, environment, family, script, status",
    [
        (1000, {}, "Open MPI", "", "ok"),
        (0, {}, "MPICH", "", "ok"),
        (0, {}, "", "", "ok"),
        (0, {}, "Open MPI", "", "note"),
        (0, {FIRST: "1"}, "Open MPI", "", "note"),
        (0, {FIRST: "1", SECOND: "1"}, "Open MPI", "", "ok"),
        (0, {FIRST: "0", SECOND: "1"}, "Open MPI", "", "note"),
        (0, {FIRST: "", SECOND: "1"}, "Open MPI", "", "note"),
        # Only its own launcher, prterun, takes these for an answer.
        (
            0,
            {"PRTE_ALLOW_RUN_AS_ROOT": "1", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1"},
            "Open MPI",
            "",
            "note",
        ),
        (0, {}, "Open MPI", SCRIPT, "ok"),
        (0, {}, "Open MPI", "#!/bin/sh\nexec mpiexec", "note"),
    ],
)
def test_root(uid, environment, family, script, status):
    finding = judge_root(uid, environment, family, script)
    assert finding.status == status
    assert (refusals.ROOT_LINE in finding.advice.splitlines()) == (status == "note")


def test_root_in_a_job_that_has_started():
    finding = judge_root(0, {}, "Open MPI", in_job=True)
    assert (finding.status, finding.found) == ("ok", "root, and this job has started")


@pytest.mark.parametrize("cores, status", [(1, "note"), (3, "note"), (4, "ok")])
def test_fewer_cores_than_the_first_program_has_ranks(cores, status):
    finding = judge_slots(cores, {}, {}, FIVE)
    assert finding.status == status
    assert finding.found.startswith(f"mpirun starts {cores} rank")
    line = f"export {POLICY}=:oversubscribe"
    assert (line in finding.advice.splitlines()) == (status == "note")


@pytest.mark.parametrize(
    "value, allows",
    [
        (":oversubscribe", True),
        (" :OVERSUBSCRIBE", True),
        (":overs", True),
        ("core:oversubscribe", True),
        ("slot:pe=2,oversubscribe", True),
        ("ppr:2:node:oversubscribe", True),
        ("oversubscribe", False),
        (":nooversubscribe", False),
        ("core", False),
        ("", False),
    ],
)
def test_a_policy(value, allows):
    assert Setting(5).allows(value) is allows
    finding = judge_slots(2, {POLICY: value}, {}, FIVE)
    assert finding.status == ("ok" if allows else "note")


@pytest.mark.parametrize("value, allows", [("1", True), ("true", True), ("0", False)])
def test_what_open_mpi_4_wants(value, allows):
    assert judge_slots(2, {OLD: value}, {}, FOUR).status == ("ok" if allows else "note")
    assert f"export {OLD}=1" in judge_slots(2, {}, {}, FOUR).advice.splitlines()
    # Each has its own.
    assert judge_slots(2, {OLD: "1"}, {}, FIVE).status == "note"
    assert judge_slots(2, {POLICY: ":oversubscribe"}, {}, FOUR).status == "note"


YES, NO = (f"# a\n  rmaps_default_mapping_policy = {v}\n" for v in (":overs", "core"))


@pytest.mark.parametrize(
    "environment, files, status",
    [
        ({}, {"/a": YES}, "ok"),
        ({}, {"/a": "#rmaps_default_mapping_policy = :overs"}, "note"),
        ({}, {"/a": "", "/b": YES}, "ok"),
        ({}, {"/a": NO, "/b": YES}, "note"),
        ({}, {"/a": NO + YES}, "ok"),
        ({POLICY: "core"}, {"/a": YES}, "note"),
        ({POLICY: ":overs"}, {"/a": NO}, "ok"),
    ],
)
def test_the_variable_counts_before_files_and_the_first_of_those(
    environment, files, status
):
    assert judge_slots(2, environment, files, FIVE).status == status


def test_files_are_the_users_and_those_of_the_installation(tmp_path):
    home, prefix = tmp_path / "home", tmp_path / "ompi"
    for path in (home / ".prte", prefix / "etc", prefix / "lib"):
        path.mkdir(parents=True)
    (home / ".prte" / "mca-params.conf").write_text(NO)
    (prefix / "etc" / "prte-mca-params.conf").write_bytes(b"\xff" + YES.encode())
    mpi = Library("Open MPI v5", (3, 1), (str(prefix / "lib" / "libmpi.so.40"),))
    found = Setting(5).find_files(mpi, home)
    assert list(found.values())[0] == NO and len(found) == 2
    assert Setting(5).find_value(list(found.values())[1:]) == " :overs"
    assert Setting(5).find_files(Library("Open MPI v5", (3, 1)), tmp_path) == {}


def test_a_launcher_that_is_a_script(tmp_path):
    (tmp_path / "mpirun").write_text(SCRIPT)
    (tmp_path / "program").write_bytes(b"\x7fELF\xff")
    assert refusals.find_script(str(tmp_path / "mpirun")) == SCRIPT
    for nothing in ("", str(tmp_path / "program"), str(tmp_path / "gone")):
        assert refusals.find_script(nothing) == ""


def test_two_processors_that_are_one_core(tmp_path):
    for number, siblings in enumerate(["0,2", "1,3", "0,2", "1,3"]):
        path = tmp_path / f"cpu{number}" / "topology"
        path.mkdir(parents=True)
        (path / "thread_siblings_list").write_text(f"{siblings}\n")
    assert count_cores(range(4), tmp_path) == 2
    assert count_cores([0, 2], tmp_path) == 1
    assert count_cores(range(4), tmp_path / "not there") == 4


def test_what_is_to_be_typed_is_on_a_line_of_its_own_and_what_the_readme_says():
    findings = [judge_root(0, {}, "Open MPI"), judge_slots(2, {}, {}, FIVE)]
    lines = [line.strip() for line in as_text(findings, 60).splitlines()]
    typed = [line for line in lines if line.startswith("export ")]
    assert typed == [refusals.ROOT_LINE, f"export {POLICY}=:oversubscribe"]
    told = re.findall(r"(?m)^(export .*?) *(?:#.*)?$", README.read_text())
    assert told == typed
    # And the tests start jobs by them.
    said = dict(word.split("=", 1) for line in typed for word in line.split()[1:])
    assert said.items() <= ENVIRONMENT.items()
