"""Several hosts on one machine: network namespaces with slow links, and Open MPI between them.

    with Hosts(4, rate="100mbit") as hosts:
        job = hosts.launch(4, ["program.py"])

A host is a network namespace with one link, whose other end is a port of a bridge; the bridge has a
namespace of its own, so nothing appears in the machine's own network and nothing gets out: there is
no route to anywhere else.  Both ends of a link are limited to ``rate`` (a token bucket), one for
each direction.

A host also has its own host name, without which Open MPI takes all ranks for one node.  Where Open
MPI would call ssh it calls a generated script, which enters the namespace and takes its name.

Rules: whatever happens inside the ``with``, afterwards no process runs in a namespace of ours and
none of them exists.  Names carry our process id; what a killed process could not remove, the next
one does.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from launch import Completed, Mpi, find_mpi, job_environment, run

PREFIX = "mpiring"
NETWORK = "10.77.0.0/24"  # seen inside the namespaces only
_serial = itertools.count()


class Hosts:
    """``count`` hosts, node0, node1, ..., with links of ``rate`` (as tc has it: "100mbit").

    The kernel hands a link up to 64 KiB at a time, which a card would send as frames.  A token bucket of 32 KiB has to
    be full for half as much, and whatever it would get while the machine is late is lost.  ``packet_bytes`` is the most
    that it is handed at a time, 0 for the kernel's choice.
    """

    def __init__(self, count: int, rate: str, packet_bytes: int = 0) -> None:
        self.rate = rate
        self._packet_bytes = packet_bytes
        self.names = [f"node{i}" for i in range(count)]
        self._prefix = f"{PREFIX}-{os.getpid()}-{next(_serial)}-"
        self._files: Path | None = None

    def __enter__(self) -> Hosts:
        remove_stale()
        try:
            self._files = Path(tempfile.mkdtemp(prefix=self._prefix))
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill what runs on the hosts, and remove them; again, if need be."""
        with _uninterrupted():
            _remove(self._prefix)

    def namespace(self, name: str) -> str:
        """The namespace of the host ``name``, or of the bridge, whose name is "net"."""
        return self._prefix + name

    def launch(
        self,
        size: int,
        args: Sequence[str | Path],
        timeout: float = 120,
        env: Mapping[str, str | None] | None = None,
        map_by: str = "node",
    ) -> Completed:
        """`launch.launch`, with ``size`` ranks spread over the hosts, the first one on node0.

        With ``map_by="slot"`` those of a host have ranks behind each other, as mpirun does it unasked; with
        "node" each next rank is on the next host.
        """
        mpi = find_mpi()
        python = str(Path(sys.prefix) / "bin" / "python")
        command = self._mpirun(mpi, size, map_by) + [
            python,
            "-m",
            "mpi4py",
            *map(str, args),
        ]
        job_env = job_environment(mpi, {**(env or {}), "TMPDIR": str(self._files)})
        return run(self.on(self.names[0], command), timeout=timeout, env=job_env)

    def on(self, name: str, command: Sequence[str]) -> list[str]:
        """The command that runs ``command`` on the host ``name``."""
        inside = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', name]
        return ["ip", "netns", "exec", self.namespace(name), *inside, *command]

    def bytes_sent(self) -> dict[str, int]:
        """What each host has sent over its link so far, headers included."""
        sent = {}
        for name in self.names:
            shown = _ip_tool(
                "tc", self.namespace(name), "-s", "qdisc", "show", "dev", "eth0"
            )
            found = re.search(r"Sent (\d+) bytes", shown)
            assert found is not None, shown
            sent[name] = int(found[1])
        return sent

    def _build(self) -> None:
        net = self.namespace("net")
        limit = ["root", "tbf", "rate", self.rate, "burst", "32kb", "latency", "400ms"]
        _call("ip", "netns", "add", net)
        _ip_tool("ip", net, "link", "add", "bridge", "type", "bridge")
        _ip_tool("ip", net, "link", "set", "bridge", "up")
        for i, name in enumerate(self.names):
            host, port = self.namespace(name), f"port{i}"
            _call("ip", "netns", "add", host)
            _ip_tool(
                "ip",
                net,
                "link",
                "add",
                port,
                "type",
                "veth",
                "peer",
                "name",
                "eth0",
                "netns",
                host,
            )
            _ip_tool("ip", net, "link", "set", port, "master", "bridge")
            for namespace, device in ((net, port), (host, "eth0")):
                # No address that we have not given.
                _ip_tool("ip", namespace, "link", "set", device, "addrgenmode", "none")
                if self._packet_bytes:
                    most = str(self._packet_bytes)
                    _ip_tool(
                        "ip", namespace, "link", "set", device, "gso_max_size", most
                    )
                _ip_tool("ip", namespace, "link", "set", device, "up")
                _ip_tool("tc", namespace, "qdisc", "add", "dev", device, *limit)
            address = NETWORK.replace("0/24", f"{i + 1}/24")
            _ip_tool("ip", host, "address", "add", address, "dev", "eth0")
            _ip_tool("ip", host, "link", "set", "lo", "up")

    def _mpirun(self, mpi: Mpi, size: int, map_by: str) -> list[str]:
        if mpi.name != "openmpi":
            raise RuntimeError(f"the hosts are made for Open MPI, this is {mpi.name}")
        assert self._files is not None, "use it as `with Hosts(...) as hosts:`"
        agent, hostfile = self._files / "agent", self._files / "hosts"
        agent.write_text(AGENT.format(prefix=self._prefix))
        agent.chmod(0o755)
        slots = -(-size // len(self.names))
        hostfile.write_text("".join(f"{name} slots={slots}\n" for name in self.names))
        return [
            str(mpi.mpirun),
            *("--stdin", "none", "-n", str(size), "--map-by", map_by),
            *("--hostfile", str(hostfile), "--prtemca", "plm_ssh_agent", str(agent)),
            *("--prtemca", "oob_tcp_if_include", NETWORK),
            *(
                "--mca",
                "pml",
                "ob1",
                "--mca",
                "btl",
                "tcp,self" if slots == 1 else "tcp,sm,self",
            ),
            *("--mca", "btl_tcp_if_include", NETWORK),
        ]


# Called as: agent HOST COMMAND..., where the command is for a shell, as ssh has it.
AGENT = """#!/bin/sh
host=$1
shift
exec ip netns exec "{prefix}$host" unshare --uts sh -c "hostname $host && $*"
"""


def remove_stale() -> None:
    """Remove the namespaces and files of processes that are no longer there."""
    files = [path.name for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}-*-*-*")]
    for name in [*namespaces(), *files]:
        ours = re.match(rf"{PREFIX}-(\d+)-\d+-", name)
        if ours is not None and not Path(f"/proc/{ours[1]}").exists():
            _remove(ours[0])


def namespaces(prefix: str = f"{PREFIX}-") -> list[str]:
    """The namespaces of this machine whose names begin with ``prefix``."""
    names = [line.split()[0] for line in _call("ip", "netns", "list").splitlines()]
    return [name for name in names if name.startswith(prefix)]


def processes(namespace: str) -> list[int]:
    """The processes that run in a namespace."""
    return [int(pid) for pid in _call("ip", "netns", "pids", namespace).split()]


def _remove(prefix: str) -> None:
    for namespace in namespaces(prefix):
        while pids := processes(namespace):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        _call("ip", "netns", "delete", namespace)
    for files in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        shutil.rmtree(files, ignore_errors=True)


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Keep a second Ctrl-C, or a SIGTERM, from stopping the removal half way."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    both = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(one, signal.SIG_IGN) for one in both]
    try:
        yield
    finally:
        for one, handler in zip(both, before):
            signal.signal(one, handler)


def _ip_tool(tool: str, namespace: str, *args: str) -> str:
    return _call(tool, "-n", namespace, *args)


def _call(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
