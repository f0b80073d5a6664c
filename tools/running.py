# SPDX-License-Identifier: Apache-2.0
"""Runs programs to their ends or their time limits. For bench_wall."""
import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time


class RunFailed(Exception):
    pass


def json_objects(text):
    """The lines that are JSON objects: programs and libraries print other things too."""
    for line in text.splitlines():
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict):
            yield found


class Held:
    """A program that says when it is ready, by a JSON object of its standard output, and may wait for a line.

    It is a session of its own, which ends whole. Of GPUs it sees `gpu` alone, or all with None. What it prints goes to
    files, so that it never waits for a reader."""

    living, interrupted = set(), False

    def __init__(self, command, gpu=None):
        if Held.interrupted:
            raise KeyboardInterrupt
        environment = None if gpu is None else {**os.environ, "CUDA_VISIBLE_DEVICES": str(gpu)}
        self.output, self.errors = tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")
        try:
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=self.output, stderr=self.errors,
                                            text=True, env=environment, start_new_session=True)
        except OSError as error:
            raise RunFailed(f"{command[0]}: {error.strerror}") from None
        Held.living.add(self)

    @classmethod
    def interrupt(cls):
        """Ends all that run; threads that wait for them, or start others, are interrupted."""
        cls.interrupted = True
        for held in list(cls.living):
            held.kill()

    def printed(self, file):
        return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode(errors="replace")

    def ready(self, timeout):
        """Returns when it has printed an object with "ready"."""
        deadline = time.monotonic() + timeout
        while not any("ready" in found for found in json_objects(self.printed(self.output))):
            if self.process.poll() is not None:
                self.text(10)  # says why
                raise RunFailed("it ended before it was ready")
            if time.monotonic() > deadline:
                self.kill()
                raise RunFailed(f"took more than {timeout:g} s")
            time.sleep(0.05)

    def text(self, timeout):
        """Standard output of all its time, once it has ended; it waits no more."""
        try:
            self.process.communicate("\n", timeout=timeout)
        except BaseException as error:
            self.kill()
            if isinstance(error, subprocess.TimeoutExpired):
                raise RunFailed(f"took more than {timeout:g} s") from None
            raise
        Held.living.discard(self)
        if Held.interrupted:
            raise KeyboardInterrupt
        output = self.printed(self.output)
        if self.process.returncode != 0:
            # Some say why in JSON, others at the end of standard error.
            reasons = ([o["error"] for o in json_objects(output) if "error" in o] or
                       self.printed(self.errors).strip().splitlines()[-1:])
            raise RunFailed(f"exit status {self.process.returncode}: {' '.join(reasons) or 'no message'}")
        return output

    def result(self, timeout):
        """The last JSON object that it prints."""
        return list(json_objects(self.text(timeout)))[-1]

    def kill(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # and what it has started, which would hold the GPUs
        self.process.wait()
        Held.living.discard(self)


def run(command, timeout, gpu=None):
    """Standard output. Raises RunFailed after `timeout` seconds, or with the reason that the program gives."""
    return Held(command, gpu).text(timeout)
