# SPDX-License-Identifier: Apache-2.0
"""Runs a program to its end or its time limit, or holds one that waits to be asked. For bench_wall."""
import contextlib
import json
import os
import queue
import signal
import subprocess
import tempfile
import threading


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


STARTING = threading.Lock()
RUNNING = set()  # processes, each with a group of what it starts
ENDING = threading.Event()


def started(command, gpu, **streams):
    environment = None if gpu is None else {**os.environ, "CUDA_VISIBLE_DEVICES": str(gpu)}
    with STARTING:
        if ENDING.is_set():
            raise RunFailed("interrupted")
        try:
            process = subprocess.Popen(command, text=True, env=environment, start_new_session=True, **streams)
        except OSError as error:
            raise RunFailed(f"{command[0]}: {error.strerror}") from None
        RUNNING.add(process)
    return process


def kill(process):
    """Kills the process and what it has started, which would hold the GPUs."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def end(process):
    kill(process)
    process.wait()
    with STARTING:
        RUNNING.discard(process)


def end_all_on_signals():
    """Lets Ctrl-C, SIGTERM and SIGHUP end this process with all that was started, unless they are ignored."""
    signals = [each for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
               if signal.getsignal(each) != signal.SIG_IGN]

    # The main thread runs no handler while it waits for others, if the signal came just before it began to.
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def end_all():
        number = os.read(reader, 1)[0]
        ENDING.set()
        with STARTING:
            for process in RUNNING:
                kill(process)
            os._exit(128 + number)

    threading.Thread(target=end_all, daemon=True).start()
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for each in signals:
        signal.signal(each, lambda *_: None)


def failure(status, answers, errors):
    """Some say why in JSON, others at the end of standard error."""
    reasons = [found["error"] for found in answers if "error" in found] or errors.strip().splitlines()[-1:]
    return RunFailed(f"exit status {status}: {' '.join(reasons) or 'no message'}")


def run(command, timeout, gpu=None):
    """Standard output. Of GPUs the command sees `gpu` alone, or all with None.
    Raises RunFailed after `timeout` seconds, or with the reason that the program gives."""
    process = started(command, gpu, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        output, errors = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        raise RunFailed(f"took more than {timeout:g} s") from None
    finally:
        end(process)
    if process.returncode != 0:
        raise failure(process.returncode, json_objects(output), errors)
    return output


class Held:
    """A program that answers each line of standard input with a JSON line. Ends with the block."""

    def __init__(self, command, gpu=None):
        self.errors = tempfile.TemporaryFile("w+", errors="replace")
        self.process = started(command, gpu, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors)
        self.answers = queue.SimpleQueue()  # None: its output has ended
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            for found in json_objects(line):
                self.answers.put(found)
        self.answers.put(None)

    def ask(self, timeout):
        """The next answer. Raises RunFailed after `timeout` seconds, or with the program's reason once it has ended."""
        try:
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # the reason follows
        try:
            found = self.answers.get(timeout=timeout)
        except queue.Empty:
            raise RunFailed(f"took more than {timeout:g} s") from None
        if found is None or "error" in found:
            self.errors.seek(0)
            raise failure(self.process.wait(), [found or {}], self.errors.read())
        return found

    def __enter__(self):
        return self

    def __exit__(self, *_):
        end(self.process)
