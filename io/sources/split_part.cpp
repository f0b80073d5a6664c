// SPDX-License-Identifier: Apache-2.0
#include "io/sources/split_part.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/process.h"
#include "io/sources/data_order.h"
#include "io/sources/field_values.h"
#include "io/sources/sample_index.h"

namespace arbalest {
namespace {

std::vector<int64_t> groups_of(const Source& source) {
  const auto* grouped = dynamic_cast<const SampleGroups*>(&source);
  return grouped ? grouped->groups() : std::vector<int64_t>();
}

class SplitPart final : public Source, public SampleGroups {
 public:
  // `what`: which part it is, for descriptions.
  SplitPart(std::shared_ptr<const Source> source, std::vector<int64_t> indices, std::string what)
      : source_(std::move(source)), indices_(std::move(indices)), what_(std::move(what)) {}

  std::vector<Field> fields() const override { return source_->fields(); }
  int64_t size() const override { return int64_t(indices_.size()); }

  void fill(std::span<const SampleRef> samples, std::span<std::byte* const> fields) const override {
    std::vector<SampleRef> wanted(samples.begin(), samples.end());
    for (SampleRef& sample : wanted) sample.index = indices_[size_t(sample.index)];
    source_->fill(wanted, fields);
  }
  void read(int64_t index, size_t field, std::vector<std::byte>& bytes) const override {
    source_->read(indices_[size_t(index)], field, bytes);
  }
  std::vector<int64_t> groups() const override {
    const std::vector<int64_t> all = groups_of(*source_);
    std::vector<int64_t> here;
    for (const int64_t index : indices_) {
      if (!all.empty()) here.push_back(all[size_t(index)]);
    }
    return here;
  }
  int64_t whole_index(int64_t index) const { return index_in_split(*source_, indices_[size_t(index)]); }
  std::string locate(int64_t index) const override { return source_->locate(indices_[size_t(index)]); }
  std::string name(int64_t index) const override { return source_->name(indices_[size_t(index)]); }
  void check_files() const override {
    if (const auto* files = dynamic_cast<const FileChecks*>(source_.get())) {
      files->check_files(size(), [this](int64_t i) { return indices_[size_t(i)]; });
    } else {
      source_->check_files();
    }
  }
  PassedOver passed_over() const override { return source_->passed_over(); }
  std::vector<std::string> class_names() const override { return source_->class_names(); }
  int64_t block() const override { return source_->block(); }
  void will_read(std::span<const int64_t> blocks) const override {
    std::vector<int64_t> wanted;
    for (const int64_t block : blocks) {
      const int64_t first = block * source_->block(), end = std::min(first + source_->block(), size());
      for (int64_t i = first; i < end; ++i) wanted.push_back(indices_[size_t(i)] / source_->block());
    }
    wanted.erase(std::unique(wanted.begin(), wanted.end()), wanted.end());
    source_->will_read(wanted);
  }
  double microseconds_per_sample() const override { return source_->microseconds_per_sample(); }
  bool resident() const override { return source_->resident(); }
  uint32_t checksum() const override { return source_->checksum(); }
  std::string describe() const override { return fmt::format("{}; {}", source_->describe(), what_); }

