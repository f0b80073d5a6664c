// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "executor/console/terminal.h"
#include "io/open/schemes.h"
#include "tools/start/describe.h"

namespace arbalest {
namespace {

constexpr size_t kTextColumns = 110;  // columns of a line

std::string usage(const DescribedScheme& source) {
  return fmt::format("{}:{}", source.scheme.name,
                     source.scheme.needs_path && source.doc.path.empty() ? "PATH" : source.doc.path);
}

std::string listed(const std::vector<DescribedScheme>& schemes) {
  size_t width = 0;
  for (const DescribedScheme& source : schemes) width = std::max(width, usage(source).size());
  std::string text;
  for (const DescribedScheme& source : schemes) {
    text += fmt::format("{:<{}}  {}\n", usage(source), width, source.doc.text);
  }
  return text +
         "'arbalest sources NAME' describes one with its options. A graph has it in Prefetch, source = \"folder:DIR\", "
         "and\na command changes that: --set prefetch.source=folder:DIR. 'arbalest data SOURCE' looks at what is "
         "there.\n";
}

std::string whole_scheme(const DescribedScheme& source) {
  std::string text = fmt::format("{}: {}\n", usage(source), source.doc.text);
  if (!source.doc.more.empty()) text += wrapped("  " + source.doc.more, kTextColumns, 2) + "\n";
  text += fmt::format("  splits   {}\n", fmt::join(source.scheme.splits, ", "));
  std::vector<SourceOption> options = source.doc.options;
  options.push_back({"limit", "N", "so many samples of each split, to try something out", ""});
  text += "  options, after '?' and with '&' between them\n";
  const auto written = [](const SourceOption& option) {
    return fmt::format("{}={}", option.name, option.value.empty() ? "VALUE" : option.value);
  };
  size_t width = 0;
  for (const SourceOption& option : options) width = std::max(width, columns_of(written(option)));
  for (const SourceOption& option : options) {
    const std::string key = written(option);
    const std::string otherwise = option.fallback.empty() ? "" : fmt::format("; otherwise {}", option.fallback);
    text += wrapped(fmt::format("    {}{}  {}{}", key, std::string(width - columns_of(key), ' '), option.meaning,
                                otherwise),
                    kTextColumns, width + 6) +
            "\n";
  }
  if (!source.doc.example.empty()) text += fmt::format("  as in    {}\n", source.doc.example);
  return text;
}

}  // namespace

std::string describe_sources(const std::string& name) {
  const std::vector<DescribedScheme> schemes = source_schemes();
  if (name.empty()) return listed(schemes);
  const std::string asked = name.substr(0, name.find(':'));
  std::vector<std::string> names;
  for (const DescribedScheme& source : schemes) {
    if (source.scheme.name == asked) return whole_scheme(source);
    names.push_back(source.scheme.name);
  }
  throw GraphError(
      fmt::format("unknown source '{}', expected {}{}", asked, fmt::join(names, ", "), did_you_mean(asked, names)));
}

}  // namespace arbalest
