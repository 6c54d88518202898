"""Who started us and whether the ranks are one job, on made-up environments."""

from __future__ import annotations

import pytest

from mpiring.cli.doctor import launch
from mpiring.cli.doctor.launch import Launcher, find_launcher
from mpiring.wire.gpu_aware.loaded import Library

# What launchers set: seen under the wheels' mpirun, or read in the manuals of Slurm and PALS.
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4", "PMIX_RANK": "1"}
HYDRA = {"PMI_RANK": "2", "PMI_SIZE": "3", "PMI_FD": "9", "MPI_LOCALNRANKS": "3"}
INTEL = {**HYDRA, "I_MPI_HYDRA_UUID": "1a0f"}
SRUN = {
    "SLURM_JOB_ID": "77",
    "SLURM_PROCID": "5",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "8",
}
BATCH = {"SLURM_JOB_ID": "77", "SLURM_PROCID": "0", "SLURM_NTASKS": "8"}

OPEN_MPI_5 = Library(
    "Open MPI v5.0.11, package: x", (3, 1), ("/nowhere/lib/libmpi.so.40",)
)
MPICH_5 = Library("MPICH Version:      5.0.2", (5, 0))
INTEL_MPI = Library("Intel(R) MPI Library 2021.18.1 for Linux* OS", (4, 1))


@pytest.mark.parametrize(
    "environment, name, family, rank, size, protocol",
    [
        (OPEN_MPI, "Open MPI's mpirun", "Open MPI", 1, 4, ""),
        (HYDRA, "MPICH's mpirun (Hydra)", "MPICH", 2, 3, ""),
        (INTEL, "Intel MPI's mpirun", "Intel MPI", 2, 3, ""),
        (SRUN, "Slurm's srun", "unknown", 5, 8, "none"),
        ({**SRUN, "PMIX_NAMESPACE": "s"}, "Slurm's srun", "unknown", 5, 8, "PMIx"),
        (
            {**SRUN, "PMI_FD": "7", "PMI_RANK": "5", "PMI_SIZE": "8"},
            "Slurm's srun",
            "unknown",
            5,
            8,
            "PMI",
        ),
        # An mpirun inside Slurm starts its daemons with srun, one on each host.
        ({**SRUN, **OPEN_MPI}, "Open MPI's mpirun", "Open MPI", 1, 4, ""),
        ({**SRUN, **HYDRA}, "MPICH's mpirun (Hydra)", "MPICH", 2, 3, ""),
        ({"PALS_RANKID": "0", "PMI_SIZE": "2"}, "HPE Cray's PALS", "MPICH", 0, 2, ""),
        ({"PALS_RANKID": "0"}, "HPE Cray's PALS", "MPICH", 0, None, ""),
        (
            {"PMI_RANK": "0", "PMI_SIZE": "2"},
            "a launcher that speaks PMI",
            "MPICH",
            0,
            2,
            "",
        ),
    ],
)
def test_launchers_are_recognised(environment, name, family, rank, size, protocol):
    found = find_launcher(environment)
    assert found is not None
    assert (found.name, found.family, found.protocol) == (name, family, protocol)
    assert (found.rank, found.size) == (rank, size)


@pytest.mark.parametrize(
    "environment", [{}, BATCH, {"PMI_SIZE": "4"}, {"OMPI_COMM_WORLD_RANK": "first"}]
)
def test_no_launcher(environment):
    assert find_launcher(environment) is None


def test_the_launchers_program_is_the_nearest_ancestor_that_is_one():
    ancestors = [
        ("sh", "/bin/sh"),
        ("hydra_pmi_proxy", "/opt/bin/hydra_pmi_proxy"),
        ("mpirun", "/opt/bin/mpirun"),
    ]
    found = find_launcher(HYDRA, ancestors)
    assert found is not None and found.program == "/opt/bin/hydra_pmi_proxy"
    # Root's: its path cannot be read.
    found = find_launcher(SRUN, [("slurmstepd", "")])
    assert found is not None and found.program == "slurmstepd"


