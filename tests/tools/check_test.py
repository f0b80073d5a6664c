#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/check --programs, with scripts that stand for test programs: they say what doctest says; tools/quickstart."""
import os
import pathlib
import signal
import subprocess
import tempfile
import time
import unittest

CHECK = pathlib.Path(__file__).resolve().parents[2] / "tools/check"
# COUNT cases, none of them measures time; the rest is what a run of a part does.
PROGRAM = """#!/bin/sh
case "$*" in
  *--count*-ts=alone* | *-ts=alone*--count*) echo "unskipped test cases passing the current filters: 0"; exit ;;
  *--count*) echo "unskipped test cases passing the current filters: COUNT"; exit ;;
esac
"""
SUMMARY = "echo '[doctest] test cases: {} | {} passed | {} failed | 0 skipped'\n"


class Programs(unittest.TestCase):
    def setUp(self):
        held = tempfile.TemporaryDirectory()
        self.addCleanup(held.cleanup)
        self.folder = pathlib.Path(held.name)

    def program(self, name, count, does):
        path = self.folder / name
        path.write_text(PROGRAM.replace("COUNT", str(count)) + does)
        path.chmod(0o755)

    def start(self, *words):
        running = subprocess.Popen([CHECK, "--programs", self.folder, *words], encoding="utf-8", stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, start_new_session=True)
        self.addCleanup(running.stdout.close)
        return running

    def told(self):
        return (self.folder / "check.log").read_text(encoding="utf-8")

    def test_each_part_is_told_and_failures_are_shown(self):
        self.program("test_good", 50, SUMMARY.format(50, 50, 0))
        self.program("test_skips", 3, "printf 'TEST CASE:  one\\nMESSAGE: SKIP: no GPU\\n'\n" + SUMMARY.format(3, 3, 0))
        self.program("test_wrong", 4, "echo 'ERROR: CHECK( 1 == 2 )'\n" + SUMMARY.format(4, 3, 1) + "exit 1\n")
        self.program("test_crash", 5, SUMMARY.format(5, 4, 1) + "kill -SEGV $$\n")
        running = self.start("--jobs", "2")
        printed = running.communicate()[0]
        self.assertEqual(running.returncode, 1)
        for line in ("test_good 1-40: 40 passed, 0 failed, 0 skipped, ",
                     "test_good 41-50: 10 passed, 0 failed, 0 skipped, ",
                     "  1 × skipped: no GPU\ntest_skips 1-3: 2 passed, 0 failed, 1 skipped, ",
                     "ERROR: CHECK( 1 == 2 )", "test_wrong 1-4: 3 passed, 1 failed, 0 skipped, ",
                     "test_crash 1-5: 0 passed, 1 failed, 0 skipped, "):
            self.assertIn(line, printed)
            self.assertIn(line, self.told())
        self.assertEqual(printed.splitlines()[-1], "55 passed, 2 failed, 1 skipped")

    def test_what_ended_before_a_signal_is_in_the_log(self):
        self.program("test_first", 2, SUMMARY.format(2, 2, 0))
        self.program("test_second", 2, "while [ -e $0 ]; do sleep 0.1; done\n")
        running = self.start("--jobs", "1")
        line = running.stdout.readline()  # comes while the second program runs
        self.assertTrue(line.startswith("test_first 1-2: 2 passed, 0 failed, 0 skipped, "), line)
        self.assertIsNone(running.poll())
        until = time.monotonic() + 60
        while not self.told() and time.monotonic() < until:
            time.sleep(0.01)
        os.killpg(running.pid, signal.SIGKILL)
        running.wait()
        self.assertEqual(self.told(), line)


class Quickstart(unittest.TestCase):
    def test_a_typo_is_noticed_before_anything_is_installed_or_built(self):
        for words, message in ((["--epohcs", "1"], "found '--epohcs', expected an option of 'arbalest run'"),
                               (["--seed", "2", "--save"], "--save: found no value, expected one")):
            done = subprocess.run([CHECK.with_name("quickstart"), *words], encoding="utf-8", capture_output=True)
            self.assertEqual(done.returncode, 2)
            self.assertEqual(done.stdout, "")
            self.assertIn("quickstart: " + message, done.stderr)


if __name__ == "__main__":
    unittest.main()
