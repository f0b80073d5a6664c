// SPDX-License-Identifier: Apache-2.0
#include "executor/world/world.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <vector>

#include "base/error.h"
#include "base/number.h"
#include "base/random.h"
#include "base/setting.h"
#include "executor/world/connection.h"

namespace arbalest {
namespace {

constexpr int kFirstPort = 20000, kPorts = 20000;  // ports that a job's number chooses among
constexpr int kMostPort = 65535;
constexpr size_t kLongestSecret = 256;
// The word before it in the command line of a daemon of Open MPI 5, by which process_environment() has it, too.
constexpr const char* kMpirunVariable = "prte_hnp_uri";

// The variables of one launcher.
struct Launcher {
  const char* name;
  const char *rank, *size;
  const char* step;  // a variable that only processes of its own have; nullptr: the rank's is one
};

constexpr Launcher kLaunchers[] = {
    {"torchrun", "RANK", "WORLD_SIZE", nullptr},
    {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", nullptr},
    {"mpirun", "PMI_RANK", "PMI_SIZE", nullptr},
    {"mpirun", "PMIX_RANK", "PMIX_SIZE", nullptr},
    {"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_ID"},
};

class Variables {
 public:
  explicit Variables(const Environment& environment) : environment_(environment) {}

  const std::string* find(const std::string& name) const {
    const auto found = environment_.find(name);
    return found == environment_.end() || found->second.empty() ? nullptr : &found->second;
  }

  std::string text(const std::string& name, const std::string& expected) const {
    if (const std::string* value = find(name)) return *value;
    throw GraphError(fmt::format("{} is not set; expected {}", name, expected));
  }

  int number(const std::string& name, int least, int most, const std::string& expected) const {
    return parse(name, text(name, expected), least, most, expected);
  }

  static int parse(const std::string& name, const std::string& text, int least, int most, const std::string& expected) {
    int value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size() || value < least || value > most) {
      throw GraphError(fmt::format("{} is '{}'; expected {}", name, text, expected));
    }
    return value;
  }

 private:
  const Environment& environment_;
};

void check_rank(const std::string& rank_name, int rank, const std::string& size_name, int size) {
  if (rank < size) return;
  throw GraphError(
      fmt::format("{} is {}, and {} is {}; expected a rank from 0 to {}", rank_name, rank, size_name, size, size - 1));
}

void put_place(WorldSettings& settings, const std::string& name, const std::string& text) {
  const std::string expected = "HOST:PORT, such as node01:29400 or [::1]:29400";
  const size_t colon = text.rfind(':');
  std::string host = colon == std::string::npos ? std::string() : text.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  if (host.empty()) throw GraphError(fmt::format("{} is '{}'; expected {}", name, text, expected));
  settings.host = host;
  settings.port = Variables::parse(name + "'s port", text.substr(colon + 1), 1, kMostPort,
                                   fmt::format("a number from 1 to {}", kMostPort));
}

void put_host(WorldSettings& settings, const Variables& variables) {
  constexpr size_t kLongest = 255;  // as of names of the system
  const std::string* given = variables.find(kHostVariable);
  if (!given) return;
  if (given->empty() || given->size() > kLongest || printable(*given) != *given) {
    throw GraphError(fmt::format("{} is '{}'; expected the name of a host, of {} letters at most", kHostVariable,
                                 printable(*given).substr(0, kLongest), kLongest));
  }
  settings.own_host = *given;
}

// A port that all ranks of a job work out alike.
int port_of(const std::string& job) {
  return kFirstPort + int(hash_name(job) % kPorts);
}

// The addresses in what a daemon of Open MPI says of itself or of mpirun: "192.0.2.2,10.0.0.1" of
// "1971388416.0;tcp://192.0.2.2,10.0.0.1:57045". "": it has none.
std::string addresses_in(const std::string& contact) {
  const std::string kBegin = ";tcp://";
  const size_t begin = contact.find(kBegin);
  if (begin == contact.npos) return "";
  return contact.substr(begin + kBegin.size(), contact.find(':', begin + kBegin.size()) - begin - kBegin.size());
}

void check_beside_mpirun(int rank, bool beside) {
  if (rank > 0 || beside) return;
  throw GraphError(
      fmt::format("mpirun runs on another host than rank 0, which it does not name; expected {} in the "
                  "command line, with an address of rank 0's host, which has {}",
                  set_to(SettingKey::Rendezvous, "HOST:PORT"), own_addresses()));
}

// The host that Open MPI 4 runs mpirun on. Rank 0 is there if it shares mpirun's daemon, and does not go on otherwise.
std::string host_of_mpirun_4(int rank, const Variables& variables) {
  const std::string* mpirun = variables.find("OMPI_MCA_orte_hnp_uri");
  if (!mpirun) return "";
  const std::string* daemon = variables.find("OMPI_MCA_orte_local_daemon_uri");
  check_beside_mpirun(rank, daemon && *daemon == *mpirun);
  return addresses_in(*mpirun);
}

// The same of Open MPI 5, which calls a job after mpirun's host and process, "prterun-server0-4711@1". Its daemons are
// the ranks of another one, "prterun-server0-4711@0.2;tcp4://127.0.0.1:53249", with mpirun as rank 0.
std::string host_of_mpirun_5(int rank, const Variables& variables) {
  const std::string *job = variables.find("PMIX_NAMESPACE"), *daemon = variables.find("PMIX_SERVER_URI2");
  if (!job || !daemon) return "";
  const size_t begin = job->find('-'), end = job->rfind('-');
  if (begin == end) return "";
  const bool beside = daemon->substr(0, daemon->find(';')).ends_with("@0.0");
  check_beside_mpirun(rank, beside);
  const std::string name = job->substr(begin + 1, end - begin - 1);
  if (beside) return "127.0.0.1," + name;
  const std::string* mpirun = variables.find(kMpirunVariable);
  const std::string addresses = mpirun ? addresses_in(*mpirun) : "";
  return addresses + (addresses.empty() ? "" : ",") + name;
}

// The place at which rank 0 waits, as the launcher's variables say.
void find_place(WorldSettings& settings, const Launcher& launcher, const Variables& variables) {
  const std::string name = launcher.name;
  if (name == "torchrun") {
    settings.host = variables.text("MASTER_ADDR", "the host of rank 0, because RANK is set");
    const std::string* used = variables.find("TORCHELASTIC_USE_AGENT_STORE");
    const int above = used && *used == "True" ? 1 : 0;  // torchrun's own store listens there then
    settings.port = variables.number("MASTER_PORT", 1, kMostPort - above,
                                     fmt::format("a port from 1 to {}, because RANK is set", kMostPort - above));
    settings.port += above;
  } else if (name == "srun") {
    const std::string nodes = variables.text("SLURM_STEP_NODELIST", "the hosts of the step, because SLURM_PROCID is");
    const std::string* job = variables.find("SLURM_JOB_ID");
    const bool one = nodes.find_first_of(",[") == std::string::npos;
    settings.host = one ? "127.0.0.1" : first_of_hosts(nodes);
    settings.port = port_of((job ? *job : "") + "." + *variables.find("SLURM_STEP_ID"));
  } else {
    const char* local_size = std::string(launcher.rank).starts_with("OMPI") ? "OMPI_COMM_WORLD_LOCAL_SIZE"
                             : std::string(launcher.rank) == "PMI_RANK"     ? "MPI_LOCALNRANKS"
                                                                            : "PMIX_LOCAL_SIZE";
    const std::string* here = variables.find(local_size);
    const bool one = here && *here == std::to_string(settings.size);
    settings.host = one ? "127.0.0.1" : host_of_mpirun_4(settings.rank, variables);
    if (settings.host.empty()) settings.host = host_of_mpirun_5(settings.rank, variables);
    if (settings.host.empty()) {
      throw GraphError(fmt::format(
          "{} is {}, and {} is {}: the ranks are on several hosts, and {} does not say where rank 0 is; expected "
          "{} in the command line, with an address of rank 0's host{}",
          launcher.size, settings.size, local_size, here ? *here : "not set", name,
          set_to(SettingKey::Rendezvous, "HOST:PORT"), settings.rank == 0 ? ", which has " + own_addresses() : ""));
    }
    const std::string* job = variables.find("PMIX_NAMESPACE");
    if (!job) job = variables.find("OMPI_MCA_ess_base_jobid");
    if (!job) job = variables.find("OMPI_MCA_orte_hnp_uri");
    settings.port = port_of(job ? *job : std::to_string(getppid()));
  }
}

// Whether the process is one of this launcher's; throws if half of what that takes is set.
bool started_by(const Launcher& launcher, const Variables& variables) {
  if (launcher.step && !variables.find(launcher.step)) return false;  // of a job, and not of a step of it
  // srun sets those of the library that a site's MPI needs, without how many ranks are on a host.
  const bool in_step = variables.find("SLURM_STEP_ID") && !variables.find("MPI_LOCALNRANKS");
  if (in_step && std::string(launcher.rank) == "PMI_RANK") return false;
  const bool rank = variables.find(launcher.rank) != nullptr, size = variables.find(launcher.size) != nullptr;
  if (std::string(launcher.rank) == "PMIX_RANK" && !size) return false;  // PMIx itself has no such variable
  // WORLD_SIZE by itself is a name that scripts use as they like.
  const auto is_set = [&](const char* name) { return variables.find(name) != nullptr; };
  if (!rank && std::string(launcher.size) == "WORLD_SIZE") {
    constexpr const char* kOthers[] = {"LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"};
    const std::string* value = variables.find(launcher.size);
    if (!size || *value == "1" || std::none_of(std::begin(kOthers), std::end(kOthers), is_set)) return false;
  }
  if (rank == size) return rank;
  if (rank && std::string(launcher.name) == "srun") return true;  // SLURM_NTASKS is looked for
  throw GraphError(
      fmt::format("{} is set, and {} is not; expected both, as {} sets them, or neither; {} is for this process alone",
                  rank ? launcher.rank : launcher.size, rank ? launcher.size : launcher.rank, launcher.name,
                  set_to(SettingKey::WorldSize, "1")));
}

const Launcher* innermost_launcher(const Variables& variables) {
  for (const Launcher& launcher : kLaunchers) {
    if (started_by(launcher, variables)) return &launcher;
  }
  return nullptr;
}

WorldSettings from_launcher(const Launcher& launcher, const Variables& variables) {
  WorldSettings settings;
  std::string size_name = launcher.size;
  if (!variables.find(size_name)) size_name = "SLURM_NTASKS";
  settings.size = variables.number(size_name, 1, kMostRanks, fmt::format("a number from 1 to {}", kMostRanks));
  settings.rank = variables.number(launcher.rank, 0, kMostRanks, "a number from 0 on");
  check_rank(launcher.rank, settings.rank, size_name, settings.size);
  if (std::string(launcher.name) == "torchrun" && variables.find("LOCAL_RANK") && variables.find("LOCAL_WORLD_SIZE")) {
    const int here = variables.number("LOCAL_WORLD_SIZE", 1, settings.size,
                                      fmt::format("a number from 1 to {}, which WORLD_SIZE is", settings.size));
    variables.number("LOCAL_RANK", 0, here - 1, fmt::format("a number below {}, which LOCAL_WORLD_SIZE is", here));
  }
  settings.told_by =
      fmt::format("{} ({}={}, {}={})", launcher.name, launcher.rank, settings.rank, size_name, settings.size);
  return settings;
}

// MPI that did not start a process cannot find the others.
void check_started_by_mpi(const Variables& variables) {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"}) {
    if (variables.find(name)) return;
  }
  throw GraphError(set_to(SettingKey::Collectives, "mpi") +
                   ": MPI did not start this process, because none of OMPI_COMM_WORLD_SIZE, PMI_SIZE and PMIX_RANK is "
                   "set; expected mpirun, or 'srun --mpi=pmix'");
}

WorldSettings by_hand(const WorldOptions& options) {
  const std::string size = name_of(SettingKey::WorldSize), rank = name_of(SettingKey::Rank);
  if (!options.size) throw GraphError(fmt::format("{} is given, and {} is not; expected both", rank, size));
  WorldSettings settings;
  settings.size = *options.size;
  settings.told_by = set_to(SettingKey::WorldSize, std::to_string(settings.size));
  if (settings.size < 1 || settings.size > kMostRanks) {
    throw GraphError(fmt::format("{} is {}; expected a number from 1 to {}", size, settings.size, kMostRanks));
  }
  if (settings.size == 1 && !options.rank) return settings;
  if (!options.rank) {
    throw GraphError(fmt::format("{} is {}, and {} is not given; expected one from 0 to {}", size, settings.size, rank,
                                 settings.size - 1));
  }
  settings.rank = *options.rank;
  if (settings.rank < 0) throw GraphError(fmt::format("{} is {}; expected a number from 0 on", rank, settings.rank));
  check_rank(rank, settings.rank, size, settings.size);
  if (settings.size > 1 && options.rendezvous.empty()) {
    throw GraphError(fmt::format("{} and {} are given, and {} is not; expected {}, with the host of rank 0", rank, size,
                                 name_of(SettingKey::Rendezvous), set_to(SettingKey::Rendezvous, "HOST:PORT")));
  }
  return settings;
}

std::string secret_of(const Variables& variables, const std::string& file) {
  std::string secret, from = kSecretVariable;
  if (const std::string* value = variables.find(kSecretVariable)) secret = *value;
  if (!file.empty()) {
    const std::string given = set_to(SettingKey::SecretFile, file);
    std::error_code unknown;
    if (std::filesystem::is_directory(file, unknown)) {
      throw GraphError(given + ": found a folder, expected a file with a secret");
    }
    std::ifstream in(file, std::ios::binary);
    secret.assign(std::istreambuf_iterator<char>(in), {});
    if (!in) throw RunError(given + ": cannot be read");
    while (!secret.empty() && (secret.back() == '\n' || secret.back() == '\r')) secret.pop_back();
    if (secret.empty()) throw GraphError(given + ": is empty; expected a secret in it");
    from = given;
  }
  if (!secret.empty() && secret.find_first_not_of(" \t\r\n\v\f") == secret.npos) {
    throw GraphError(fmt::format("{}: found blanks alone; expected a secret", from));
  }
  if (secret.find('\0') != secret.npos) {
    throw GraphError(fmt::format("{}: found a byte of value 0; expected a secret of text", from));
  }
  if (secret.size() > kLongestSecret) {
    throw GraphError(fmt::format("{}: has {} bytes; expected at most {}", from, secret.size(), kLongestSecret));
  }
  return secret;
}

}  // namespace

