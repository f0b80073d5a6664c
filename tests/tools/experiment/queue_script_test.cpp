// SPDX-License-Identifier: Apache-2.0

// The script that a bench writes for SLURM.

#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "base/error.h"
#include "tests/io/test_folder.h"
#include "tools/experiment/trials/queue_script.h"

using namespace arbalest;

namespace queue_script_test {
namespace {

std::vector<QueueScript> scripts(const std::string& more, const TestFolder& folder) {
  const BenchFile file = read_bench_file(folder.write("my bench.toml", "[settings]\ngraph = \"g\"\n" + more).string());
  std::vector<QueueScript> all =
      slurm_scripts(file, expand(file), {"data=folder:it's"}, {"/opt/arbalest", "/scratch/x y", "/scratch/me"});
  for (const QueueScript& each : all) {
    const std::string path = folder.write("s.sbatch", each.text).string();
    CHECK(std::system(("bash -n '" + path + "'").c_str()) == 0);
  }
  return all;
}

// The last of the scripts: that of the cells that take most.
std::string script(const std::string& more, const TestFolder& folder) {
  return scripts(more, folder).back().text;
}

void check_lines(const std::string& text, std::initializer_list<const char*> lines) {
  for (const char* line : lines) CHECK_MESSAGE(text.find(std::string(line) + "\n") != text.npos, line, "\n", text);
}

}  // namespace

TEST_CASE("a SLURM script has an element a cell, what the file asks for, and no more") {
  const TestFolder folder;
  const std::string text = script(
      "devices = [\"cuda:0-3\", \"cuda:0,cuda:1,cuda:2,cuda:3\"]\nlearners = [1, 2]\n[slurm]\naccount = "
      "\"lab\"\npartition = \"gpu\"\n"
      "time = \"02:00:00\"\nat_once = 3\nmodules = [\"cuda/13\"]\nsetup = [\"export X=1\"]\ncpus_per_task = 8\n",
      folder);
  check_lines(text, {"#!/usr/bin/env bash",
                     "#SBATCH --job-name=\"my bench\"",
                     "#SBATCH --array=\"0-3%3\"",
                     "#SBATCH --account=\"lab\"",
                     "#SBATCH --partition=\"gpu\"",
                     "#SBATCH --nodes=\"1\"",
                     "#SBATCH --ntasks-per-node=\"1\"",
                     "#SBATCH --ntasks=\"1\"",
                     "#SBATCH --gpus-per-task=\"4\"",
                     "#SBATCH --cpus-per-task=\"8\"",
                     "#SBATCH --time=\"02:00:00\"",
                     "#SBATCH --signal=\"B:USR1@120\"",
                     "#SBATCH --requeue",
                     "#SBATCH --open-mode=\"append\"",
                     "#SBATCH --output=\"/scratch/x y/output/%A_%a.out\"",
                     "#SBATCH --chdir=\"/scratch/me\"",
                     "module load cuda/13",
                     "[ -z \"${SLURM_CPUS_PER_TASK:-}\" ] || export SRUN_CPUS_PER_TASK=\"$SLURM_CPUS_PER_TASK\"",
                     "export X=1",
                     "exit \"$status\""});
  CHECK(text.find("--qos") == text.npos);
  CHECK(text.find("srun --mpi=none /opt/arbalest bench ") != text.npos);
  CHECK(text.find(
            "--set 'data=folder:it'\\''s' \"${asked[@]}\" --results '/scratch/x y/results'/\"${asked[1]}\".jsonl") !=
        text.npos);
  CHECK(text.find("ARBALEST_SECRET") == text.npos);
}

TEST_CASE("cells that take different numbers of hosts or GPUs have scripts of their own") {
  const TestFolder folder;
  const std::string file =
      "learners = [1, 2]\n[[together]]\nhosts = [1, 1, 16]\n"
      "devices = [\"cuda:0\", \"cuda:0-7\", \"cuda:0-7\"]\n";
  const std::vector<QueueScript> all = scripts(file, folder);
  REQUIRE(all.size() == 3);
  check_lines(all[0].text, {"#SBATCH --array=\"0-1%4\"", "#SBATCH --nodes=\"1\"", "#SBATCH --gpus-per-task=\"1\""});
  check_lines(all[1].text, {"#SBATCH --array=\"0-1%4\"", "#SBATCH --nodes=\"1\"", "#SBATCH --gpus-per-task=\"8\""});
  check_lines(all[2].text, {"#SBATCH --array=\"0-1%4\"", "#SBATCH --nodes=\"16\"", "#SBATCH --ntasks=\"16\"",
                            "#SBATCH --gpus-per-task=\"8\""});
  CHECK(scripts(file + "[slurm]\ngpus_per_task = 8\n", folder).size() == 2);
}

TEST_CASE("a GPU that a job does not have is refused, since SLURM numbers those of a job from 0") {
  const TestFolder folder;
  const auto fault = [&](const std::string& more) {
    try {
      script(more, folder);
    } catch (const GraphError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(fault("devices = \"cuda:4-7\"\n") ==
        "--slurm: g: found devices = cuda:4-7 and 4 GPUs for each task, which SLURM numbers from 0; expected numbers "
        "below 4, or gpus_per_task = 8 in [slurm]");
  CHECK(fault("devices = [\"cuda:1\", \"cuda:4-5\"]\n").ends_with("gpus_per_task = 6 in [slurm]"));  // enough for both
  CHECK(fault("devices = \"cuda:4-7\"\n[slurm]\ngpus_per_task = 8\n").empty());
  CHECK(fault("devices = \"cuda:0-7\"\n[slurm]\ngpus_per_task = 4\n").find("below 4") != std::string::npos);
  CHECK(fault("devices = \"cuda:1\"\n[slurm]\ngres = \"gpu:h100:2\"\n").empty());  // which says how many
}

TEST_CASE("cells of several hosts are started by the bench, and containers stand before it") {
  const TestFolder folder;
  const std::string several =
      script("hosts = [1, 2]\ndevices = \"cpu:0\"\n[accuracy]\n[slurm]\ngres = \"gpu:h100:2\"\n", folder);
  check_lines(several, {"#SBATCH --nodes=\"2\"", "#SBATCH --gres=\"gpu:h100:2\"", "export ARBALEST_SECRET"});
  CHECK(several.find("\n/opt/arbalest bench") != several.npos);
  CHECK(several.find("srun --mpi") == several.npos);
  CHECK(several.find("gpus-per-task") == several.npos);
  for (const char* image : {"apptainer", "pyxis"}) {
    CHECK_THROWS_WITH_AS(
        script("hosts = [1, 2]\ndevices = \"cpu:0\"\n[accuracy]\n[slurm]\n" + std::string(image) + " = \"a\"\n",
               folder),
        ("[slurm]: " + std::string(image) +
         ": the bench starts cells of several hosts by srun, which an image does not have; expected hosts = 1 or no "
         "image")
            .c_str(),
        GraphError);
  }
}

TEST_CASE("images have the folders that a bench needs, at the same paths, and those that the file adds") {
  const TestFolder folder;
  const std::string root = folder.string();
  for (const char* inner : {"build/tools", "benches", "graphs", "photos", "out", "here"}) {
    std::filesystem::create_directories(root + "/" + inner);
  }
  const auto text = [&](const std::string& image, const std::string& program) {
    const std::string path =
        folder
            .write("benches/b.toml", "[settings]\ngraph = [\"../graphs/g\", \"h\"]\ndata = \"folder:" + root +
                                         "/photos?size=32\"\ndevices = \"cpu:0\"\n[slurm]\nmounts = [\"/data\", "
                                         "\"/a:/b:ro\"]\n" +
                                         image)
            .string();
    const BenchFile file = read_bench_file(path);
    return slurm_scripts(file, expand(file), {}, {program, root + "/out", root + "/here"}).at(0).text;
  };
  std::string mounts;
  for (const char* inner : {"benches", "build", "graphs", "here", "out", "photos"}) {
    mounts += root + "/" + inner + ":" + root + "/" + inner + ",";
  }
  mounts += "/data:/data,/a:/b:ro";
  const std::string program = root + "/build/tools/arbalest", pyxis = text("pyxis = \"nvcr.io#x\"\n", program);
  CHECK_MESSAGE(pyxis.find("srun --mpi=none --container-image='nvcr.io#x' --container-mounts=" + mounts +
                           " --container-workdir=" + root + "/here " + program + " bench") != pyxis.npos,
                pyxis);
  const std::string apptainer = text("apptainer = \"a.sif\"\n", program);
  CHECK_MESSAGE(apptainer.find("srun --mpi=none apptainer exec --nv --bind " + mounts + " --pwd " + root +
                               "/here a.sif " + program + " bench") != apptainer.npos,
                apptainer);
  CHECK(text("pyxis = \"x\"\n", "/usr/bin/arbalest").find("/usr:/usr") == std::string::npos);  // the image's own
  CHECK_THROWS_AS(text("", program), GraphError);  // mounts without an image
}

TEST_CASE("lines before the bench may read variables that are not set") {
  const TestFolder folder;
  const std::string text = script("devices = \"cpu:0\"\n[slurm]\nsetup = [\"X=$NOT_SET_$PS1\"]\n", folder);
  const std::string path = folder.write("before.sh", text.substr(0, text.find("\ncells=("))).string();
  CHECK(std::system(("env -u PS1 bash '" + path + "'").c_str()) == 0);
  CHECK(text.find("set -u\n") < text.find("cells=("));
}

TEST_CASE("a cell and its sides of other programs are one element, in which they take turns") {
  const TestFolder folder;
  const std::string text = script(
      "devices = \"cpu:0\"\nbatch = [8, 16]\n[peer.one]\ncommand = \"a\"\n[peer.two]\ncommand = \"b\"\n"
      "when = \"batch == 8\"\n",
      folder);
  check_lines(text, {"#SBATCH --array=\"0-1%4\""});
  CHECK_MESSAGE(text.find("# batch 8; batch 8, one; batch 8, two\n") != text.npos, text);
  CHECK(text.find("# batch 16; batch 16, one\n") != text.npos);
  const size_t begin = text.find("cells=("), end = text.find("done\n", begin) + 5;
  const std::string check = "SLURM_ARRAY_TASK_ID=0\n" + text.substr(begin, end - begin) + "test ${#asked[@]} -eq 6\n";
  CHECK(std::system(("bash '" + folder.write("cells.sh", check).string() + "'").c_str()) == 0);
}

TEST_CASE("texts of a bench file are no lines of its SLURM script") {
  const TestFolder folder;
  const std::string mark = (folder / "mark").string();
  const std::string text = script("data = [\"a\", \"b\\ntouch '" + mark + "' )\\ntouch '" + mark + "'\"]\n", folder);
  const std::string cells = text.substr(text.find("cells=("), text.find("asked=(") - text.find("cells=("));
  const std::string path = folder.write("cells.sh", cells + "test ${#cells[@]} -eq 2\n").string();
  CHECK(std::system(("bash '" + path + "'").c_str()) == 0);
  CHECK_FALSE(std::filesystem::exists(mark));
  CHECK_THROWS_WITH_AS(
      script("devices = \"cpu:0\"\n[slurm]\naccount = \"a\\n#SBATCH --uid=0\"\n", folder),
      "--slurm: account: found 'a\\x0a#SBATCH --uid=0', expected no quotes, backslashes and ends of lines", GraphError);
  CHECK_THROWS_AS(script("devices = \"cpu:0\"\n[slurm]\nqos = 'a\" --x'\n", folder), GraphError);
}

}  // namespace queue_script_test
