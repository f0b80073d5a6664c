// SPDX-License-Identifier: Apache-2.0
#pragma once
// Files that a run will write, looked at before it trains rather than after.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/files/output_lock.h"

namespace arbalest {

struct FileOptions;

using NamedPaths = std::vector<std::pair<std::string, std::string>>;  // option and path; an empty path is not given

// Whether both are one file, by whatever name: through links, symbolic or hard. Never if one is empty.
bool same_file(const std::string& one, const std::string& other);

// Whether --save and --save-best name one file, as they do for a sweep's trials. It has the model of the best
// validation, or the last one of a run that nothing validates or that no metric judges.
bool saves_best_or_last(const FileOptions& files);
// Whether --save-best asks for a model by a metric, for which the run has to be validated.
bool saves_by_metric(const FileOptions& files);

// Throws GraphError if two are the same file, unless that is a device.
void check_distinct_paths(const NamedPaths& files);

// Throws GraphError if an output is one of the inputs. Weights that are read may be saved over: they are read first,
// and only weights replace them.
void check_inputs_kept(const NamedPaths& inputs, const NamedPaths& outputs);

// The kind of file that an option writes; it may only replace a file of the same kind.
enum class OutputKind : uint8_t {
  Weights,    // safetensors with the metadata of a run's
  Trace,      // as run --trace writes it
  Log,        // JSON lines, the first of which is an event
  MlperfLog,  // as run --mllog writes it
  Model,      // .onnx
  Page,       // HTML
  Picture,    // SVG
  Bundle      // a tar archive, as bench --bundle writes it
};

// Throws GraphError if the file that an option would replace is of another kind: a mistyped path may name data or a
// program rather than an earlier output. Any option may write over an empty file, or something that is no regular file.
void check_kind_kept(const std::string& option, const std::string& path, OutputKind kind);

// Throws GraphError if the path is "-", which is no name for standard output here.
void check_output_name(const std::string& option, const std::string& path);

// Throws GraphError if a file of weights, which are safetensors, has a name that other tools take for a file of theirs.
void check_weights_name(const std::string& option, const std::string& path);

// The same of an .onnx model.
void check_model_name(const std::string& option, const std::string& path);

// Checks outputs before the work that makes them starts, and keeps other processes from writing them as long as the
// locks live. Throws GraphError if two are the same file, RunError if one cannot be written, OutputInUse if another
// process is about to write it.
[[nodiscard]] std::vector<OutputLock> hold_outputs(const NamedPaths& files);

// The name of a file that does not exist. While the lock lives, no other process takes the name.
struct FreePath {
  std::string path;                // "": all names that were tried are taken
  std::optional<OutputLock> held;  // none if no file can be made
};

// The path itself if no file is there. Otherwise the first free name of NAME-1.EXTENSION, NAME-2.EXTENSION and so on,
// up to 1000.
FreePath free_path(const std::string& path);

// Other places for a file that cannot be written at `path`: free names in the working directory and in the folder for
// temporary files, if these exist.
std::vector<FreePath> other_places(const std::string& path);

// `text`, which may be anything, as the name of a file in the folder where it is written. Letters, digits, '-', '_',
// '.' and what is not ASCII stay; other bytes become '_', dots in front too. At most 100 bytes. "unnamed" for "".
std::string file_name_of(const std::string& text);

}  // namespace arbalest
