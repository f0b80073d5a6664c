// SPDX-License-Identifier: Apache-2.0
#pragma once
// A bench file, and a program that runs command lines as the test program does.

#include <sys/stat.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/plain_message.h"
#include "base/process.h"
#include "tests/tools/redirected.h"
#include "tests/tools/world/ranks.h"

namespace arbalest::test {

struct BenchPlace {
  const TestFolder folder;
  const std::string program = make_program();

  BenchPlace() { folder.write("g.onnxtxt", std::string(kGraph)); }

  std::string path(const std::string& name) const { return (folder / name).string(); }
  std::string make_program() const {
    const std::string own = std::filesystem::read_symlink("/proc/self/exe").string();
    const std::string file =
        folder
            .write("arbalest", std::string("#!/usr/bin/env bash\nprintf -v ") + kWords + " '%s\\n' \"$@\"\nexport " +
                                   kWords + "\nexec '" + own + "' --test-case='one rank of a world'\n")
            .string();
    chmod(file.c_str(), 0700);
    return file;
  }
  void write(const std::string& text) const { folder.write("b.toml", "[settings]\ngraph = \"g.onnxtxt\"\n" + text); }

  Words words(const std::string& results, const Words& more = {}) const {
    Words words = {"bench", path("b.toml"), "--results", path(results), "--program", program, "--anyway"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  // The exit status; what the command prints is in the file "out".
  int run(const std::string& results, const Words& more = {}) const { return run(words(results, more)); }
  int run(const Words& given) const {
    std::vector<const char*> pointers;
    for (const std::string& word : given) pointers.push_back(word.c_str());
    const Redirected output(path("out")), errors(path("errors"), stderr);
    try {
      return parse(pointers).run();
    } catch (const Error& error) {
      warn(plain_message(error));
      return int(error.code());
    }
  }
  std::string text(const char* name) const { return read_text(path(name)); }
};

}  // namespace arbalest::test
