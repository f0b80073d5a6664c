// SPDX-License-Identifier: Apache-2.0
#pragma once
// Names of classes, as people read them.

#include <cstdint>
#include <string>
#include <vector>

namespace arbalest {

// Throws GraphError if a class of the data, which `data` describes, has another name than the model's class of its
// number. Either may have no names, or fewer.
void refuse_other_classes(const std::vector<std::string>& of_model, const std::vector<std::string>& of_data,
                          const std::string& data);

// By class of the data: the model's class of its name, −1 if there is none.
std::vector<int64_t> classes_by_name(const std::vector<std::string>& of_model, const std::vector<std::string>& of_data);

class ClassNames {
 public:
  // Names for `classes` classes: the lines of the file at `path`, one each. If `path` is "", takes `known`; classes
  // beyond these are called by their numbers. Throws RunError if the file cannot be read, GraphError if it has another
  // number of lines.
  ClassNames(const std::string& path, const std::vector<std::string>& known, int64_t classes);

  const std::string& operator[](int64_t label) const { return names_[size_t(label)]; }
  const std::vector<std::string>& all() const { return names_; }
  size_t width() const;  // columns of the longest, at most 24

 private:
  std::vector<std::string> names_;
};

}  // namespace arbalest
