"""The choice of a GPU: launchers' variables, lists of devices, and a driver that has started or not."""

from __future__ import annotations

import doctest
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mpiring
from mpiring import device
from mpiring.errors import RingError

ROOT = Path(mpiring.__file__).parents[1]
linux_only = pytest.mark.skipif(
    sys.platform != "linux", reason="device files are Linux's"
)


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """No launcher, no list of devices, no MPI, no GPU."""
    for name in (
        *device.LOCAL_RANKS,
        *device.RANKS,
        *device.SLURM_STEPS,
        device.VISIBLE,
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delitem(sys.modules, "mpi4py.MPI", raising=False)
    monkeypatch.setattr(device, "find_openable", lambda: [])
    monkeypatch.setattr(device, "find_ancestors", lambda: [])


def test_doctests():
    outcome = doctest.testmod(device)
    assert outcome.attempted > 0 and outcome.failed == 0


# ---- the rank within the node, before MPI starts -----------------------------------------------------

# What launchers set for the third process of a node: seen under the wheels' mpirun, the others read in manuals.
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "7",
    "OMPI_COMM_WORLD_LOCAL_RANK": "2",
    "PMIX_RANK": "7",
}
HYDRA = {
    "PMI_RANK": "7",
    "PMI_SIZE": "8",
    "MPI_LOCALRANKID": "2",
    "MPI_LOCALNRANKS": "4",
}
SRUN = {
    "SLURM_PROCID": "7",
    "SLURM_LOCALID": "2",
    "SLURM_STEP_ID": "0",
    "PMI_RANK": "7",
}
BATCH = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_JOB_ID": "17"}


@pytest.mark.parametrize(
    "environment",
    [
        OPEN_MPI,
        HYDRA,
        SRUN,
        {**BATCH, **OPEN_MPI},
        {**BATCH, **HYDRA},
        {**SRUN, "SLURM_LOCALID": "0", **HYDRA},  # mpirun starts its proxies by srun
        {"MV2_COMM_WORLD_LOCAL_RANK": "2", **BATCH, "SLURM_STEP_ID": "1"},
        {"PALS_RANKID": "7", "PALS_LOCAL_RANKID": "2", "PMI_RANK": "7"},
        {"PMI_RANK": "7", "PMI_LOCAL_RANK": "2"},
        {"JSM_NAMESPACE_RANK": "7", "JSM_NAMESPACE_LOCAL_RANK": "2"},
        {"FLUX_TASK_RANK": "7", "FLUX_TASK_LOCAL_ID": "2"},
    ],
)
def test_the_launcher_says_the_local_rank(environment, monkeypatch):
    assert device.find_local_rank(environment) == 2
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert mpiring.local_rank() == 2


