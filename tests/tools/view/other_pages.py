# SPDX-License-Identifier: Apache-2.0
"""The pages of reports, of sweeps and of contact sheets in a browser."""
import subprocess

from selenium.webdriver.common.by import By

from browser import test


@test
def reports_runs(browser, files):
    page = files.report()
    browser.driver.get(f"file://{page}")
    browser.until("return window.report && document.querySelectorAll('#runs-table tbody tr').length === 2")
    text = browser.text("#report")
    for words in ("rate-0.02", "rate-0.05", "lenet", "best epoch", "validation accuracy", "until accuracy >= 0.999",
                  "Differences"):
        assert words in text, (words, text)
    assert "lenet" in browser.text("#title")
    box = browser.box("svg.plot")
    browser.point(box[0] + box[2] - 4, box[1] + box[3] / 2)
    tip = browser.text("#tip").splitlines()
    assert tip[0] == "epoch 2" and len(tip) > 4, tip
    browser.ask("""(() => { const bar = document.getElementById('smooth'); bar.value = 0.6;
      bar.dispatchEvent(new Event('input')) })()""")
    assert browser.ask("report.view.smooth") == 0.6 and browser.ask("location.hash").endswith("smooth=0.6")
    browser.ask("report.smooth(0)")
    differing = browser.text("#differing")
    assert "lr" in differing and "seed" not in differing, differing
    count = "document.querySelectorAll('.plot-card').length"
    plots = browser.ask(count)
    assert plots >= 4, plots
    browser.driver.find_element(By.ID, "axis-seconds").click()
    assert browser.ask("location.hash") == "#axis=seconds"
    browser.driver.find_element(By.CSS_SELECTOR, "#runs-table button.run").click()
    assert browser.ask("document.querySelector('#runs-table button.run').getAttribute('aria-pressed')") == "false"
    assert browser.ask(count) == plots
    assert "lr" in browser.text("#differing")  # of the two runs still: one alone differs from nothing
    assert browser.ask("document.activeElement.id") == "run-0"
    browser.driver.find_element(By.ID, "theme").click()
    browser.is_clean()


@test
def reports_a_sweep(browser, files):
    browser.driver.get(f"file://{files.sweep()}")
    browser.until("return window.sweep && document.querySelectorAll('#board tbody tr').length === 4")
    text = browser.text("#report")
    for words in ("All 8 trials have ended", "train.lr", "±", "Validation accuracy", "accuracy by train.momentum",
                  "accuracy by train.lr and train.momentum"):
        assert words in text, (words, text)
    assert browser.ask("document.querySelectorAll('svg .dot').length") == 16  # eight trials over two settings
    assert browser.ask("document.querySelectorAll('.heat td').length") == 4
    browser.driver.find_element(By.ID, "place-1").click()
    marked = "[sweep.marked, document.querySelectorAll('svg .dot.marked').length, document.activeElement.id]"
    assert browser.ask(marked) == [1, 4, "place-1"]
    browser.driver.find_element(By.ID, "curves-0").click()
    assert browser.ask("[sweep.marked, sweep.shown.size]") == [1, 3]  # a choice of curves marks no row
    heads = browser.driver.find_elements(By.CSS_SELECTOR, "#board th button")
    heads[1].click()
    cells = "document.querySelectorAll('#board tbody tr td:nth-child(2)')"
    rates = browser.ask(f"[...{cells}].map((cell) => cell.textContent)")
    assert rates == ["0.05", "0.05", "0.02", "0.02"], rates
    box = browser.box("svg.plot")
    browser.point(box[0] + box[2] - 14, box[1] + box[3] / 2)
    tip = browser.text("#tip").splitlines()
    assert tip[0] == "epoch 2" and "in 2 trials" in tip[1], tip
    browser.drag([(box[0] + box[2] / 2, box[1] + 40), (box[0] + box[2] - 14, box[1] + 40)])
    assert browser.ask("sweep.range !== null && !document.getElementById('whole').hidden")
    browser.driver.find_element(By.ID, "whole").click()
    browser.driver.find_element(By.ID, "theme").click()
    browser.is_clean()


@test
def shows_a_contact_sheet(browser, files):
    page = files.folder / "sheet.html"
    subprocess.run([files.arbalest, "data", "glyphs:?train=640&test=64", "--contact-sheet", page], check=True,
                   capture_output=True)
    browser.driver.get(f"file://{page}")
    browser.until("return window.sheet && document.querySelectorAll('#sheet .row').length === 10")
    head = browser.text("header")
    assert "all 10 classes" in head and "page 1 of 1" in head, head
    assert browser.ask("[...document.images].every((image) => image.complete && image.naturalWidth === 112)")
    assert browser.ask("document.images.length") == 80
    browser.keys("/")
    browser.keys("7")
    assert browser.ask("[...document.querySelectorAll('#sheet h2')].map((name) => name.textContent)") == ["7"]
    browser.driver.get_log("browser")
