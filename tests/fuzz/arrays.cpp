// SPDX-License-Identifier: Apache-2.0

// Arrays of images: MNIST's idx files (the first byte says which of them) and CIFAR's batches.

#include "tests/fuzz/source.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace arbalest::fuzz;
  if (size == 0) return 0;
  const std::string_view content = text(data + 1, size - 1);
  const std::string images("\0\0\x08\x03\0\0\0\x02\0\0\0\x02\0\0\0\x02\1\2\3\4\5\6\7\x08", 24);
  const std::string labels("\0\0\x08\x01\0\0\0\x02\3\4", 10);
  write("train-images-idx3-ubyte", data[0] % 4 == 0 ? content : images);
  write("train-labels-idx1-ubyte", data[0] % 4 == 1 ? content : labels);
  if (data[0] % 4 < 2) read_split("mnist:" + folder().string(), "train");
  write("test_batch.bin", data[0] % 4 == 2 ? content : std::string(3073, '\3'));
  write("batches.meta.txt", data[0] % 4 == 3 ? content : "a\nb\nc\nd\ne\nf\ng\nh\ni\nj\n");
  if (data[0] % 4 >= 2) read_split("cifar10:" + folder().string(), "test");
  return 0;
}