LEFT_OVER = {**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_RANK": "9"}


@pytest.mark.parametrize(
    "environment, nearest",
    [
        ({**LEFT_OVER, **HYDRA}, "hydra_pmi_proxy"),
        ({**LEFT_OVER, **SRUN}, "slurmstepd"),
        ({**LEFT_OVER, "PALS_LOCAL_RANKID": "2"}, "palsd"),
        ({**LEFT_OVER, "MV2_COMM_WORLD_LOCAL_RANK": "2"}, "mpispawn"),
        ({**LEFT_OVER, "FLUX_TASK_LOCAL_ID": "2"}, "flux-shell"),
        ({**HYDRA, "MPI_LOCALRANKID": "9", **SRUN}, "slurmstepd"),
        ({**HYDRA, "MPI_LOCALRANKID": "9", **OPEN_MPI}, "prterun"),
        ({**SRUN, "SLURM_LOCALID": "9", **OPEN_MPI}, "prted"),
        ({**SRUN, "SLURM_LOCALID": "9", **HYDRA}, "hydra_pmi_proxy"),
        ({**LEFT_OVER, "OMPI_COMM_WORLD_LOCAL_RANK": "2"}, "bash"),  # all that is known
    ],
)
def test_b47_the_variable_has_to_be_of_the_launcher_of_this_process(
    environment, nearest, monkeypatch
):
    ancestors = [("sh", "/bin/sh"), (nearest, ""), ("prterun", ""), ("slurmstepd", "")]
    seen = ancestors[:2] if nearest == "bash" else ancestors
    monkeypatch.setattr(device, "find_ancestors", lambda: seen)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert mpiring.local_rank() == 2


def test_b47_a_variable_that_was_exported_once_is_nobodys(monkeypatch):
    """In a batch script nothing was started by the launcher that it speaks of."""
    monkeypatch.setattr(device, "find_ancestors", lambda: [("slurmstepd", "")])
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_RANK", "9")
    assert mpiring.local_rank() == 0
    monkeypatch.setenv("PMI_RANK", "7")
    told = "PMI_RANK=7, but none of MV2_COMM_WORLD_LOCAL_RANK, PMI_LOCAL_RANK, SLURM_LOCALID;"
    with pytest.raises(RingError, match=told):
        mpiring.local_rank()


@pytest.mark.parametrize(
    "environment, family",
    [
        ({**LEFT_OVER, **HYDRA}, "MPICH"),
        ({**LEFT_OVER, **HYDRA}, "Intel MPI"),
        ({**LEFT_OVER, **SRUN}, "MPICH"),
        ({**OPEN_MPI, **HYDRA, "MPI_LOCALRANKID": "9"}, "Open MPI"),
        ({**OPEN_MPI, **HYDRA, "MPI_LOCALRANKID": "9"}, "unknown"),
        ({**HYDRA, **OPEN_MPI, "MPI_LOCALRANKID": "9"}, ""),
    ],
)
def test_b47_where_no_launcher_is_seen_the_mpi_tells(environment, family):
    assert device.find_local_rank(environment, family=family) == 2


@pytest.mark.parametrize("variable", device.LOCAL_RANKS)
@pytest.mark.parametrize("value", ["", "x", "-1", "1.0", "²"])
def test_what_is_no_number_is_passed_over(variable, value):
    environment = {variable: value, "SLURM_STEP_ID": "0"}
    assert device.find_local_rank(environment) is None
    environment = {variable: value, "SLURM_LOCALID": "5", "SLURM_STEP_ID": "0"}
    if variable != "SLURM_LOCALID":
        assert device.find_local_rank(environment) == 5


def test_alone_the_local_rank_is_zero(monkeypatch):
    assert device.find_local_rank({}) is None
    for environment in ({}, BATCH, {"SLURM_LOCALID": "3"}):  # of no step
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        assert mpiring.local_rank() == 0


@pytest.mark.parametrize("variable", device.RANKS)
def test_an_unknown_launcher_is_an_error_and_not_rank_zero(monkeypatch, variable):
    monkeypatch.setenv(variable, "7")
    with pytest.raises(
        RingError, match=f"{variable}=7, but none of OMPI_COMM_WORLD_LOCAL"
    ):
        mpiring.local_rank()
    monkeypatch.setenv("MPI_LOCALRANKID", "1")
    assert mpiring.local_rank() == 1


def test_a_communicator_needs_mpi():
    with pytest.raises(RingError, match="comm is given, but MPI is not started"):
        mpiring.local_rank(object())  # type: ignore[arg-type]


# ---- the devices that are visible ---------------------------------------------------------------------

UUID, MIG = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "MIG-1f3e-aa07"
OLD_MIG = "MIG-GPU-8932f937-d72c-4106-c12f-20bd9faed9f6/1/2"


@pytest.mark.parametrize(
    "listed, count, devices",
    [
        (None, 0, []),
        (None, 3, ["0", "1", "2"]),
        ("", 3, []),
        ("-1", 3, []),
        ("NoDevFiles", 3, []),  # Slurm's word for none
        ("2", 3, ["2"]),
        ("2,0", 3, ["2", "0"]),
        (" 2 , 0 ", 3, ["2", "0"]),
        ("0,2,-1,1", 3, ["0", "2"]),
        ("0,3,1", 3, ["0"]),  # there is no fourth
        ("0,3,1", 0, ["0", "3", "1"]),  # nobody knows
        ("1,,0", 3, ["1"]),
        (f"{UUID},GPU-77", 3, [UUID, "GPU-77"]),
        (f"{MIG},{OLD_MIG}", 1, [MIG, OLD_MIG]),
        ("GPU-", 3, []),
        ("0;1", 3, []),
        ("٣", 0, []),
    ],
)
def test_visible_devices(listed, count, devices):
    assert device.visible_devices(listed, count) == devices


@linux_only
def test_device_files(tmp_path):
    assert device.find_gpus(tmp_path) == []
    (tmp_path / "dev").mkdir()
    for name in ("nvidiactl", "nvidia-uvm", "null"):  # there without a GPU too
        (tmp_path / "dev" / name).touch()
    assert device.find_gpus(tmp_path) == []
    for name in ("nvidia1", "nvidia0", "kfd"):
        (tmp_path / "dev" / name).touch()
    found = [path.rpartition("/")[2] for path in device.find_gpus(tmp_path)]
    assert found == ["nvidia0", "nvidia1", "kfd"]


@linux_only
def test_devices_that_may_not_be_opened_do_not_count(tmp_path, monkeypatch):
    monkeypatch.undo()  # find_openable itself
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidia1", "nvidia12", "kfd", "nvidia0x"):
        (tmp_path / "dev" / name).touch()
    found = [path.rpartition("/")[2] for path in device.find_openable(tmp_path)]
    assert found == ["nvidia0", "nvidia1", "nvidia12"]
    real = os.access
    # A control group forbids a device to root too.
    monkeypatch.setattr(
        os, "access", lambda path, mode: "nvidia1" not in path and real(path, mode)
    )
    found = [path.rpartition("/")[2] for path in device.find_openable(tmp_path)]
    assert found == ["nvidia0"]


# ---- the choice ---------------------------------------------------------------------------------------


def visible(monkeypatch, listed, count=0, rank=0):
    if listed is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
    monkeypatch.setattr(
        device, "find_openable", lambda: [f"/dev/nvidia{i}" for i in range(count)]
    )
    monkeypatch.setenv("MPI_LOCALRANKID", str(rank))


@pytest.mark.parametrize(
    "rank, chosen", [(0, "0"), (1, "1"), (2, "2"), (3, "0"), (7, "1")]
)
def test_each_local_rank_takes_its_own_while_there_are_enough(
    monkeypatch, rank, chosen
):
    visible(monkeypatch, None, 3, rank)
    assert mpiring.choose_device() == chosen
    assert os.environ["CUDA_VISIBLE_DEVICES"] == chosen


@pytest.mark.parametrize("rank, chosen", [(0, "3"), (1, UUID), (2, MIG), (3, "3")])
def test_a_list_that_is_there_is_respected(monkeypatch, rank, chosen):
    visible(monkeypatch, f"3,{UUID},{MIG}", 4, rank)
    assert mpiring.choose_device() == chosen
    assert os.environ["CUDA_VISIBLE_DEVICES"] == chosen
    assert mpiring.choose_device() == chosen  # once more changes nothing


@pytest.mark.parametrize("listed", [None, "", "-1", "NoDevFiles"])
def test_without_a_gpu_nothing_is_set(monkeypatch, listed):
    visible(monkeypatch, listed, 0 if listed is None else 2)
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    assert mpiring.choose_device() is None
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == before == listed


@given(st.integers(0, 40), st.integers(1, 9))
def test_the_ranks_of_a_node_are_spread_evenly(rank, count):
    devices = device.visible_devices(None, count)
    taken = [devices[r % count] for r in range(rank + 1)]
    assert max(map(taken.count, devices)) - min(map(taken.count, devices)) <= 1


def test_too_late_is_an_error(monkeypatch):
    visible(monkeypatch, None, 2, 1)
    monkeypatch.setattr(device, "is_cuda_started", lambda: True)
    with pytest.raises(RingError) as raised:
        mpiring.choose_device()
    assert str(raised.value) == (
        "choose_device: local rank 1 is to take GPU 1 of 0, 1, but CUDA has started in this process and reads"
        " CUDA_VISIBLE_DEVICES no more; call choose_device before the first array on a GPU, and before MPI starts,"
        " as an MPI that takes device memory starts CUDA"
    )
    assert "CUDA_VISIBLE_DEVICES" not in os.environ
    # Where there is one only, it is the right one in any case.
    visible(monkeypatch, "1", 2, 1)
    assert mpiring.choose_device() == "1"


# ---- has CUDA started? ----------------------------------------------------------------------------------

DRIVER = """
static int started = 3;
int cuInit(unsigned flags) { started = 0; return 0; }
int cuCtxGetCurrent(void **context) { if (!started) *context = 0; return started; }
"""

ASK = """
import ctypes, sys
sys.path.insert(0, {root!r})
from mpiring.device import is_cuda_started
told = [is_cuda_started()]
driver = ctypes.CDLL({path!r})
told.append(is_cuda_started())
driver.cuInit(0)
told.append(is_cuda_started())
print(told)
"""


@linux_only
@pytest.mark.parametrize(
    "name, last", [("libcuda.so.1", True), ("libother.so.1", False)]
)
def test_a_driver_is_asked_if_it_is_loaded(tmp_path, name, last):
    """A stand-in for the driver's library, compiled here if there is a compiler."""
    source, built = tmp_path / "driver.c", tmp_path / name
    source.write_text(DRIVER)
    try:
        command = ["cc", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", built, source]
        subprocess.run(command, check=True, timeout=60)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no C compiler here")
    code = ASK.format(root=str(ROOT), path=str(built))
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.strip() == str([False, False, last])


# ---- the public names -------------------------------------------------------------------------------------


def test_all_public_names_are_there():
    assert {"choose_device", "local_rank"} <= set(mpiring.__all__)
    assert mpiring.__all__ == sorted(mpiring.__all__)
    for name in mpiring.__all__:
        assert getattr(mpiring, name).__doc__
        assert name in dir(mpiring)
