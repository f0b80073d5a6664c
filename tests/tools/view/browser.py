# SPDX-License-Identifier: Apache-2.0
"""A browser for the tests of pages, and the files that they open."""
import gzip
import json
import os
import pathlib
import socket
import subprocess
import time

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.actions.wheel_input import ScrollOrigin
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

TESTS = []


class Browser:
    def __init__(self):
        options = Options()
        options.binary_location = "/usr/bin/chromium"
        for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1400,940",
                         "--hide-scrollbars"):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(service=Service("/usr/bin/chromedriver"), options=options)

    def open(self, page, hash=""):
        self.driver.get("about:blank")
        self.driver.get_log("browser")
        self.driver.get(f"file://{page}{hash}")
        self.until("return window.schedule && (schedule.ready !== undefined || schedule.trace.head.instances === 0)")

    def until(self, script, seconds=30):
        end = time.time() + seconds
        while time.time() < end:
            value = self.driver.execute_script(script)
            if value:
                return value
            time.sleep(0.02)
        raise AssertionError(f"not within {seconds} s: {script}")

    def ask(self, script, *arguments):
        return self.driver.execute_script("return " + script, *arguments)

    def keys(self, *keys):
        for key in keys:
            ActionChains(self.driver).send_keys(key).perform()

    def wheel(self, x, y, across, down):
        ActionChains(self.driver).scroll_from_origin(ScrollOrigin.from_viewport(int(x), int(y)), across, down).perform()

    def drag(self, places, shift=False):
        actions = ActionChains(self.driver)
        if shift:
            ActionChains(self.driver).key_down(Keys.SHIFT).perform()
        pointer = actions.w3c_actions.pointer_action
        for i, (x, y) in enumerate(places):
            pointer.move_to_location(int(x), int(y))
            if i == 0:
                pointer.pointer_down()
        pointer.pointer_up()
        actions.perform()
        if shift:
            ActionChains(self.driver).key_up(Keys.SHIFT).perform()

    def point(self, x, y):
        actions = ActionChains(self.driver)
        actions.w3c_actions.pointer_action.move_to_location(int(x), int(y))
        actions.perform()

    def place(self, position="schedule.timeline.selected"):
        """[x, y, width] of an instance on the page."""
        return self.ask(f"""(() => {{
          const t = schedule.timeline, {{ start, end }} = schedule.trace.instances, at = {position};
          const box = document.getElementById('timeline').getBoundingClientRect();
          const x = t.xOf(start[at]);
          return [box.left + x, box.top + t.yOf(t.trackOf(at)) + 8, t.xOf(end[at]) - x] }})()""")

    def box(self, selector):
        """[left, top, width, height] of an element on the page."""
        return self.ask(f"""(() => {{ const box = document.querySelector('{selector}').getBoundingClientRect();
          return [box.left, box.top, box.width, box.height] }})()""")

    def text(self, selector="body"):
        return self.driver.find_element(By.CSS_SELECTOR, selector).text

    def selected(self):
        """[name, instance] of what is selected."""
        return self.ask("""(() => {
          const p = schedule.timeline.selected, { head, instances } = schedule.trace; if (!(p >= 0)) return null;
          return [head.tasks[instances.task[p]].name, instances.instance[p]] })()""")

    def is_clean(self):
        """Nothing on the console, nothing fetched."""
        said = [entry["message"] for entry in self.driver.get_log("browser") if "favicon" not in entry["message"]]
        assert not said, said
        assert self.ask("performance.getEntriesByType('resource').length") == 0


