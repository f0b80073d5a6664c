// SPDX-License-Identifier: Apache-2.0

// Precompiled for the libraries: headers of others that most of their files include. A file still includes what it
// uses: builds with -Db_pch=false and users of the installed headers have nothing else.

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>
