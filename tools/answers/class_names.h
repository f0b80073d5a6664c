#pragma once
// What classes are called where people read them.

#include <cstdint>
#include <string>
#include <vector>

namespace arbalest {

class ClassNames {
 public:
  // Of so many classes, one a line of the file. "" for none: `known` are taken, and classes beyond these are their
  // numbers. Throws RunError where the file cannot be read, GraphError where it has another number of lines.
  ClassNames(const std::string& path, const std::vector<std::string>& known, int64_t classes);

  const std::string& operator[](int64_t label) const { return names_[size_t(label)]; }
  const std::vector<std::string>& all() const { return names_; }
  size_t width() const;  // columns of the longest, at most 24

 private:
  std::vector<std::string> names_;
};

}  // namespace arbalest
