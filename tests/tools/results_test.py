#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The results files of docs/results: rows that bench_wall puts there, and pages that tools/results makes of them."""
import contextlib
import importlib.machinery
import importlib.util
import io
import json
import pathlib
import sys
import tempfile
import threading
import unittest
from unittest import mock

TOOLS = pathlib.Path(__file__).resolve().parents[2] / "tools"
sys.path.insert(0, str(TOOLS))
sys.dont_write_bytecode = True

import result_rows


def program(name):
    loader = importlib.machinery.SourceFileLoader(name, str(TOOLS / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    loader.exec_module(module)
    return module


bench_wall, results = program("bench_wall"), program("results")


def head(**fields):
    return {"page": "performance", "order": 1, "title": "Rows", "card": "a card", "date": "2001-02-03", "commit": "abc",
            "commands": ["measure"], "columns": ["model"]} | fields


def side(rate, peak=1.0, setup=1.0, **more):
    return {"images_per_second": rate, "peak_bytes": peak * 2**30, "setup_seconds": setup} | more


def measured(model, ours, theirs, batch=64, **more):
    return {"model": model, "batch": batch, "arbalest": side(ours), "torch": side(theirs, mode="compile-ro"),
            "ratio": ours / theirs} | more


class WithWall(unittest.TestCase):
    def setUp(self):
        held = tempfile.TemporaryDirectory()
        self.addCleanup(held.cleanup)
        self.root = pathlib.Path(held.name)
        (self.root / "docs/results").mkdir(parents=True)
        self.wall = self.root / "docs/results/wall.jsonl"
        self.write(result_rows.wall_row(measured("slow", 110, 100), "c1"),
                   result_rows.wall_row(measured("fast", 300, 100), "c1"))

    def write(self, *rows):
        wall = head(columns=list(result_rows.WALL), judged=["correct"], counted=True)
        result_rows.write(self.wall, wall, rows)

    def put(self, row, commit="c2"):
        result_rows.place(self.wall, result_rows.wall_row(row, commit))

    def rows(self):
        return [(row["model"], row["batch"], row["ratio"], row["commit"]) for row in result_rows.read(self.wall)[1]]


class Rows(WithWall):
    def test_a_row_has_rounded_cells_and_says_what_differs(self):
        row = measured("m", 4321.6, 87.654, torch=side(87.654, 1.234, 98.76, mode="max-autotune"))
        self.assertEqual(result_rows.wall_row(row, "c", "H100"), {
            "model": "m", "batch": 64, "Arbalest, images/s": 4322, "PyTorch, images/s": 87.65, "ratio": 49.3,
            "peak, GiB": 1.0, "PyTorch's peak, GiB": 1.23, "set-up, s": 1.0, "PyTorch's set-up, s": 98.8, "commit": "c",
            "remark": "H100; PyTorch's mode max-autotune"})

    def test_a_refused_side_has_no_numbers_but_its_reason(self):
        refused = {"model": "m", "batch": 16, "arbalest": side(50), "torch": {"error": "took\nmore | than 9 s"}}
        row = result_rows.wall_row(refused, "c")
        self.assertEqual((row["PyTorch, images/s"], row["ratio"], row["remark"]),
                         ("–", "–", "PyTorch: took more / than 9 s"))

    def test_a_row_takes_the_place_of_that_of_its_model_and_batch_by_ratio(self):
        self.put(measured("slow", 200, 100))
        self.put(measured("slow", 400, 100, batch=16))
        self.put(measured("new", 150, 100))
        self.assertEqual(self.rows(), [("new", 64, 1.5, "c2"), ("slow", 64, 2.0, "c2"), ("fast", 64, 3.0, "c1"),
                                       ("slow", 16, 4.0, "c2")])
        self.put(measured("fast", 100, 100), "c3")
        self.assertEqual(self.rows()[0], ("fast", 64, 1.0, "c3"))

    def test_a_refused_side_does_not_replace_a_ratio(self):
        refused = {"model": "slow", "batch": 64, "arbalest": {"error": "no memory"}, "torch": side(9)}
        before = self.wall.read_text()
        self.put(refused)
        self.assertEqual(self.wall.read_text(), before)
        self.put(refused | {"model": "ours"})
        self.put({"model": "theirs", "batch": 64, "arbalest": side(9), "torch": {"error": "no"}})
        self.assertEqual([row[0] for row in self.rows()], ["ours", "slow", "fast", "theirs"])
        self.put(measured("ours", 200, 100))
        self.assertEqual([row[0] for row in self.rows()], ["slow", "ours", "fast", "theirs"])

    def test_the_date_is_from_the_first_row_to_the_last(self):
        for _ in range(2):
            self.put(measured("new", 150, 100))
        began, ended = result_rows.read(self.wall)[0]["date"].split(" to ")
        self.assertEqual(began, "2001-02-03")
        self.assertGreater(ended, began)

    def test_counts_by_batch(self):
        rows = [measured("a", 115, 100), measured("b", 99, 100), measured("c", 150, 100, batch=16),
                {"model": "d", "batch": 64, "arbalest": side(9), "torch": {"error": "no"}},
                measured("e", 200, 100, arbalest=side(200, 1.06))]
        rows = [result_rows.wall_row(row, "c") | {"correct": "yes" if row["model"] == "a" else "–"} for row in rows]
        large, small = result_rows.counts(rows)
        self.assertEqual(large, {"batch": 64, "models": 4, "ratios": 3, "median": 1.15, "at least 1.15": 2,
                                 "below 1": 1, "least": 0.99, "peaks more than 5 % above PyTorch's": "e", "compared": 1,
                                 "correct": 1})
        self.assertEqual((small["batch"], small["models"], small["median"], small["compared"]), (16, 1, 1.5, 0))


class Verdicts(unittest.TestCase):
    def test_an_error_is_beyond_both_the_limit_and_three_times_the_other_own(self):
        for cell, beyond in (("9.0e-04", False), ("1.1e-03", True), ("2.9e-03 (5.0e-01) / 1.0e-03", False),
                             ("3.1e-03 / 1.0e-03", True), ("9.0e-04 / 1.0e-09", False), ("nan / 1.0e-03", True),
                             ("–", False)):
            self.assertEqual(result_rows.beyond(cell, 1e-3), beyond, cell)

    def test_models_that_are_compared(self):
        torch = head(limits={"gradients, median (worst) / PyTorch": 1e-3, "losses of ten steps / PyTorch": 1e-3})
        row = lambda model, *cells: {"model": model} | dict(zip(torch["limits"], cells))
        compared = [row("resnet50", "1e-4 / 1e-4", "1e-4 / 1e-4"), row("vgg16", "1e-4 / 1e-4", "1 / 1e-4"),
                    row("timm:vit_small_patch16_224", "1 / 1e-4", "1 / 1e-4")]
        found = result_rows.verdicts([(torch, compared), (torch, [row("vgg19", "–", "–")]),
                                      (head(), [{"model": "alexnet"}])])
        verdict = lambda model: result_rows.verdict(model, found)
        self.assertEqual([verdict(model) for model in ("resnet50", "example:resnet50", "example:vit_s16", "vgg16")],
                         ["yes", "yes", "gradients, losses of ten steps", "losses of ten steps"])
        self.assertEqual([verdict("keras:ResNet50"), verdict("alexnet"), verdict("vgg19")], ["–"] * 3)


class Commands(WithWall):
    def run_main(self, module, *words):
        """The status, and what is printed."""
        printed = io.StringIO()
        with mock.patch.object(sys, "argv", ["program", *map(str, words)]), contextlib.redirect_stdout(printed), \
                contextlib.redirect_stderr(printed):
            try:
                status = module.main()
            except SystemExit as exit:
                status = exit.code
        return status, printed.getvalue()

    def bench(self, *words):
        rates = {"slow": 500, "new": 120}
        def ours(options, name, batch, gpu):
            if name not in rates:
                raise bench_wall.RunFailed("no such model")
            return side(rates[name])

        with mock.patch.object(bench_wall, "ours", ours), \
                mock.patch.object(bench_wall.Row, "prepare", lambda row: None), \
                mock.patch.object(bench_wall.Row, "theirs", lambda row: side(100, mode="compile-ro")):
            return self.run_main(bench_wall, sys.executable, *words)

    def test_bench_wall_puts_its_rows_into_the_file(self):
        into = ["--into", self.wall, "--commit", "c2"]
        status, _ = self.bench("--models", "slow,new", "--batch", "64,16", *into, "--card", "H100")
        self.assertEqual(status, 0)
        self.assertEqual(self.rows(), [("new", 16, 1.2, "c2"), ("new", 64, 1.2, "c2"), ("fast", 64, 3.0, "c1"),
                                       ("slow", 16, 5.0, "c2"), ("slow", 64, 5.0, "c2")])
        self.assertEqual([row["remark"] for row in result_rows.read(self.wall)[1]],
                         ["H100", "H100", "", "H100", "H100"])
        self.assertEqual(self.bench("--models", "fast", *into)[0], 1)
        self.assertEqual(self.rows()[2], ("fast", 64, 3.0, "c1"))

    def test_bench_wall_refuses_before_it_measures(self):
        before = self.wall.read_text()
        other = self.root / "other.jsonl"
        result_rows.write(other, head(), [])
        for words, reason in ((["--into", self.wall], "--commit"),
                              (["--into", self.wall, "--commit", "c", "--cpu"], "--cpu"),
                              (["--commit", "c"], "--into"),
                              (["--into", other, "--commit", "c"], "has the columns model; expected model, batch"),
                              (["--into", self.root / "none", "--commit", "c"], "No such file")):
            status, printed = self.bench("--models", "new", *words)
            self.assertEqual(status, 2, words)
            self.assertIn(reason, printed)
        self.assertEqual(self.wall.read_text(), before)

    def test_bench_wall_exports_a_model_once(self):
        calls = []
        def export(name, path):
            calls.append(path)
            if len(calls) == 1:
                other.start()
                other.join(0.1)  # without the lock it would export, too
            pathlib.Path(path).touch()

        other = threading.Thread(target=lambda: bench_wall.export("m", self.root))
        with mock.patch.object(bench_wall, "export_torch", export):
            graph = bench_wall.export("m", self.root)
            other.join()
        self.assertEqual(len(calls), 1)
        self.assertIn('file = "m.onnx"', pathlib.Path(graph).read_text())

    def test_a_page_has_counts_verdicts_and_rows(self):
        comparison = head(page="robustness", title="Compared", columns=["model", "logits"], limits={"logits": 1e-4})
        result_rows.write(self.root / "docs/results/compared.jsonl", comparison,
                          [{"model": "slow", "logits": "1.0e-06"}, {"model": "fast", "logits": "1.0e-01"}])
        with mock.patch.object(results, "ROOT", self.root):
            self.assertEqual(self.run_main(results, "--check")[0], 1)
            self.assertEqual(self.run_main(results)[0], 0)
            self.assertEqual(self.run_main(results, "--check"), (0, ""))
            page = (self.root / "docs/performance.md").read_text()
            self.assertIn("| 64 | 2 | 2 | 2.05 | 1 | 0 | 1.10 | 0 | 2 | 1 |", page)
            self.assertIn("| slow | 64 | 110 | 100 | 1.10 | 1.0 | 1.0 | 1.0 | 1.0 | yes | c1 |  |\n"
                          "| fast | 64 | 300 | 100 | 3.00 | 1.0 | 1.0 | 1.0 | 1.0 | logits | c1 |  |", page)
            self.put(measured("slow", 120, 100))
            self.assertEqual(self.run_main(results, "--check")[0], 1)

    def test_a_file_of_rows_by_model_keeps_their_order(self):
        file = self.root / "compared.jsonl"
        result_rows.write(file, head(columns=["model", "logits"]),
                          [{"model": "b", "logits": "1"}, {"model": "a", "logits": "1"}])
        for row in ({"model": "b", "logits": "2"}, {"model": "c", "logits": "3"}):
            result_rows.put(file, row, ["model"])
        self.assertEqual([tuple(row.values()) for row in result_rows.read(file)[1]],
                         [("b", "2"), ("a", "1"), ("c", "3")])

    def test_results_names_the_line_that_is_wrong(self):
        row = result_rows.wall_row(measured("m", 2, 1), "c")
        self.write(row, row)
        with self.assertRaisesRegex(result_rows.Wrong, "wall.jsonl: line 3 is another row of m at batch 64"):
            result_rows.read(self.wall)
        for text, reason in (('{"page": 1}', "wall.jsonl: line 1 lacks order"), ("{", "expected JSON lines"),
                             ("", "expected JSON lines"),
                             (json.dumps(head()) + '\n{"batch": 1}', "wall.jsonl: line 2 has batch; expected model")):
            self.wall.write_text(text)
            with mock.patch.object(results, "ROOT", self.root):
                status, printed = self.run_main(results)
            self.assertEqual(status, 1)
            self.assertIn(reason, printed)

    def test_a_number_that_a_bench_does_not_know_is_refused(self):
        known = {"cell": "a", "images/s": "5.25", "images/s low": "5", "images/s high": "6"}
        self.assertEqual(results.cell_of(known, "images/s"), "5.25 (5 to 6)")
        with self.assertRaises(results.Wrong) as refused:
            results.cell_of({"cell": "a", "images/s": "", "images/s low": "", "images/s high": ""}, "images/s")
        self.assertIn("a: has no images/s", str(refused.exception))


if __name__ == "__main__":
    unittest.main()
