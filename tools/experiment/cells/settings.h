// SPDX-License-Identifier: Apache-2.0
#pragma once
// The settings that a bench file may vary, and the words of a command line that they become.

#include <map>
#include <string>
#include <vector>

namespace arbalest {

using Settings = std::map<std::string, std::string>;  // by name

// The names without a dot. One with a dot is an attribute, NODE.ATTRIBUTE, or, as peer.NAME, a word for the commands of
// other programs.
const std::vector<std::string>& setting_names();

// The setting that an option, given with its dashes, or an attribute states, by a name of its own: "batch" of
// "prefetch.batch"; "": a bench file has none for it.
std::string setting_stated_by(const std::string& word);

// The words that state the settings, in the order of their names: "--learners", "2", "--set", "train.lr=0.1".
// `training`: for `arbalest run`, otherwise for `arbalest bench scaling`.
std::vector<std::string> words_of(const Settings& settings, bool training);

// The attribute that a setting means, NODE.ATTRIBUTE: "prefetch.batch" of "batch"; "": it means none.
std::string attribute_of(const std::string& setting);

// "" if a setting has no value.
std::string setting_of(const Settings& settings, const std::string& name);

// On how many hosts a cell runs; 1 if it does not say. Throws GraphError.
int hosts_in(const Settings& settings);

// Learners of all devices. Throws GraphError if their number is not stated: "auto".
int64_t learner_count(const Settings& settings);

// Images that all learners take in a step; 0 if the settings do not say. Throws GraphError.
int64_t images_per_step(const Settings& settings);

// How many devices a setting names: 3 of "cuda:0,2-3". Throws GraphError.
int device_count(const Settings& settings);

}  // namespace arbalest
