// SPDX-License-Identifier: Apache-2.0
#pragma once
// Shared parts of commands that write a page.

#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace arbalest {

// A file's name in a page: without folders and these endings, each taken off once, in this order.
std::string name_without(const std::string& path, std::initializer_list<std::string_view> endings);

// Distinct names for files on one page: `name_of` the path, or the path itself if another file has that name.
std::vector<std::string> names_apart(const std::vector<std::string>& paths,
                                     const std::function<std::string(const std::string&)>& name_of);

// Writes the page as a whole and says so on standard output. Throws RunError.
void write_page(const std::string& file, const std::string& page);

}  // namespace arbalest