class Files:
    """Traces and pages, each made when first asked for."""

    def __init__(self, arbalest, examples, folder):
        self.arbalest, self.examples, self.folder = arbalest, examples, pathlib.Path(folder)

    def run(self, name, *options, graph="lenet"):
        trace = self.folder / f"{name}.trace.json.gz"
        if not trace.exists():
            subprocess.run([self.arbalest, "run", f"{self.examples}/{graph}.onnxtxt", "--epochs", "1", "--trace", trace,
                            *options], check=True, capture_output=True)
        return trace

    def lenet(self):
        return self.run("lenet", "--set", "prefetch.source=glyphs:?train=6400&test=640")

    def starved(self):
        return self.run("starved",
                        "--set", "prefetch.source=synthetic:?shape=1x28x28&classes=10&size=3200&test=320&delay=100000")

    def averaged(self):
        return self.run("averaged", "--devices", "cpu:0-1", "--learners", "3", "--strategy", "sma",
                        "--set", "prefetch.source=glyphs:?train=9600&test=640")

    def resnet(self):
        return self.run("resnet20", "--devices", "cpu:0-1", "--learners", "2", "--strategy", "sma",
                        "--set", "prefetch.batch=16",
                        "--set", "prefetch.source=synthetic:?shape=3x32x32&classes=10&size=1280&test=64",
                        graph="resnet20")

    def world(self, hosts="ab"):
        """A trace of processes on these hosts."""
        trace = self.folder / f"world-{hosts}.trace.json.gz"
        if not trace.exists():
            with socket.socket() as one:
                one.bind(("127.0.0.1", 0))
                port = one.getsockname()[1]
            command = [self.arbalest, "run", f"{self.examples}/lenet.onnxtxt", "--epochs", "1", "--trace", trace,
                       "--devices", "cpu:0", "--learners", "2", "--strategy", "sma",
                       "--set", "prefetch.source=glyphs:?train=3200&test=640",
                       "--world-size", str(len(hosts)), "--rendezvous", f"127.0.0.1:{port}"]
            ranks = [subprocess.Popen([*command, "--rank", str(rank)], env={**os.environ, "ARBALEST_HOST": host},
                                      stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                     for rank, host in enumerate(hosts)]
            assert [rank.wait(120) for rank in ranks] == [0] * len(hosts)
        return trace

    def report(self):
        """A page of two runs that differ in their rate."""
        page = self.folder / "runs.html"
        if not page.exists():
            logs = []
            for rate in ("0.02", "0.05"):
                logs.append(self.folder / f"rate-{rate}.jsonl")
                done = subprocess.run([self.arbalest, "run", f"{self.examples}/lenet.onnxtxt", "--epochs", "2", "--set",
                                       "prefetch.source=glyphs:?train=3200&test=640", "--set", f"train.lr={rate}",
                                       "--until", "accuracy >= 0.999", "--log", logs[-1]], capture_output=True)
                assert done.returncode in (0, 3), done.stderr  # 3: the target was not reached
            subprocess.run([self.arbalest, "report", *logs, "-o", page], check=True, capture_output=True)
        return page

    def sweep(self):
        """The page of a sweep of two rates, two momenta and two seeds."""
        page = self.folder / "sweep.html"
        if not page.exists():
            subprocess.run([self.arbalest, "sweep", f"{self.examples}/lenet.onnxtxt", "--epochs", "2",
                            "--set", "prefetch.source=glyphs:?train=640&test=160", "--vary", "train.lr=0.02,0.05",
                            "--vary", "train.momentum=0.5,0.9", "--vary", "seed=1,2", "-o", self.folder / "sweep"],
                           check=True, capture_output=True)
            subprocess.run([self.arbalest, "report", self.folder / "sweep", "-o", page], check=True,
                           capture_output=True)
        return page

    def page(self, *traces):
        page = self.folder / f"{'-'.join(pathlib.Path(trace).name.split('.')[0] for trace in traces)}.html"
        if not page.exists():
            subprocess.run([self.arbalest, "view", *traces, "-o", page], check=True, capture_output=True)
        return page

    def changed(self, trace, name, change):
        """The trace with its record (plan, names) changed."""
        out = self.folder / f"{name}.trace.json.gz"
        with gzip.open(trace, "rt") as file:
            content = json.load(file)
        change(content)
        with gzip.open(out, "wt") as file:
            json.dump(content, file)
        return out


def test(function):
    """Notes a function that takes the browser and the files as one of the tests."""
    TESTS.append(function)
    return function
