// SPDX-License-Identifier: Apache-2.0

// How a process finds out from its environment, or from options, that it is one of several.

#include <doctest/doctest.h>

#include <string>

#include "base/error.h"
#include "executor/world/world.h"
#include "tests/io/test_folder.h"

using namespace arbalest;

namespace world_test {
namespace {

std::string fault(const Environment& environment, const WorldOptions& options = {}) {
  try {
    detect_world(environment, options);
  } catch (const GraphError& error) {
    return error.what();
  }
  return "";
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

Environment slurm() {
  return {{"SLURM_PROCID", "3"},
          {"SLURM_NTASKS", "8"},
          {"SLURM_STEP_NUM_TASKS", "4"},
          {"SLURM_STEP_ID", "0"},
          {"SLURM_STEP_NODELIST", "node[07-08]"},
          {"SLURM_JOB_ID", "123"},
          {"ARBALEST_SECRET", "x"}};
}

}  // namespace

TEST_CASE("without a launcher, and with --world-size 1, a process is alone") {
  CHECK(detect_world({}, {}).size == 1);
  CHECK(detect_world({{"WORLD_SIZE", "8"}}, {}).size == 1);  // a name that scripts use as they like
  CHECK(detect_world(slurm(), {.size = 1}).size == 1);
  Environment batch = slurm();  // the script itself, which is no step of the job
  batch.erase("SLURM_STEP_ID");
  CHECK(detect_world(batch, {}).size == 1);
  Environment single = slurm();
  single["SLURM_STEP_NUM_TASKS"] = "1";
  single["SLURM_PROCID"] = "0";
  CHECK(detect_world(single, {}).size == 1);
}

TEST_CASE("srun's variables are of a step, and rank 0 waits on its first host") {
  const WorldSettings world = detect_world(slurm(), {});
  CHECK(world.rank == 3);
  CHECK(world.size == 4);
  CHECK(world.host == "node07");
  CHECK(world.secret == "x");
  CHECK(has(world.told_by, "srun (SLURM_PROCID=3, SLURM_STEP_NUM_TASKS=4)"));
  Environment other = slurm();
  other["SLURM_PROCID"] = "0";
  CHECK(detect_world(other, {}).port == world.port);
  other["SLURM_STEP_ID"] = "1";
  CHECK(detect_world(other, {}).port != world.port);
  other.erase("SLURM_STEP_NUM_TASKS");
  CHECK(detect_world(other, {}).size == 8);
  Environment one = slurm();
  one["SLURM_STEP_NODELIST"] = "node07";
  one.erase("ARBALEST_SECRET");
  CHECK(detect_world(one, {}).host == "127.0.0.1");
}

TEST_CASE("a process of a job of SLURM that srun did not start is told that it is alone, and how to start all") {
  Environment batch = {{"SLURM_JOB_ID", "123"}, {"SLURM_JOB_NUM_NODES", "2"}, {"SLURM_PROCID", "0"}};
  CHECK(detect_world(batch, {}).size == 1);
  CHECK(has(alone_in_job(batch, {}), "job 123 has 2 hosts (SLURM_JOB_NUM_NODES), and srun "));
  CHECK(has(alone_in_job(batch, {}), "'srun --mpi=none' before the command starts all tasks, and --world-size 1 says"));
  Environment shell = {{"SLURM_JOB_ID", "123"}, {"SLURM_JOB_NUM_NODES", "1"}, {"SLURM_NTASKS", "4"}};  // of salloc
  CHECK(has(alone_in_job(shell, {}), "1 host (SLURM_JOB_NUM_NODES) and 4 tasks (SLURM_NTASKS), "));
  shell.insert({{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_STEP_ID", "4294967290"}});
  CHECK(detect_world(shell, {}).size == 1);
  CHECK(has(alone_in_job(shell, {}), "1 host (SLURM_JOB_NUM_NODES) and 4 tasks (SLURM_NTASKS), "));
  shell["SLURM_STEP_ID"] = "0";  // of "srun -n 1"
  CHECK(alone_in_job(shell, {}) == "");

  CHECK(alone_in_job(batch, {.size = 1}) == "");
  CHECK(alone_in_job(slurm(), {}) == "");
  batch["SLURM_JOB_NUM_NODES"] = "1";
  CHECK(alone_in_job(batch, {}) == "");
  batch["SLURM_NTASKS"] = "4";
  batch.insert({{"RANK", "0"}, {"WORLD_SIZE", "4"}});  // torchrun on the first host
  CHECK(alone_in_job(batch, {}) == "");
  CHECK(alone_in_job({{"SLURM_NTASKS", "4"}}, {}) == "");
}

TEST_CASE("torchrun's store listens at its port, so ranks meet at the next one") {
  Environment torch = {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "localhost"}, {"MASTER_PORT", "29500"}};
  CHECK(detect_world(torch, {}).port == 29500);
  torch["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  CHECK(detect_world(torch, {}).port == 29501);
  CHECK(detect_world(torch, {.rendezvous = "[::1]:7"}).port == 7);
  CHECK(detect_world(torch, {.rendezvous = "[::1]:7"}).host == "::1");
}

TEST_CASE("torchrun's variables that are incomplete or contradict each other are refused") {
  Environment torch = {{"WORLD_SIZE", "2"}, {"MASTER_ADDR", "localhost"}, {"MASTER_PORT", "29500"}};
  CHECK(has(fault(torch), "WORLD_SIZE is set, and RANK is not"));
  CHECK(fault({{"WORLD_SIZE", "2"}}).empty());  // a name that scripts use as they like
  torch["WORLD_SIZE"] = "1";
  CHECK(fault(torch).empty());
  torch.insert({{"RANK", "0"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "1"}});
  CHECK(has(fault(torch), "LOCAL_RANK is '1'; expected a number below 1, which LOCAL_WORLD_SIZE is"));
  torch["LOCAL_WORLD_SIZE"] = "2";
  CHECK(has(fault(torch), "LOCAL_WORLD_SIZE is '2'; expected a number from 1 to 1, which WORLD_SIZE is"));
  torch["WORLD_SIZE"] = "2";
  CHECK(fault(torch).empty());
  torch["MASTER_PORT"] = "65536";
  CHECK(has(fault(torch), "MASTER_PORT is '65536'; expected a port from 1 to 65535, because RANK is set"));
  torch["MASTER_PORT"] = "65535";
  CHECK(detect_world(torch, {}).port == 65535);
  torch["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  CHECK(has(fault(torch), "expected a port from 1 to 65534"));
}

TEST_CASE("the innermost launcher counts: mpirun's daemons carry srun's variables") {
  Environment mpi = slurm();
  mpi.insert({{"OMPI_COMM_WORLD_RANK", "1"},
              {"OMPI_COMM_WORLD_SIZE", "2"},
              {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
              {"PMIX_NAMESPACE", "prterun-1"},
              {"PMIX_RANK", "1"}});
  const WorldSettings world = detect_world(mpi, {});
  CHECK(world.size == 2);
  CHECK(world.host == "127.0.0.1");
  mpi["OMPI_COMM_WORLD_LOCAL_SIZE"] = "1";
  CHECK(has(fault(mpi), "expected --rendezvous HOST:PORT"));
  // Open MPI 4 says where mpirun is, which is where rank 0 is if it shares mpirun's daemon.
  const std::string mpirun = "77.0;tcp://192.0.2.2,10.0.0.1:57045;tcp6://[fd00::2]:43949";
  mpi["OMPI_MCA_orte_hnp_uri"] = mpirun;
  CHECK(detect_world(mpi, {}).host == "192.0.2.2,10.0.0.1");
  CHECK(detect_world(mpi, {.rendezvous = "node01:7"}).host == "node01");
  mpi["OMPI_COMM_WORLD_RANK"] = "0";
  mpi["OMPI_MCA_orte_local_daemon_uri"] = "77.1;tcp://192.0.2.3:4711";
  CHECK(has(fault(mpi), "mpirun runs on another host than rank 0"));
  mpi["OMPI_MCA_orte_local_daemon_uri"] = mpirun;
  CHECK(detect_world(mpi, {}).host == "192.0.2.2,10.0.0.1");
  mpi["OMPI_MCA_orte_hnp_uri"] = mpi["OMPI_MCA_orte_local_daemon_uri"] = "77.0;tcp://127.0.0.1,10.0.0.1:57045";
  CHECK(detect_world(mpi, {}).host == "127.0.0.1,10.0.0.1");
  mpi.erase("ARBALEST_SECRET");
  CHECK(has(fault(mpi), "at 127.0.0.1,10.0.0.1:"));
  CHECK(has(fault(mpi), "which other hosts can reach, and ARBALEST_SECRET is not set"));
  mpi["OMPI_MCA_orte_hnp_uri"] = mpi["OMPI_MCA_orte_local_daemon_uri"] = "77.0;tcp://127.0.0.1,127.0.0.2:57045";
  CHECK(fault(mpi).empty());
  mpi["OMPI_MCA_orte_hnp_uri"] = mpi["OMPI_MCA_orte_local_daemon_uri"] = "77.0;tcp6://[fd00::2]:43949";
  CHECK(has(fault(mpi), "expected --rendezvous HOST:PORT"));
  CHECK(has(fault(mpi), "with an address of rank 0's host, which has "));
  CHECK(detect_world({{"PMI_RANK", "0"}, {"PMI_SIZE", "3"}, {"MPI_LOCALNRANKS", "3"}}, {}).size == 3);
  Environment step = slurm();  // of a site whose steps get variables for PMI
  step.insert({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}});
  CHECK(has(detect_world(step, {}).told_by, "srun (SLURM_PROCID=3"));
}

TEST_CASE("Open MPI 5 calls its job after mpirun's host, and a daemon elsewhere knows its addresses") {
  Environment mpi = {{"OMPI_COMM_WORLD_RANK", "0"},
                     {"OMPI_COMM_WORLD_SIZE", "2"},
                     {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
                     {"PMIX_NAMESPACE", "prterun-node-07-4711@1"},
                     {"PMIX_SERVER_URI2", "prterun-node-07-4711@0.0;tcp4://127.0.0.1:53249"},
                     {"ARBALEST_SECRET", "x"}};
  const WorldSettings first = detect_world(mpi, {});
  CHECK(first.host == "127.0.0.1,node-07");
  mpi["PMIX_SERVER_URI2"] = "prterun-node-07-4711@0.1;tcp4://127.0.0.1:44811";
  CHECK(has(fault(mpi), "mpirun runs on another host than rank 0"));
  CHECK(
      has(fault(mpi), "expected --rendezvous HOST:PORT in the command line, with an address of rank 0's host, which"));
  mpi["OMPI_COMM_WORLD_RANK"] = "1";
  CHECK(detect_world(mpi, {}).host == "node-07");
  CHECK(detect_world(mpi, {}).port == first.port);
  mpi["prte_hnp_uri"] = "prterun-node-07-4711@0.0;tcp://192.0.2.2,10.0.0.1:36951:24,30";
  CHECK(detect_world(mpi, {}).host == "192.0.2.2,10.0.0.1,node-07");
  mpi["PMIX_NAMESPACE"] = "4711";
  CHECK(has(fault(mpi), "does not say where rank 0 is; expected --rendezvous HOST:PORT"));
}

TEST_CASE("by hand all three are needed, and go before what a launcher says") {
  const WorldSettings world = detect_world(slurm(), {.rank = 1, .size = 2, .rendezvous = "localhost:99"});
  CHECK(world.rank == 1);
  CHECK(world.size == 2);
  CHECK(world.port == 99);
  CHECK(has(fault({}, {.rank = 0}), "--world-size is not"));
  CHECK(has(fault({}, {.size = 2}), "--rank is not given; expected one from 0 to 1"));
  CHECK(has(fault({}, {.rank = 0, .size = 2}), "expected --rendezvous HOST:PORT"));
  CHECK(has(fault({}, {.rank = 2, .size = 2, .rendezvous = "h:1"}), "--rank is 2, and --world-size is 2"));
  CHECK(has(fault({}, {.rank = -1, .size = 2, .rendezvous = "h:1"}), "--rank is -1"));
  CHECK(has(fault({}, {.rank = 0, .size = 0}), "--world-size is 0; expected a number from 1"));
  CHECK(has(fault({}, {.rank = 0, .size = 2, .rendezvous = "h:0"}), "--rendezvous's port is '0'"));
  CHECK(has(fault({}, {.rank = 0, .size = 2, .rendezvous = "29400"}), "expected HOST:PORT"));
}

TEST_CASE("variables that are incomplete or contradict each other are named, with what was found and expected") {
  CHECK(has(fault({{"RANK", "0"}}), "RANK is set, and WORLD_SIZE is not"));
  CHECK(has(fault({{"OMPI_COMM_WORLD_SIZE", "2"}}), "OMPI_COMM_WORLD_SIZE is set, and OMPI_COMM_WORLD_RANK is not"));
  CHECK(has(fault({{"RANK", "0"}, {"WORLD_SIZE", "2"}}), "MASTER_ADDR is not set"));
  CHECK(
      has(fault({{"RANK", "2"}, {"WORLD_SIZE", "2"}}), "RANK is 2, and WORLD_SIZE is 2; expected a rank from 0 to 1"));
  CHECK(has(fault({{"RANK", "one"}, {"WORLD_SIZE", "2"}}), "RANK is 'one'; expected a number"));
  CHECK(has(fault({{"RANK", "0"}, {"WORLD_SIZE", "99999999999"}}), "WORLD_SIZE is '99999999999'"));
  Environment without = slurm();
  without.erase("SLURM_STEP_NUM_TASKS");
  without.erase("SLURM_NTASKS");
  CHECK(has(fault(without), "SLURM_NTASKS is not set"));
  Environment open = slurm();
  open.erase("ARBALEST_SECRET");
  CHECK(has(fault(open), "other hosts can reach, and ARBALEST_SECRET is not set"));
  open["ARBALEST_SECRET"] = std::string(257, 'x');
  CHECK(has(fault(open), "expected at most 256"));
  open["ARBALEST_SECRET"] = std::string("a\0b", 3);
  CHECK(has(fault(open), "ARBALEST_SECRET: found a byte of value 0; expected a secret of text"));
  open["ARBALEST_SECRET"] = " \t";
  CHECK(has(fault(open), "ARBALEST_SECRET: found blanks alone; expected a secret"));
}

TEST_CASE("MPI's collectives are for processes that MPI started") {
  const WorldOptions options = {
      .rank = 0, .size = 2, .rendezvous = "localhost:99", .collectives = parse_collectives("mpi")};
  CHECK(has(fault({}, options), "--collectives mpi: MPI did not start this process"));
  CHECK(has(fault(slurm(), {.collectives = Collectives::Mpi}), "expected mpirun, or 'srun --mpi=pmix'"));
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"}) {
    CHECK(detect_world({{name, "2"}}, options).collectives == Collectives::Mpi);
  }
  CHECK(detect_world({}, {.size = 1, .collectives = Collectives::Mpi}).size == 1);
  CHECK(detect_world(slurm(), {}).collectives == Collectives::Gloo);
  CHECK_THROWS_WITH_AS(parse_collectives("mpj"), "found 'mpj'; expected gloo or mpi; did you mean 'mpi'?", GraphError);
}

TEST_CASE("a file of a secret has one") {
  const TestFolder folder;
  const auto refusal = [](const std::string& file) { return fault(slurm(), {.secret_file = file}); };
  CHECK(refusal(folder.string()) ==
        "--secret-file " + folder.string() + ": found a folder, expected a file with a secret");
  const std::string file = folder.write("secret", std::string("\n")).string();
  CHECK(has(refusal(file), "is empty; expected a secret in it"));
  folder.write("secret", std::string("  \n"));
  CHECK(has(refusal(file), "secret: found blanks alone; expected a secret"));
  folder.write("secret", std::string("a secret\n"));
  CHECK(refusal(file).empty());
}

TEST_CASE("a list is of this host alone if each of its words is") {
  for (const char* host : {"localhost", "::1", "127.0.0.1", "127.0.0.1,::1,localhost"}) CHECK(is_loopback(host));
  for (const char* host : {"", "10.0.0.1", "127.0.0.1,10.0.0.1", "10.0.0.1,127.0.0.1"}) CHECK_FALSE(is_loopback(host));
}

TEST_CASE("the first host of a list") {
  CHECK(first_of_hosts("node07") == "node07");
  CHECK(first_of_hosts("a,b[1-2]") == "a");
  CHECK(first_of_hosts("node[07-09,12],x1") == "node07");
  CHECK(first_of_hosts("node[3]") == "node3");
  CHECK(first_of_hosts("rack[1,4]-n") == "rack1-n");
  CHECK_THROWS_AS(first_of_hosts("node["), GraphError);
  CHECK_THROWS_AS(first_of_hosts("node[]"), GraphError);
}

}  // namespace world_test
