// SPDX-License-Identifier: Apache-2.0

// DFT and STFT become products, in training and with validation's batches. The vectors of tests/ops/vectors judge the
// numbers.

#include <doctest/doctest.h>

#include "passes/program.h"
#include "tests/graph/file_fixture.h"
#include "tests/passes/net.h"
#include "tests/passes/passes_fixture.h"

using namespace arbalest;
using namespace arbalest::test;

namespace fourier_test {
namespace {

// The transform `y` of real numbers (4, 12, 6, 1), complex ones (4, 12, 3, 2), or signals (4, 72) and (4, 72, 1).
std::string transform(const std::string& line) {
  std::string body =
      "real = Reshape <shape = [0, 12, 6, 1]> (x)\ncomplex = Reshape <shape = [0, 12, 3, 2]> (x)\n"
      "flat = Flatten (x)\nsignal = Unsqueeze <axes = [2]> (flat)\npairs = Reshape <shape = [0, 36, 2]> (x)\n" +
      line + "\nh = Flatten (y)\nlogits = arbalest.Linear <units = 3> (h)\n" + kLoss;
  if (line.find("window") != line.npos) body += "#initial float[16] window = {" + numbers(16) + "}";
  return body;
}

}  // namespace

TEST_CASE("DFT and STFT are products, whatever the batch") {
  struct Case {
    std::string line;
    Shape shape;  // after the batch
  };
  for (const Case& c :
       {Case{"y = DFT <axis = 1> (real)", {12, 6, 2}}, Case{"y = DFT <axis = -2, onesided = 1> (real)", {12, 4, 2}},
        Case{"y = DFT <axis = 1, inverse = 1> (complex)", {12, 3, 2}},
        Case{"y = DFT <axis = 2, inverse = 1, onesided = 1> (complex)", {12, 4, 1}},
        Case{"y = DFT <axis = 2, dft_length = 5> (real)", {12, 5, 2}}, Case{"y = DFT (pairs)", {36, 2}},
        Case{"y = STFT <frame_step = 8> (signal, , window)", {8, 9, 2}},
        Case{"y = STFT <frame_step = 10, frame_length = 20> (flat)", {6, 11, 2}},
        Case{"y = STFT <frame_step = 5, onesided = 0> (pairs, , window)", {5, 16, 2}}}) {
    INFO(c.line);
    const Program program = make_program(net(transform(c.line)), {});
    for (const Loop& loop : program.loops) {
      const Graph& graph = loop.graph;
      check_sound(graph);
      Shape expected = c.shape;
      expected.insert(expected.begin(), loop.batch);
      CHECK(count_ops(graph, "DFT") + count_ops(graph, "STFT") == 0);
      CHECK(value(graph, "y").type.shape == expected);
    }
  }
}

TEST_CASE("a transform that cannot be is refused") {
  const auto check = [](const std::string& line, const std::string& part) {
    const std::string refusal = error_of([&] { net(transform(line)); });
    INFO(refusal);
    CHECK(refusal.find(part) != refusal.npos);
  };
  check("y = DFT (real)", "lacks 'axis' for float[4,12,6,1]; its default is 1 before ONNX's opset 20, and later -2");
  check("y = DFT <axis = 3> (real)", "'axis' is 3; expected -4 to 2");
  check("y = DFT <axis = 1> (x)", "expected a last axis of 1, real numbers, or 2, complex ones");
  check("y = DFT <axis = 1, onesided = 1> (complex)", "expected real numbers with onesided = 1 and inverse = 0");
  check("y = DFT <axis = 1, dft_length = 10000000> (real)", "expected at most 67108864 numbers");
  check("y = DFT <axis = 1, dft_length = 0> (real)", "has a length of 0");
  check("y = STFT <frame_step = 0, frame_length = 8> (flat)", "'frame_step'");
  check("y = STFT <frame_step = 1> (flat)", "lacks 'window' and 'frame_length'");
  check("y = STFT <frame_step = 1, frame_length = 8> (signal, , window)", "expected 8 numbers");
  check("y = STFT <frame_step = 1, frame_length = 80> (signal)", "frames have 80 numbers; expected 1 to 72");
  check("y = STFT <frame_step = 1> (pairs, , window)", "expected real numbers with onesided = 1");
}

}  // namespace fourier_test
