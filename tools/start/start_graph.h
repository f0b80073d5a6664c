// SPDX-License-Identifier: Apache-2.0
#pragma once
// Graph files to start from: what `arbalest init` writes.

#include <cstdint>
#include <functional>
#include <string>

namespace arbalest {

struct StartOptions {
  std::string name;     // of the template: "lenet"
  std::string file;     // "": the template's name with .onnxtxt, in the working directory
  std::string data;     // a source; "": the template's
  std::string model;    // the .onnx file of a template that calls one
  int64_t classes = 0;  // 0: as the data says, or the template
};

// The templates, a line each.
std::string describe_templates();

// The template's text for these data and this model: their classes or labels, the preparation that their images need,
// their splits, and what the model's head reads. Throws GraphError for a template that is unknown or does not fit,
// RunError if data or model cannot be read.
std::string start_graph(const StartOptions& options);

// Writes it to a file that is not there yet, and returns that file's name. Throws GraphError if it is there,
// RunError if it cannot be written, and what `check` throws of a text for data that are named.
using StartCheck = std::function<void(const std::string& text, const std::string& file)>;
std::string write_start_graph(const StartOptions& options, const StartCheck& check = {});

}  // namespace arbalest
