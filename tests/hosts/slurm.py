# SPDX-License-Identifier: Apache-2.0
"""A SLURM of two nodes on this machine, in a folder of its own: munged, slurmctld and two slurmd, with names for the
nodes that only its own processes know, and files in place of two GPUs each. Needs root, and Debian's munge, slurmctld,
slurmd and slurm-client."""

import itertools
import os
import socket
import subprocess
import time

NODES = ["n1", "n2"]
GPUS = 2  # of each node
CONFIGURATION = """ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdParameters=config_overrides
AuthType=auth/munge
AuthInfo=socket={base}/munge.socket
StateSaveLocation={base}/state
SlurmdSpoolDir={base}/spool-%n
SlurmctldPidFile={base}/slurmctld.pid
SlurmdPidFile={base}/slurmd-%n.pid
SlurmctldLogFile={base}/slurmctld.log
SlurmdLogFile={base}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
JobRequeue=1
KillWait=5
MessageTimeout=30
"""


class Slurm:
    """`run` and `start` run words with names of the nodes that resolve, and with its configuration."""

    def __init__(self, base):
        self.base = base
        self.environment = {**os.environ, "SLURM_CONF": os.path.join(base, "slurm.conf")}
        for name in ["state", *(f"spool-{node}" for node in NODES)]:
            os.makedirs(os.path.join(base, name), exist_ok=True)
        os.chmod(base, 0o755)
        with open(os.path.join(base, "hosts"), "w") as file:
            file.write("127.0.0.1 localhost " + socket.gethostname() + " " + " ".join(NODES) + "\n")
        with open(os.path.join(base, "munge.key"), "wb") as file:
            file.write(os.urandom(1024))
        os.chmod(os.path.join(base, "munge.key"), 0o400)
        with open(os.path.join(base, "gres.conf"), "w") as file:
            for node, gpu in itertools.product(NODES, range(GPUS)):
                path = os.path.join(base, f"gpu-{node}-{gpu}")
                open(path, "w").close()
                file.write(f"NodeName={node} Name=gpu File={path}\n")
        port = 26000 + os.getpid() % 4000
        with open(os.path.join(base, "slurm.conf"), "w") as file:
            file.write(CONFIGURATION.format(host=socket.gethostname(), base=base, port=port))
            for index, node in enumerate(NODES):
                file.write(f"NodeName={node} NodeHostname={socket.gethostname()} NodeAddr=127.0.0.1 "
                           f"Port={port + 4000 + index} CPUs=4 Gres=gpu:{GPUS} State=UNKNOWN\n")
            file.write(f"PartitionName=all Nodes={','.join(NODES)} Default=YES MaxTime=INFINITE State=UP\n")

    def words(self, words):
        script = f"mount --bind {self.base}/hosts /etc/hosts && exec \"$@\""
        return ["unshare", "--mount", "sh", "-c", script, "sh", *words]

    def run(self, *words, seconds=60, env=None, **more):
        return subprocess.run(self.words(words), env=env or self.environment, capture_output=True, text=True,
                              timeout=seconds, **more)

    def __enter__(self):
        try:
            munge = [f"--{what}={self.base}/munge.{end}" for what, end in
                     [("socket", "socket"), ("key-file", "key"), ("pid-file", "pid"), ("log-file", "log"),
                      ("seed-file", "seed")]]
            self.must("munged", "--force", *munge)
            self.must("slurmctld")
            time.sleep(1)
            for node in NODES:
                self.must("slurmd", "-N", node)
            until = time.monotonic() + 30
            while time.monotonic() < until:
                if self.run("sinfo", "-h", "-o", "%T").stdout.split() == ["idle"]:
                    return self
                time.sleep(0.5)
            raise RuntimeError("the nodes are not idle: " + self.run("sinfo", "-N").stdout)
        except Exception:
            self.__exit__()
            raise

    def must(self, *words):
        done = self.run(*words)
        if done.returncode != 0:
            raise RuntimeError(f"{words[0]}: {done.stderr.strip()}")

    def __exit__(self, *_):
        try:
            self.run("scancel", "--user", "root")
            until = time.monotonic() + 20
            while self.run("squeue", "--noheader").stdout.strip() and time.monotonic() < until:
                time.sleep(0.5)
        except subprocess.TimeoutExpired:  # a controller that does not answer
            pass
        for name in ["slurmd-n1.pid", "slurmd-n2.pid", "slurmctld.pid", "munge.pid"]:
            try:
                with open(os.path.join(self.base, name)) as file:
                    number = int(file.read())
                os.kill(number, 15)
                until = time.monotonic() + 10
                while os.path.exists(f"/proc/{number}") and time.monotonic() < until:
                    time.sleep(0.1)
                if os.path.exists(f"/proc/{number}"):
                    os.kill(number, 9)
            except (OSError, ValueError):
                pass
