# SPDX-License-Identifier: Apache-2.0
"""The pictures of the documentation."""
import os
import pathlib
import subprocess
import time

from selenium.webdriver.common.by import By


def sweep_picture(browser, files, folder, sweep):
    page = files.folder / "picture.html"
    subprocess.run([files.arbalest, "report", sweep, "-o", page], check=True, capture_output=True)
    browser.driver.set_window_size(1240, 1240)
    browser.driver.get(f"file://{page}")
    browser.until("return window.sweep && document.querySelectorAll('#board tbody tr').length > 0")
    if browser.ask("document.documentElement.dataset.theme === 'dark'"):
        browser.driver.find_element(By.ID, "theme").click()
    time.sleep(0.5)
    browser.driver.save_screenshot(str(folder / "sweep.png"))


def average_picture(browser, path):
    """The page's schedule, with a task of the averages chosen."""
    browser.ask("schedule.theme('light')")
    browser.ask("schedule.showTask([schedule.trace.head.tasks.findIndex((task) => task.name.endsWith('/average'))])")
    time.sleep(0.5)
    browser.driver.save_screenshot(str(path))


def pictures(browser, files, folder, trace=None):
    folder = pathlib.Path(folder)
    if trace and os.path.isdir(trace):
        return sweep_picture(browser, files, folder, trace)
    if trace:
        browser.driver.set_window_size(1240, 900)
        browser.open(files.page(pathlib.Path(trace)))
        average_picture(browser, folder / "gpu.png")
    browser.driver.set_window_size(1240, 860)
    browser.open(files.page(files.resnet()))
    average_picture(browser, folder / "schedule.png")
    browser.ask("schedule.showTask([schedule.trace.head.tasks.findIndex((task) => task.name.endsWith('/step'))])")
    browser.ask("""(() => {
      const { timeline } = schedule, { start, end } = schedule.trace.instances, at = timeline.selected;
      timeline.setView(start[at] - 0.02 * (end[at] - start[at]), end[at] + 0.02 * (end[at] - start[at])) })()""")
    browser.ask("document.getElementById('panel').scrollTo(0, 1e6)")
    time.sleep(0.5)
    browser.driver.save_screenshot(str(folder / "inside.png"))
    browser.driver.set_window_size(2640, 1380)  # all of it
    browser.keys("2")
    time.sleep(0.5)
    browser.driver.save_screenshot(str(folder / "plan.png"))
    browser.driver.set_window_size(1240, 860)
    browser.open(files.page(files.starved()))
    browser.ask("schedule.showGap(schedule.trace.head.lanes.find((lane) => lane.kind === 'compute').causes[0])")
    time.sleep(0.5)
    browser.driver.save_screenshot(str(folder / "starved.png"))