@pytest.mark.parametrize(
    "environment, nearest, name, rank",
    [
        # A job inside a job: each sees the variables of both.
        ({**OPEN_MPI, **HYDRA}, "prterun", "Open MPI's mpirun", 1),
        ({**OPEN_MPI, **HYDRA}, "hydra_pmi_proxy", "MPICH's mpirun (Hydra)", 2),
        ({**OPEN_MPI, **INTEL}, "hydra_pmi_proxy", "Intel MPI's mpirun", 2),
        ({**OPEN_MPI, **SRUN}, "slurmstepd", "Slurm's srun", 5),
        ({**OPEN_MPI, **SRUN}, "prted", "Open MPI's mpirun", 1),
        ({**HYDRA, "PALS_RANKID": "6"}, "palsd", "HPE Cray's PALS", 6),
        # Of others nothing is known but their variables.
        ({**OPEN_MPI, **HYDRA}, "bash", "Open MPI's mpirun", 1),
        (HYDRA, "mpispawn", "MPICH's mpirun (Hydra)", 2),
    ],
)
def test_b47_variables_of_the_launcher_around_do_not_count(
    environment, nearest, name, rank
):
    found = find_launcher(environment, [("sh", "/bin/sh"), (nearest, "")])
    assert found is not None and (found.name, found.rank) == (name, rank)


def test_b47_what_was_exported_once_is_no_launcher():
    assert find_launcher(OPEN_MPI, [("bash", ""), ("slurmstepd", "")]) is None


def test_judge_launcher():
    finding = launch.judge_launcher(
        find_launcher(OPEN_MPI, [("prterun", "/x/prterun")]), {}, 4
    )
    assert finding.status == "ok" and finding.found == "Open MPI's mpirun, 4 ranks"
    assert finding.how.endswith("OMPI_COMM_WORLD_SIZE=4; an ancestor is /x/prterun")
    finding = launch.judge_launcher(None, BATCH, 1)
    assert finding.found == "none: started alone, inside Slurm job 77"
    assert "mpirun -n 4 mpiring doctor" in finding.advice
    finding = launch.judge_launcher(None, {"PBS_JOBID": "9.head"}, 6)
    assert finding.found.startswith(
        "a launcher unknown to this command, inside PBS job 9.head"
    )
    finding = launch.judge_launcher(
        find_launcher({**SRUN, "PMIX_NAMESPACE": "s"}), SRUN, 8
    )
    assert "serving PMIx for wire-up, inside Slurm job 77" in finding.found


@pytest.mark.parametrize("library", [OPEN_MPI_5, MPICH_5, INTEL_MPI])
@pytest.mark.parametrize(
    "launcher, size", [(None, 1), (OPEN_MPI, 4), (HYDRA, 3), (INTEL, 3)]
)
def test_one_job_is_ok(library, launcher, size):
    found = find_launcher(launcher) if launcher else None
    assert launch.judge_start(found, library, size).status == "ok"


@pytest.mark.parametrize(
    "environment, library, advice",
    [
        (
            OPEN_MPI,
            MPICH_5,
            "Open MPI's mpirun cannot start MPICH 5.0.2: use the mpirun of MPICH",
        ),
        (OPEN_MPI, INTEL_MPI, "Open MPI's mpirun cannot start Intel MPI 2021.18.1"),
        (HYDRA, OPEN_MPI_5, "MPICH's mpirun (Hydra) cannot start Open MPI 5.0.11"),
        (INTEL, OPEN_MPI_5, "Intel MPI's mpirun cannot start Open MPI 5.0.11"),
        (
            HYDRA,
            INTEL_MPI,
            "come from one installation: use the mpirun of Intel MPI 2021.18.1",
        ),
        (SRUN, OPEN_MPI_5, "srun --mpi=pmix"),
        (SRUN, INTEL_MPI, "I_MPI_PMI_LIBRARY=/path/to/libpmi2.so"),
        (SRUN, MPICH_5, "srun --mpi=pmi2"),
    ],
)
def test_many_jobs_of_one_rank_are_a_problem(environment, library, advice):
    launcher = find_launcher(environment)
    assert launcher is not None
    finding = launch.judge_start(launcher, library, 1)
    assert finding.status == "problem" and advice in finding.advice
    assert (
        f"{launcher.size} jobs of one rank instead of one job of {launcher.size}"
        in finding.found
    )
    assert f"{library.name} found none of the others" in finding.found


