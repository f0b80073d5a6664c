// Precompiled for the libraries: headers of others that most of their files include. A file includes what it uses all the
// same: builds with -Db_pch=false, and the headers that are installed, have nothing else.

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
