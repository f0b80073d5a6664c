// SPDX-License-Identifier: Apache-2.0
#pragma once
// A world: the processes (ranks) that train together. Here is only what a process knows of it by itself, from the
// program that started it or from options; executor/world/ranks.h is the world that has met.

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

namespace arbalest {

using Environment = std::map<std::string, std::string>;
Environment process_environment();  // and what Open MPI 5's daemon knows of mpirun, as "prte_hnp_uri"

// The library by which arrays of CPU devices travel between ranks.
enum class Collectives : uint8_t { Gloo, Mpi };
Collectives parse_collectives(std::string_view text);  // "gloo", "mpi"; throws GraphError otherwise
std::string to_string(Collectives collectives);

// Options by hand. Any of the first two says that there is a world; all three are needed then.
struct WorldOptions {
  std::optional<int> rank = {}, size = {};
  std::string rendezvous = {};   // "HOST:PORT": where rank 0 waits for the others; "": as the launcher says
  std::string secret_file = {};  // holds what ranks prove to know; "": the variable kSecretVariable
  double patience = 25;          // seconds after which a rank that has not come is missing
  double silence = 15;           // seconds without a byte of a rank, after which it is lost
  Collectives collectives = Collectives::Gloo;
};

inline constexpr const char* kSecretVariable = "ARBALEST_SECRET";
inline constexpr const char* kHostVariable = "ARBALEST_HOST";
inline constexpr int kMostRanks = 65536;

std::string host_name();  // as the system has it

struct WorldSettings {
  int rank = 0, size = 1;
  std::string host;                    // where rank 0 waits
  int port = 0;                        // the same
  std::string told_by;                 // "srun (SLURM_PROCID, SLURM_NTASKS)", for messages
  std::string secret;                  // "": none
  std::string own_host = host_name();  // or as kHostVariable names it
  double patience = 25;
  double silence = 15;
  Collectives collectives = Collectives::Gloo;
  std::stop_token stop;                         // requested if this rank is asked to end while ranks meet
  std::function<std::string()> interrupted_by;  // the signal that asked, "SIGTERM"; empty: not known
  bool takes_back = false;                      // rank 0 lets ranks that were lost come back to its port
};

// The world that the options say or, without any, the innermost launcher's: torchrun, mpirun, srun. Size 1 if there is
// none. Throws GraphError, which names the variable or option, what was found and what was expected, if a launcher's
// variables are incomplete or contradict each other.
WorldSettings detect_world(const Environment& environment, const WorldOptions& options);

// Why a process without a launcher may have been meant to be one of several: it belongs to a job of SLURM with several
// hosts or tasks, and to no step of it. "": it does not, or options by hand say what is meant.
std::string alone_in_job(const Environment& environment, const WorldOptions& options);

// The first host of a list as SLURM writes it: "node07" of "node[07-09,12],other1". Throws GraphError.
std::string first_of_hosts(const std::string& list);
std::vector<std::string> words_of_list(const std::string& list);  // with commas between them
bool is_loopback(const std::string& host);                        // all words of the list are of this host alone

}  // namespace arbalest