 private:
  const std::shared_ptr<const Source> source_;
  const std::vector<int64_t> indices_;  // in the source, ascending
  const std::string what_;
};

// Samples by class or by what holds them together: those with the same number. All are one if there is no field.
std::map<int64_t, std::vector<int64_t>> samples_by(const Source& source, int field) {
  std::map<int64_t, std::vector<int64_t>> samples;
  int64_t sample = 0;
  if (field < 0) {
    for (; sample < source.size(); ++sample) samples[0].push_back(sample);
    return samples;
  }
  each_chunk(source, field, [&](std::span<const std::byte> chunk) {
    for (const double number : numbers(source.fields()[size_t(field)].dtype, chunk)) {
      samples[int64_t(number)].push_back(sample++);
    }
  });
  return samples;
}

int field_named(const Source& source, const std::string& name) {
  const std::vector<Field> fields = source.fields();
  std::vector<std::string> names;
  for (size_t f = 0; f < fields.size(); ++f) {
    const bool whole =
        fields[f].dtype == DataType::Int32 || fields[f].dtype == DataType::Int64 || fields[f].dtype == DataType::Uint8;
    const bool one = fields[f].dtype != DataType::String && fields[f].sample().elements() == 1;
    if (fields[f].name == name && whole && one) return int(f);
    if (whole && one) names.push_back(fields[f].name);
  }
  throw GraphError(fmt::format("{}: by={}: expected a field with a whole number for each sample, of which there {}",
                               source.describe(), name,
                               names.empty() ? "is none" : fmt::format("are {}", fmt::join(names, ", "))));
}

// The fold of each sample, from 0 on.
std::vector<int64_t> folds_of(const Source& source, const Fold& fold) {
  std::vector<int64_t> of(size_t(source.size()));
  const std::vector<int64_t> held_together = fold.by.empty() ? groups_of(source) : std::vector<int64_t>();
  if (fold.by.empty() && held_together.empty()) {
    int64_t next = 0;  // goes on from class to class, so that folds are equally large
    for (const auto& [label, samples] : samples_by(source, label_field(source.fields()))) {
      const DataOrder order(uint64_t(label), int64_t(samples.size()), true);
      for (int64_t i = 0; i < int64_t(samples.size()); ++i) {
        of[size_t(samples[size_t(order.sample(0, i))])] = next++ % fold.folds;
      }
    }
    return of;
  }
  // The largest group first, each into the fold that has the fewest samples.
  std::map<int64_t, std::vector<int64_t>> by_group;
  for (size_t sample = 0; sample < held_together.size(); ++sample) {
    by_group[held_together[sample]].push_back(int64_t(sample));
  }
  if (held_together.empty()) by_group = samples_by(source, field_named(source, fold.by));
  std::vector<std::vector<int64_t>> groups;
  for (auto& [value, samples] : by_group) groups.push_back(std::move(samples));
  std::stable_sort(groups.begin(), groups.end(),
                   [](const auto& one, const auto& two) { return one.size() > two.size(); });
  std::vector<size_t> sizes(size_t(fold.folds), 0);
  for (const std::vector<int64_t>& group : groups) {
    const auto least = std::min_element(sizes.begin(), sizes.end());
    *least += group.size();
    for (const int64_t sample : group) of[size_t(sample)] = least - sizes.begin();
  }
  return of;
}

// Warns of classes that lie in one fold alone, if samples are held together: the model that is judged by that fold has
// not seen them. Classes of one sample cannot be in two folds.
void warn_of_whole_classes(const Source& source, const Fold& fold, const std::vector<int64_t>& of) {
  const int label = label_field(source.fields());
  const bool held_together = !fold.by.empty() || !groups_of(source).empty();
  if (label < 0 || !held_together) return;
  size_t whole = 0, classes = 0;
  for (const auto& [number, samples] : samples_by(source, label)) {
    if (samples.size() < 2) continue;
    const auto in_first = [&](int64_t sample) { return of[size_t(sample)] == of[size_t(samples.front())]; };
    ++classes;
    whole += std::all_of(samples.begin(), samples.end(), in_first) ? 1 : 0;
  }
  if (whole == 0) return;
  warn(fmt::format(
      "{} folds by {}: all samples of {} of {} classes are held together in one fold, so that the model which "
      "is judged by them has seen none of them",
      fold.folds, fold.by.empty() ? "groups" : "'" + fold.by + "'", whole, classes));
}

}  // namespace

int64_t index_in_split(const Source& source, int64_t index) {
  const auto* part = dynamic_cast<const SplitPart*>(&source);
  return part ? part->whole_index(index) : index;
}

std::unique_ptr<Source> limited_source(std::unique_ptr<Source> source, int64_t limit) {
  if (limit >= source->size()) return source;
  std::vector<int64_t> indices(static_cast<size_t>(limit));
  DataOrder(0, source->size(), true, source->block()).range(0, 0, 0, indices);
  std::sort(indices.begin(), indices.end());
  const std::string what = fmt::format("limited to {} of these", limit);
  return std::make_unique<SplitPart>(std::move(source), std::move(indices), what);
}

std::unique_ptr<Source> fold_source(std::shared_ptr<const Source> source, const Fold& fold) {
  const std::vector<int64_t> of = folds_of(*source, fold);
  for (int64_t each = 0; each < fold.folds; ++each) {
    if (std::count(of.begin(), of.end(), each) > 0) continue;
    throw GraphError(fmt::format("{}: there are too few {} for {} folds", source->describe(),
                                 !fold.by.empty()             ? "values of '" + fold.by + "'"
                                 : groups_of(*source).empty() ? "samples"
                                                              : "groups",
                                 fold.folds));
  }
  if (!fold.held_out) warn_of_whole_classes(*source, fold, of);
  std::vector<int64_t> indices;
  for (int64_t sample = 0; sample < source->size(); ++sample) {
    if ((of[size_t(sample)] == fold.fold - 1) == fold.held_out) indices.push_back(sample);
  }
  const std::string what =
      fmt::format("{} of these: {} {} of {}{}", indices.size(), fold.held_out ? "fold" : "all but fold", fold.fold,
                  fold.folds, fold.by.empty() ? "" : " by " + fold.by);
  return std::make_unique<SplitPart>(std::move(source), std::move(indices), what);
}

}  // namespace arbalest
