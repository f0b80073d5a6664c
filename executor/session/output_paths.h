#pragma once
// Files that a run will write, looked at before it trains rather than after.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "io/formats/output_lock.h"

namespace arbalest {

using NamedPaths = std::vector<std::pair<std::string, std::string>>;  // option and path; an empty path is not given

// Whether both are one file, by whatever name: through links, symbolic or hard. Never where one is empty.
bool same_file(const std::string& one, const std::string& other);

// Throws GraphError where two are the same file, which is no device.
void check_distinct_paths(const NamedPaths& files);

// Throws GraphError where an output is one of the inputs. Weights that are read may be saved over: they are read
// before, and replaced only by weights.
void check_inputs_kept(const NamedPaths& inputs, const NamedPaths& outputs);

// What an option writes, where it may replace a file of the same kind only.
enum class OutputKind : uint8_t {
  Weights,  // safetensors with the metadata of a run's
  Trace,    // as run --trace writes it
  Log,      // JSON lines, the first of which tells an event
  Model,    // .onnx
  Page,     // HTML
  Picture   // SVG
};

// Throws GraphError where the file that an option would replace is of another kind: no earlier output, but data or a
// program perhaps, which a mistyped path names. What is empty, or no regular file, is of every kind.
void check_kind_kept(const std::string& option, const std::string& path, OutputKind kind);

// Looks at outputs before the work that makes them, and keeps other processes from writing them as long as the locks
// live. Throws GraphError where two are the same file, RunError where one cannot be written, OutputInUse where another
// process is to write it.
[[nodiscard]] std::vector<OutputLock> hold_outputs(const NamedPaths& files);

// The name of a file that is not there. While the lock lives, no other process takes the name.
struct FreePath {
  std::string path;                // "": all names that were tried are taken
  std::optional<OutputLock> held;  // none where no file can be made
};

// The path itself where nothing is there, else the first that is free of NAME-1.EXTENSION, NAME-2.EXTENSION and so on,
// up to 1000.
FreePath free_path(const std::string& path);

// Where to put a file that cannot be written at `path`: names that nothing has, in the working directory and in the
// folder for temporary files, as far as there are such.
std::vector<FreePath> other_places(const std::string& path);

// `text`, which may be anything, as the name of a file in the folder where it is written: letters, digits, '-', '_',
// '.' and what is not ASCII stay, other bytes become '_', dots in front too; at most 100 bytes. "unnamed" for "".
std::string file_name_of(const std::string& text);

}  // namespace arbalest
