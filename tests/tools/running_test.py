#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Programs that tools/running.py runs: what they print, why they fail, and that an interrupt ends all of them."""
import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

TOOLS = pathlib.Path(__file__).resolve().parents[2] / "tools"
sys.path.insert(0, str(TOOLS))
sys.dont_write_bytecode = True

import running

# Four threads that run one program after the other, each of which writes its number and sleeps.
MANY = """
import concurrent.futures, sys
sys.path.insert(0, sys.argv[1])
import running
running.end_all_on_signals()
def task(number):
    try:
        running.run(["sh", "-c", f"echo $$ > {sys.argv[2]}/{number}; sleep 300 & exec sleep 300"], 1000)
    except running.RunFailed:
        pass
with concurrent.futures.ThreadPoolExecutor(4) as pool:
    list(pool.map(task, range(100)))
"""


def groups_in(folder):
    return [int(text) for file in pathlib.Path(folder).iterdir() if (text := file.read_text().strip())]


def kill_group(group):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def is_there(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


class Running(unittest.TestCase):
    def test_output_and_reasons(self):
        self.assertEqual(running.run(["echo", "a"], 60), "a\n")
        for command, why in ((["sh", "-c", "echo b >&2; exit 3"], "exit status 3: b"),
                             (["sh", "-c", """echo '{"error": "c"}'; exit 4"""], "exit status 4: c"),
                             (["no such program"], "no such program: No such file or directory")):
            with self.assertRaises(running.RunFailed) as refused:
                running.run(command, 60)
            self.assertEqual(str(refused.exception), why)
        with self.assertRaises(running.RunFailed) as refused:
            running.run(["sleep", "300"], 0.2)
        self.assertEqual(str(refused.exception), "took more than 0.2 s")
        self.assertEqual(running.RUNNING, set())

    def test_an_interrupt_ends_all(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            with tempfile.TemporaryDirectory() as folder:
                process = subprocess.Popen([sys.executable, "-c", MANY, str(TOOLS), folder],
                                           preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
                self.addCleanup(process.kill)
                until = time.monotonic() + 60
                while len(groups_in(folder)) < 4 and time.monotonic() < until:
                    time.sleep(0.02)
                process.send_signal(number)
                for group in groups_in(folder):
                    self.addCleanup(kill_group, group)
                self.assertEqual(process.wait(60), 128 + number)
                until = time.monotonic() + 10  # the system takes a moment to remove them
                while any(map(is_there, groups_in(folder))) and time.monotonic() < until:
                    time.sleep(0.02)
                self.assertEqual([group for group in groups_in(folder) if is_there(group)], [])

    def test_ignored_signals_stay_so(self):
        command = "import running, signal; running.end_all_on_signals(); print(signal.getsignal(signal.SIGHUP).name)"
        told = subprocess.run([sys.executable, "-c", command], cwd=TOOLS, capture_output=True, text=True,
                              env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
                              preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        self.assertEqual(told.stdout, "SIG_IGN\n")


if __name__ == "__main__":
    unittest.main()
