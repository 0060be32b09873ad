"""A Slurm of a test's own: its configuration, and how to ask it."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support import free_port

PATIENCE = 240.0


def configure(home: Path, controller: str, nodes: dict[str, str], gpus: int) -> Path:
    """Write slurm.conf for nodes at these addresses with fake GPUs; return its path.

    The controller is one of the nodes.
    """
    (home / "state").mkdir()
    for i in range(gpus):
        (home / f"gpu{i}").touch()
    (home / "gres.conf").write_text(f"Name=gpu File={home}/gpu[0-{gpus - 1}]\n")
    listed = "\n".join(
        f"NodeName={name} NodeAddr={address} CPUs=128 Gres=gpu:{gpus}"
        for name, address in nodes.items()
    )
    (home / "slurm.conf").write_text(f"""ClusterName=rn50
SlurmctldHost={controller}({nodes[controller]})
SlurmUser=root
SlurmctldPort={free_port()}
SlurmdPort={free_port()}
AuthType=auth/none
CredType=cred/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SlurmctldPidFile={home}/slurmctld.pid
SlurmdPidFile={home}/slurmd-%n.pid
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/spool-%n
SelectType=select/cons_tres
SlurmdParameters=config_overrides
ReturnToService=2
GresTypes=gpu
{listed}
PartitionName=all Nodes=ALL Default=YES State=UP
""")
    return home / "slurm.conf"


def ask(env: dict[str, str], *command: str) -> str:
    """Return the output of a Slurm program."""
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    return done.stdout + done.stderr
