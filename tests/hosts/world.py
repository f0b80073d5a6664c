# SPDX-License-Identifier: Apache-2.0
"""Worlds of several processes for the programs of this folder: started by hand, each with its own host and network."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

LONGEST = 30  # seconds from a fault to the end of every rank
COMPLETE, FAILED, WRONG, INTERRUPTED = 0, 1, 2, 130
SMALL = """<ir_version: 8, opset_import: ["" : 17, "arbalest" : 1]>
hosts () => () {{
  image, label = arbalest.Prefetch <source = "glyphs:?train=512&test=100&size=16", batch = 8> ()
  x = arbalest.Augment <pad = 1> (image)
  c = arbalest.ConvBnRelu <filters = 4, kernel_shape = [3, 3]> (x)
  logits = arbalest.Linear <units = 10> (c)
  loss = arbalest.SoftmaxCrossEntropy (logits, label)
  accuracy = arbalest.Accuracy (logits, label)
  trained = arbalest.Train <lr = 0.02, momentum = 0.9, epochs = {epochs}> (loss)
  synced = arbalest.Synchronize <strategy = "{strategy}", every_hosts = {every_hosts}> (trained)
  report = arbalest.Validate <batch = 20> (synced, loss, accuracy)
}}
"""


class Unexpected(Exception):
    pass


def small_graph(epochs=4, strategy="ssgd", every_hosts=1):
    return SMALL.format(epochs=f"{epochs}.0", strategy=strategy, every_hosts=every_hosts)


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def processes_of(devices, kind="cpu"):
    """Words of --devices for so many processes with `devices` CPUs or GPUs in all, the first with the most. Each
    process counts its CPUs from 0; GPUs are those of the machine."""
    def words(first, each):
        return f"{kind}:{first}-{first + each - 1}" if each > 1 else f"{kind}:{first}"

    def of_all(size):
        counts = [devices // size + (rank < devices % size) for rank in range(size)]
        return [words(sum(counts[:rank]) if kind == "cuda" else 0, count) for rank, count in enumerate(counts)]
    return of_all


class Rank:
    """A process of a world. `before`: words in front of its command line, such as those that enter a namespace."""

    def __init__(self, words, folder, said, variables=None, before=()):
        self.said = said
        with open(said, "wb") as out:
            self.process = subprocess.Popen([*before, *words], cwd=folder, env={**os.environ, **(variables or {})},
                                            stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)

    def told(self):
        with open(self.said, errors="replace") as file:
            return file.read()

    def signal(self, number):
        """To the whole session: what enters a namespace may be a process of its own."""
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            pass

    def end(self):
        self.signal(signal.SIGKILL)
        self.process.wait()

    def wait(self, seconds):
        try:
            return self.process.wait(timeout=max(0.0, seconds))
        except subprocess.TimeoutExpired:
            return None


class World:
    """Ranks that run the same words, each with some of its own. Ends what is left when it is left."""

    def __init__(self, folder, words, own, variables=None, before=None, rendezvous=None):
        at = rendezvous or f"127.0.0.1:{free_port()}"
        self.ranks = []

        def start(rank):
            by_hand = ["--rank", str(rank), "--world-size", str(len(own)), "--rendezvous", at]
            return Rank([*words, *by_hand, *own[rank]], folder, os.path.join(folder, f"said-{rank}"),
                        variables[rank] if variables else None, before[rank] if before else ())
        self.start = start
        try:
            for rank in range(len(own)):
                self.ranks.append(start(rank))
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for rank in self.ranks:
            rank.end()

    def again(self, rank):
        """Starts a rank that has ended once more."""
        self.ranks[rank] = self.start(rank)

    def wait(self, seconds, apart_from=()):
        """The exit statuses of the ranks, of which those in `apart_from` are not waited for."""
        until = time.monotonic() + seconds
        statuses = []
        for number, rank in enumerate(self.ranks):
            status = None if number in apart_from else rank.wait(until - time.monotonic())
            if status is None and number not in apart_from:
                raise Unexpected(f"rank {number} has not ended for {seconds} s: {rank.told()[-500:]}")
            statuses.append(status)
        return statuses

    def expect(self, status, seconds=120):
        found = self.wait(seconds)
        if found != [status] * len(found):
            told = "\n".join(rank.told()[-400:] for rank in self.ranks)
            raise Unexpected(f"exit statuses {found}, expected {status}:\n{told}")


def last_words(rank):
    """What a rank said last, as a cell of a table."""
    lines = [line for line in rank.told().split("\n") if line.strip()]
    return re.sub(r"/tmp/hosts-[^/]*/", "", lines[-1])[:230] if lines else "nothing"


def events_of(log, kind):
    """A log's events of a kind so far."""
    if not os.path.exists(log):
        return []
    with open(log) as file:
        lines = file.read().split("\n")[:-1]
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def await_training(log, seconds=60):
    until = time.monotonic() + seconds
    while not events_of(log, "progress"):
        if time.monotonic() > until:
            raise Unexpected("the run does not begin")
        time.sleep(0.02)


def rates_of(log):
    """Images/s of a run's epochs but the first, from its log."""
    rates = []
    with open(log) as file:
        for line in file:
            event = json.loads(line)
            if event["event"] == "epoch":
                rates.append(event["images_per_second"])
    if len(rates) < 2:
        raise Unexpected(f"{log} tells of no second epoch")
    return rates[1:]


class Place:
    """A folder that goes when it is left."""

    def __enter__(self):
        self.folder = tempfile.mkdtemp(prefix="hosts-")
        return self.folder

    def __exit__(self, *_):
        shutil.rmtree(self.folder, ignore_errors=True)


def arbalest_in(build):
    program = os.path.abspath(os.path.join(build, "tools", "arbalest"))
    if not os.access(program, os.X_OK):
        sys.exit(f"{program} is no program; expected one that ninja has built")
    return program