def test_the_right_mpirun_is_named_by_its_path(tmp_path):
    for name in ("mpirun", "mpiexec.hydra"):
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).touch()
    path = str(tmp_path / "lib" / "libmpi.so.12")
    launcher = find_launcher(OPEN_MPI, [("prterun", "/usr/bin/prterun")])
    mpich = Library(MPICH_5.text, (5, 0), (path,))
    advice = launch.judge_start(launcher, mpich, 1).advice
    assert "Open MPI's mpirun (/usr/bin/prterun) cannot start MPICH 5.0.2" in advice
    assert advice.endswith(f"use {tmp_path}/bin/mpirun")
    # Intel's mpirun works only with its own directory on PATH.
    intel = Library(INTEL_MPI.text, (4, 1), (path,))
    assert launch.judge_start(launcher, intel, 1).advice.endswith(
        f"{tmp_path}/bin/mpiexec.hydra"
    )


def test_a_job_of_another_size_is_a_problem():
    finding = launch.judge_start(find_launcher(OPEN_MPI), OPEN_MPI_5, 2)
    assert finding.status == "problem"
    assert finding.found == "the launcher started 4 ranks, COMM_WORLD has 2"


def test_one_process_under_mpirun_is_one_job():
    one = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}
    assert launch.judge_start(find_launcher(one), MPICH_5, 1).status == "ok"


def test_a_launcher_that_does_not_say_its_size_is_believed():
    unsized = Launcher("HPE Cray's PALS", "MPICH", 0, None, "PALS_RANKID=0")
    assert launch.judge_start(unsized, MPICH_5, 1).status == "ok"


@pytest.mark.parametrize("environment", [{}, OPEN_MPI, HYDRA])
def test_an_mpi_that_does_not_start_is_a_problem(environment):
    failure = "MPI_Init_thread ended the process with exit code 16"
    finding = launch.judge_start(find_launcher(environment), OPEN_MPI_5, None, failure)
    assert finding.status == "problem" and failure in finding.found and finding.advice


def test_ranks_and_hosts():
    finding = launch.judge_ranks({0: "a", 1: "a", 2: "b", 3: "a"}, 4)
    assert (finding.status, finding.found) == (
        "ok",
        "4 ranks on 2 hosts: a: 0-1, 3; b: 2",
    )
    assert launch.judge_ranks({0: "a"}, 1).found == "1 rank on 1 host: a: 0"


def test_silent_ranks_are_a_problem():
    finding = launch.judge_ranks({0: "a", 2: "b"}, 5)
    assert finding.status == "problem"
    assert finding.found.startswith("no answer from ranks 1, 3-4.")


def test_thread_levels():
    names = ["SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE"]
    statuses = [launch.judge_threads(level, names).status for level in range(4)]
    assert statuses == ["note", "note", "note", "ok"]
    assert launch.judge_threads(1, names).found == "FUNNELED"


def test_messages():
    assert launch.judge_messages(" \n\n") is None
    finding = launch.judge_messages("\n".join(f"line {i}" for i in range(9)))
    assert finding is not None and finding.status == "note"
    assert finding.found.splitlines()[-2:] == ["line 5", "..."]


def test_a_failure_after_the_start_is_a_problem():
    finding = launch.judge_failure("MPI_Finalize did not return within 60 s")
    assert finding.status == "problem" and "MPI_Finalize" in finding.found
