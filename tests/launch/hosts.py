"""Two hosts on this machine, which ssh and a network connect.

Each is a set of namespaces (network, name, processes, mounts) with its own sshd. Its /tmp,
/run and /dev/shm are its own as well; the rest of the file system is what two hosts of a cluster
would share. Nothing of it is seen from outside, and all of it goes with its first process.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

ADDRESSES = {"h1": "10.77.0.1", "h2": "10.77.0.2"}
PATIENCE = 120.0
INTO = ("unshare", "--net", "--uts", "--mount", "--pid", "--fork", "--mount-proc")
FIRST = """
set -e
hostname {name}
mount --bind {shared}/hosts /etc/hosts
mount --bind {shared}/ssh_config /etc/ssh/ssh_config
mount -t tmpfs none /run
mount -t tmpfs none /dev/shm
mkdir -m 755 /run/sshd /run/tmp
ip link set lo up
/usr/sbin/sshd -D -e -f {shared}/sshd_config &
touch {shared}/{name}.up
wait
"""


def command(program: str, *arguments: str) -> None:
    subprocess.run([program, *arguments], check=True, capture_output=True)


class Host:
    """A running host; `temporary` is what TMPDIR is there."""

    temporary = "/run/tmp"

    def __init__(self, name: str, shared: Path) -> None:
        self.name = name
        script = FIRST.format(name=name, shared=shlex.quote(str(shared)))
        with open(shared / f"{name}.log", "wb") as log:
            self.process = subprocess.Popen(
                [*INTO, "bash", "-c", script], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        end = time.monotonic() + PATIENCE
        while not (shared / f"{name}.up").exists():
            assert time.monotonic() < end, (shared / f"{name}.log").read_text()
            time.sleep(0.02)
        (first,) = psutil.Process(self.process.pid).children()
        self.pid = first.pid

    def inside(self, argv: Sequence[str], folder: Path = Path("/")) -> list[str]:
        """A command line that runs `argv` on this host, in a folder."""
        return ["nsenter", "--target", str(self.pid), "--net", "--uts", "--mount", "--pid",
                f"--wd={folder}", *argv]  # fmt: skip

    def processes(self) -> list[psutil.Process]:
        """Return the processes of this host."""
        if self.process.poll() is not None:
            return []
        mine = os.readlink(f"/proc/{self.pid}/ns/pid")
        found = []
        for process in psutil.process_iter():
            try:
                here = os.readlink(f"/proc/{process.pid}/ns/pid") == mine
                if here and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (OSError, psutil.Error):
                continue
        return found

    def received(self) -> int:
        """Return the bytes received over its cable."""
        argv = self.inside(["cat", "/proc/net/dev"])
        table = subprocess.run(argv, check=True, capture_output=True, text=True).stdout
        return int(table[table.index("eth0:") :].split()[1])

    def unplug(self) -> None:
        """Pull its cable."""
        command(*self.inside(["ip", "link", "set", "eth0", "down"]))

    def end(self) -> None:
        """End all processes on it; the kernel closes its connections."""
        if self.process.poll() is None:
            psutil.Process(self.pid).kill()  # the kernel ends the others with the first
        self.process.wait(PATIENCE)


class Switch:
    """The switch between the hosts, which remains if one of them dies."""

    def __init__(self) -> None:
        script = "ip link add switch type bridge; ip link set switch up && echo up; exec sleep inf"
        self.process = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", script], stdout=subprocess.PIPE
        )
        assert self.process.stdout and self.process.stdout.readline() == b"up\n"

    def plug_in(self, host: Host) -> None:
        here = ["nsenter", "--target", str(self.process.pid), "--net", "ip", "link"]
        command(*here, "add", host.name, "type", "veth", "peer", "name", "eth0", "netns",
                str(host.pid))  # fmt: skip
        command(*here, "set", host.name, "master", "switch", "up")
        there = [f"ip address add {ADDRESSES[host.name]}/24 dev eth0", "ip link set eth0 up"]
        for line in there:
            command(*host.inside(line.split()))

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@contextlib.contextmanager
def two_hosts(shared: Path) -> Iterator[dict[str, Host]]:
    """Start h1 and h2, which reach each other by ssh; `shared` is a folder for their files."""
    key = shared / "key"
    command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key))
    names = "".join(f"{address} {name}\n" for name, address in ADDRESSES.items())
    (shared / "hosts").write_text(f"127.0.0.1 localhost\n{names}")
    (shared / "ssh_config").write_text(
        f"IdentityFile {key}\nStrictHostKeyChecking no\nUserKnownHostsFile /dev/null\n"
        "LogLevel ERROR\n"
    )
    (shared / "sshd_config").write_text(
        f"HostKey {key}\nAuthorizedKeysFile {key}.pub\nStrictModes no\nPermitRootLogin yes\n"
        "UsePAM no\nPasswordAuthentication no\nPidFile none\nMaxStartups 100\n"
    )
    with contextlib.ExitStack() as held:
        switch = Switch()
        held.callback(switch.end)
        hosts = {}
        for name in ADDRESSES:
            hosts[name] = Host(name, shared)
            held.callback(hosts[name].end)
            switch.plug_in(hosts[name])
        yield hosts
