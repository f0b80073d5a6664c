// SPDX-License-Identifier: Apache-2.0
#pragma once
// Descriptions by `arbalest sources` of the kinds of data sets, next to the functions that open them.

#include <string>
#include <vector>

#include "io/sources/source.h"

namespace arbalest {

// An option that may follow '?' in a source, as in "folder:DIR?test=0.1".
struct SourceOption {
  std::string name;      // "test"
  std::string value;     // stands for what is given: "FRACTION"
  std::string meaning;   // one sentence without its full stop
  std::string fallback;  // what holds if the option is left out: "0.2"; "": `meaning` says it, or nothing does
};

struct SourceDoc {
  std::string path;  // stands for what is between ':' and '?': "DIR"; "": nothing is
  std::string text;  // what it holds: one line without a full stop
  std::string more;  // rules, in sentences
  std::vector<SourceOption> options;
  std::string example;  // a whole source
};

struct DescribedScheme {
  SourceScheme scheme = {};
  SourceDoc doc = {};
};

// A scheme whose options are the documented ones.
DescribedScheme described(SourceScheme scheme, SourceDoc doc);

}  // namespace arbalest
