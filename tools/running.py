# SPDX-License-Identifier: Apache-2.0
"""Runs a program to its end or its time limit. For bench_wall."""
import json
import os
import signal
import subprocess


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


def run(command, timeout, gpu=None):
    """Standard output. Of GPUs the command sees `gpu` alone, or all with None.
    Raises RunFailed after `timeout` seconds, or with the reason that the program gives."""
    environment = None if gpu is None else {**os.environ, "CUDA_VISIBLE_DEVICES": str(gpu)}
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
                                   start_new_session=True)
    except OSError as error:
        raise RunFailed(f"{command[0]}: {error.strerror}") from None
    try:
        output, errors = process.communicate(timeout=timeout)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)  # and what it has started, which would hold the GPUs
        process.wait()
        if isinstance(error, subprocess.TimeoutExpired):
            raise RunFailed(f"took more than {timeout:g} s") from None
        raise
    if process.returncode != 0:
        # Some say why in JSON, others at the end of standard error.
        reasons = [o["error"] for o in json_objects(output) if "error" in o] or errors.strip().splitlines()[-1:]
        raise RunFailed(f"exit status {process.returncode}: {' '.join(reasons) or 'no message'}")
    return output
