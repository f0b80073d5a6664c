// SPDX-License-Identifier: Apache-2.0

// Files that are replaced whole: permissions, links, failures, and nothing left behind.

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "base/files/atomic_file.h"
#include "base/files/file.h"
#include "tests/io/test_folder.h"

using namespace arbalest;

namespace atomic_file_test {
namespace {

std::string content(const std::filesystem::path& path) {
  const std::vector<uint8_t> bytes = read_file(path);
  return {bytes.begin(), bytes.end()};
}

void replace(const std::filesystem::path& path, const std::string& text) {
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

unsigned mode_of(const std::filesystem::path& path) {
  struct stat status = {};
  REQUIRE(stat(path.c_str(), &status) == 0);
  return status.st_mode & 07777;
}

}  // namespace

TEST_CASE("atomic file: replaced whole, through links too") {
  TestFolder folder;
  const std::string second(3'000'000, 'x');
  replace(folder / "file", "first");
  CHECK(content(folder / "file") == "first");
  replace(folder / "file", second);
  CHECK(content(folder / "file") == second);
  std::filesystem::create_symlink("file", folder / "link");
  replace(folder / "link", "third");
  CHECK(std::filesystem::is_symlink(folder / "link"));
  CHECK(content(folder / "file") == "third");
  CHECK(folder.names().size() == 2);  // nothing is left behind
}

TEST_CASE("atomic file: links to files that are not there yet, to other folders and to themselves") {
  TestFolder folder;
  folder.write("store/old", std::string("old"));
  std::filesystem::create_symlink("store/new", folder / "relative");
  std::filesystem::create_symlink(folder / "relative", folder / "absolute");
  replace(folder / "absolute", "content");
  CHECK(content(folder / "store/new") == "content");
  CHECK(std::filesystem::is_symlink(folder / "absolute"));
  CHECK(std::filesystem::is_symlink(folder / "relative"));
  std::filesystem::create_symlink("circle", folder / "circle");
  check_parts(message_of<RunError>([&] { replace(folder / "circle", "new"); }),
              {"circle: cannot be replaced", "nowhere"});
}

TEST_CASE("atomic file: what is not committed changes nothing and is removed") {
  TestFolder folder;
  replace(folder / "file", "old");
  {
    AtomicFile file(folder / "file");
    file.write("new");
    CHECK(folder.names().size() == 2);
    CHECK(content(folder / "file") == "old");
  }
  CHECK(content(folder / "file") == "old");
  CHECK(folder.names().size() == 1);
}

TEST_CASE("atomic file: an existing file keeps its permissions, a new one follows the umask") {
  TestFolder folder;
  const mode_t before = umask(022);
  replace(folder / "new", "a");
  CHECK(mode_of(folder / "new") == 0644);
  for (const unsigned mode : {0600u, 0640u, 0666u}) {
    REQUIRE(chmod((folder / "new").c_str(), mode) == 0);
    {
      AtomicFile file(folder / "new");
      for (const std::string& name : folder.names()) CHECK((mode_of(folder / name) & ~mode) == 0);
      file.commit();
    }
    CHECK(mode_of(folder / "new") == mode);
  }
  umask(before);
}

TEST_CASE("atomic file: a file that is read-only is refused, whoever asks") {
  TestFolder folder;
  replace(folder / "file", "precious");
  REQUIRE(chmod((folder / "file").c_str(), 0444) == 0);
  check_parts(message_of<RunError>([&] { replace(folder / "file", "new"); }),
              {"file: cannot be replaced", "read-only"});
  CHECK(content(folder / "file") == "precious");
  CHECK(mode_of(folder / "file") == 0444);
  CHECK(folder.names().size() == 1);
}

TEST_CASE("atomic file: links that lie where a temporary file might be are not followed") {
  TestFolder folder;
  folder.write("victim", std::string("untouched"));
  for (const char* name : {"file.part", "file.tmp", ".file.tmp"}) {
    std::filesystem::create_symlink("victim", folder / name);
  }
  replace(folder / "file", "new");
  CHECK(content(folder / "victim") == "untouched");
  CHECK(content(folder / "file") == "new");
}

TEST_CASE("atomic file: what a killed process left is removed, what another one writes is not") {
  TestFolder folder;
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    AtomicFile file(folder / "file");
    file.write("half");
    raise(SIGKILL);
  }
  REQUIRE(waitpid(child, nullptr, 0) == child);
  REQUIRE(folder.names().size() == 1);
  const std::vector<std::string> others = {".file.tmp-0123", ".file.tmp-0123456789abcdeX", ".fil.tmp-0123456789abcdef"};
  for (const std::string& name : others) folder.write(name, std::string("somebody's"));
  AtomicFile first(folder / "file");
  first.write("first");
  replace(folder / "file", "second");
  CHECK(folder.names().size() == others.size() + 2);
  first.commit();
  CHECK(content(folder / "file") == "first");
  CHECK(folder.names().size() == others.size() + 1);
}

TEST_CASE("atomic file: what cannot be replaced is said, and stays") {
  TestFolder folder;
  folder.write("target/inside", std::string("old"));
  check_parts(message_of<RunError>([&] { replace(folder / "target", "new"); }),
              {"target: cannot be replaced: it is a folder"});
  CHECK(content(folder / "target/inside") == "old");
  CHECK(folder.names().size() == 1);
  check_parts(message_of<RunError>([&] { replace(folder / "none/file", "new"); }),
              {"file: cannot be created", "which does not exist"});
  // The longest name that file systems take leaves no room for a suffix.
  const std::string longest(255, 'n');
  replace(folder / longest, "new");
  CHECK(content(folder / longest) == "new");
}

}  // namespace atomic_file_test