std::vector<std::string> words_of_list(const std::string& list) {
  std::vector<std::string> words;
  std::istringstream in(list);
  for (std::string word; std::getline(in, word, ',');) words.push_back(word);
  return words;
}

bool is_loopback(const std::string& host) {
  const std::vector<std::string> words = words_of_list(host);
  return !words.empty() && std::all_of(words.begin(), words.end(), [](const std::string& word) {
    return word == "localhost" || word == "::1" || word.starts_with("127.");
  });
}

Collectives parse_collectives(std::string_view text) {
  const std::vector<std::string> names = {to_string(Collectives::Gloo), to_string(Collectives::Mpi)};
  if (text == names[0]) return Collectives::Gloo;
  if (text == names[1]) return Collectives::Mpi;
  throw GraphError(fmt::format("found '{}'; expected gloo or mpi{}", text, did_you_mean(text, names)));
}

std::string to_string(Collectives collectives) {
  return collectives == Collectives::Mpi ? "mpi" : "gloo";
}

namespace {

// The contact of mpirun, which Open MPI 5 gives a daemon on another host in its command line. The daemon is the parent
// of this process, or of one that has started it. "": no daemon has any.
std::string told_by_daemon() {
  constexpr int kMost = 16;  // processes between
  const auto content = [](pid_t process, const char* file) {
    std::ifstream in(fmt::format("/proc/{}/{}", process, file), std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  pid_t process = getppid();
  for (int i = 0; i < kMost && process > 1; ++i) {
    std::istringstream words(content(process, "cmdline"));
    for (std::string word; std::getline(words, word, '\0');) {
      if (word == kMpirunVariable) return std::getline(words, word, '\0') ? word : "";
    }
    const std::string status = content(process, "stat");  // "4711 (name) S 4710 …"
    const size_t name_end = status.rfind(") ");
    if (name_end == status.npos || status.size() < name_end + 4) return "";
    process = pid_t(std::atoi(status.c_str() + name_end + 4));
  }
  return "";
}

}  // namespace

Environment process_environment() {
  Environment environment;
  for (char** entry = environ; entry && *entry; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (equals != std::string::npos) environment[text.substr(0, equals)] = text.substr(equals + 1);
  }
  if (environment.contains("PRTE_LAUNCHED")) environment[kMpirunVariable] = told_by_daemon();
  return environment;
}

// The batch script's own process is the job's first process, and has SLURM_PROCID, but no step. Neither has a shell of
// salloc, unless the site starts it by a step of its own kind.
std::string alone_in_job(const Environment& environment, const WorldOptions& options) {
  constexpr const char* kShellOfSalloc = "4294967290";  // SLURM_STEP_ID of that kind
  const Variables variables(environment);
  if (options.rank || options.size) return "";
  const Launcher* const launcher = innermost_launcher(variables);
  const std::string* const step = variables.find("SLURM_STEP_ID");
  if (launcher && !(std::string(launcher->name) == "srun" && *step == kShellOfSalloc)) return "";
  int most = 1;
  std::vector<std::string> has;
  for (const auto& [name, what] : {std::pair{"SLURM_JOB_NUM_NODES", "host"}, {"SLURM_NTASKS", "task"}}) {
    const std::string* const text = variables.find(name);
    if (!text) continue;  // sbatch sets the number of tasks if it was asked for one
    const int number = read_number<int>(*text).value_or(1);
    most = std::max(most, number);
    has.push_back(fmt::format("{} {}{} ({})", number, what, number == 1 ? "" : "s", name));
  }
  const std::string* const job = variables.find("SLURM_JOB_ID");
  if (!job || most == 1) return "";
  return fmt::format(
      "SLURM's job {} has {}, and srun did not start this process, which works alone; 'srun --mpi=none' before the "
      "command starts all tasks, and {} says that one is meant",
      printable(*job), fmt::join(has, " and "), set_to(SettingKey::WorldSize, "1"));
}

std::string first_of_hosts(const std::string& list) {
  const size_t bracket = list.find('['), comma = list.find(',');
  if (comma < bracket || bracket == std::string::npos) return list.substr(0, comma);
  const size_t end = list.find_first_of(",-]", bracket), close = list.find(']', bracket);
  if (end == std::string::npos || close == std::string::npos || end == bracket + 1) {
    throw GraphError(fmt::format("SLURM_STEP_NODELIST is '{}'; expected a list such as node[01-04]", list));
  }
  const size_t after = list.find(',', close);
  const std::string rest = list.substr(close + 1, after == std::string::npos ? after : after - close - 1);
  return list.substr(0, bracket) + list.substr(bracket + 1, end - bracket - 1) + rest;
}

std::string host_name() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

WorldSettings detect_world(const Environment& environment, const WorldOptions& options) {
  const Variables variables(environment);
  WorldSettings settings;
  const Launcher* const launcher = options.rank || options.size ? nullptr : innermost_launcher(variables);
  if (launcher) settings = from_launcher(*launcher, variables);
  if (options.rank || options.size) settings = by_hand(options);
  if (settings.size == 1) return settings;
  if (!options.rendezvous.empty()) {
    put_place(settings, name_of(SettingKey::Rendezvous), options.rendezvous);
  } else {
    find_place(settings, *launcher, variables);
  }
  settings.patience = options.patience;
  settings.silence = options.silence;
  settings.collectives = options.collectives;
  if (settings.collectives == Collectives::Mpi) check_started_by_mpi(variables);
  put_host(settings, variables);
  settings.secret = secret_of(variables, options.secret_file);
  if (settings.secret.empty() && !is_loopback(settings.host)) {
    throw GraphError(
        fmt::format("rank 0 waits at {}:{}, which other hosts can reach, and {} is not set; expected a "
                    "secret there, or in {}, the same for all ranks",
                    settings.host, settings.port, kSecretVariable, name_of(SettingKey::SecretFile)));
  }
  return settings;
}

}  // namespace arbalest
