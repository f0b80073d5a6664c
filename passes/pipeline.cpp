// SPDX-License-Identifier: Apache-2.0
#include "passes/pipeline.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <stdexcept>

#include "graph/constants.h"
#include "graph/verify/check_sound.h"
#include "passes/recompute.h"

namespace arbalest {
namespace {

using On = Pass::On;
constexpr bool kRequired = false, kOptional = true;

bool always(const ProgramOptions&) {
  return true;
}
bool fused_kernels(const ProgramOptions& options) {
  return options.fused_kernels;
}

// A pass that needs nothing but the loop's graph.
template <void (*rewrite)(Graph&)>
void on_graph(const Passage&, Loop& loop) {
  rewrite(loop.graph);
}

void update_or_weights(const Passage& in, Loop& loop) {
  const UpdateOptions update{.averaging = in.options.averaging,
                             .restarts = in.options.restarts,
                             .accumulate = in.program.accumulate,
                             .sums = in.options.sums,
                             .skips = in.options.skips};
  loop.arenas = in.options.trains ? add_update(loop.graph, in.notes.loss, in.program.train, update)
                                  : add_weight_arenas(loop.graph);
}

void share_arenas(const Passage& in, Loop& validation) {
  const Loop& training = in.program.training();
  const ValueId tally = validation.arenas.tally;
  validation.arenas = adopt_arenas(validation.graph, training.graph, training.arenas);
  validation.arenas.tally = tally;
}

void report(const Passage& in, Loop& loop) {
  in.notes.reported = {in.notes.loss};
  const ValueId accuracy = fuse_accuracy(loop.graph, in.notes.loss, in.notes.listed);
  if (accuracy != kNone) in.notes.reported.push_back(accuracy);
}

// A pass that leaves alone what others ask for: what is measured, reported, minimised and handed out.
template <void (*rewrite)(Graph&, const std::vector<ValueId>&)>
void but_for_asked(const Passage& in, Loop& loop) {
  std::vector<ValueId> asked = {in.notes.loss};
  for (const std::vector<ValueId>* more : {&in.notes.measured, &in.notes.reported, &loop.outputs}) {
    asked.insert(asked.end(), more->begin(), more->end());
  }
  rewrite(loop.graph, asked);
}

// clang-format off
const std::vector<Pass> kPasses = {
    {"expand_layers", On::Graph, kRequired, always,
     [](const Passage&, Loop& loop) { expand_layers(loop.graph); },
     "first: all others know operators only, with their parameters as inputs"},
    {"find_dropouts", On::Graph, kRequired, always, on_graph<find_dropouts>,
     "before loops part, since validation drops nothing; after expand_layers, which leaves fewer ways to draw"},
    {"fuse_logarithms", On::Graph, kOptional, always, on_graph<fuse_logarithms>,
     "after expand_layers, and before gradients, which are finite then"},
    {"fuse_norms", On::Graph, kOptional, always, on_graph<fuse_norms>,
     "after expand_layers, which leaves fewer ways to square and to take a root, and before gradients"},
    {"fuse_batch_norm", On::Graph, kOptional, always, on_graph<fuse_batch_norm>,
     "before gradients, and before fuse_concats, which leaves alone what adds something to a batch norm"},
    {"fuse_relu", On::Graph, kOptional, always, on_graph<fuse_relu>,
     "before gradients: that of the fused operator masks what flows back and sums it for the bias at once"},
    {"fuse_samples", On::Graph, kOptional, always, on_graph<fuse_samples>,
     "before place_layouts, which brings rows that images are reshaped to into another order"},
    {"fuse_shuffles", On::Graph, kOptional, always, on_graph<fuse_shuffles>,
     "before place_layouts, which would bring images into another order for each of them"},
    {"fuse_attention", On::Graph, kOptional, fused_kernels,
     [](const Passage& in, Loop& loop) { fuse_attention(loop.graph, in.options.bf16); },
     "before place_layouts and fold_constants: it looks for transpositions and constants as exporters write them"},
    {"merge_pixels_late", On::Graph, kOptional, always, on_graph<merge_pixels_late>,
     "after fuse_norms, which finds norms of groups, and before place_layouts, which lays out images"},
    {"freeze", On::Graph, kRequired, always,
     [](const Passage& in, Loop& loop) { freeze(loop.graph, in.program.train); },
     "before fuse_concats and loops part: for all of them it is settled what is frozen, and which batch norms train"},
    {"place_layouts", On::Graph, kRequired, always, on_graph<place_layouts>,
     "before loops part, so that they have parameters in the same layout, and before gradients, which follow it"},
    {"fuse_concats", On::Graph, kOptional, always, on_graph<fuse_concats>,
     "after freeze, since a batch norm in training reads statistics of parts, too, and before loops part"},
    {"cut_validation", On::Program, kRequired, always,
     [](const Passage& in, Loop&) { cut_validation(in.program, in.options, in.notes); },
     "before constants are folded, since validation's batch may be another, and before gradients"},
    {"fold_constants", On::Loops, kRequired, always,
     [](const Passage&, Loop& loop) { settle_choices(loop.graph); fold_constants(loop.graph); },
     "before gradients and kernels, which read attributes where a graph may have constant operands"},
    {"fuse_accuracy", On::Training, kRequired, always, report,
     "before gradients; training reports the accuracy where it costs nothing"},
    {"simplify_moves", On::Loops, kOptional, always, but_for_asked<simplify_moves>,
     "after fold_constants, by which indices and extents are known, and before gradients, which are as simple then"},
    {"fuse_transposes", On::Loops, kOptional, always, but_for_asked<fuse_transposes>,
     "after simplify_moves, whose transpositions all move something, and before gradients, which have none then"},
    {"fuse_rearrangements", On::Loops, kOptional, always, but_for_asked<fuse_rearrangements>,
     "after fuse_transposes, which takes transpositions into products, and before gradients, which have fewer then"},
    {"fuse_biases", On::Loops, kOptional, always, but_for_asked<fuse_biases>,
     "after fuse_transposes, which leaves products that read weights as they lie, and before gradients"},
    {"add_update", On::Training, kRequired, always, update_or_weights,
     "after all that changes the forward pass"},
    {"add_recalibration", On::Program, kRequired, always,
     [](const Passage& in, Loop&) { add_recalibration(in.program, in.options, in.notes); },
     "right after add_update: it takes training's forward pass, with its arenas and without what follows"},
    {"keep_statistics", On::Training, kRequired, [](const ProgramOptions& options) { return options.skips; },
     [](const Passage&, Loop& loop) { keep_statistics(loop.graph, loop.arenas); },
     "after add_update, which makes the arena of statistics and the factor"},
    {"add_tallies", On::Loops, kRequired, always,
     [](const Passage& in, Loop& loop) { add_tallies(loop, in.options, in.notes); },
     "after add_update, whose factor says which batches count; before types are lowered, which metrics read"},
    {"adopt_arenas", On::Validation, kRequired, always, share_arenas,
     "after add_update: weights lie as in training"},
    {"fuse_gradient_sums", On::Training, kOptional, always, on_graph<fuse_gradient_sums>,
     "after add_update, which adds gradients up"},
    {"fuse_weight_gradients", On::Training, kOptional, always, on_graph<fuse_weight_gradients>,
     "after add_update, which adds gradients up, and before fuse_moves, which takes in what rows are copied from"},
    {"keep_maxima", On::Training, kOptional, always, on_graph<keep_maxima>,
     "after add_update, which makes the gradients of pools, and before casts come between these and Relu's"},
    {"fuse_moves", On::Loops, kOptional, always, but_for_asked<fuse_moves>,
     "after add_update, which adds gradients of slices up, and after add_tallies, which reads what is measured"},
    {"take_inputs", On::Loops, kRequired, always, [](const Passage&, Loop& loop) { take_inputs(loop); },
     "after all that reads Prefetch's attributes, and before lower_precision, which takes inputs as they are"},
    {"lower_precision", On::Loops, kRequired, [](const ProgramOptions& options) { return options.bf16; },
     [](const Passage&, Loop& loop) { lower_precision(loop.graph, loop.arenas); },
     "after the gradients, so that casts have none, and after the arenas, of which it makes lowered ones"},
    {"open_group_norms", On::Loops, kRequired, always,
     [](const Passage& in, Loop& loop) { open_group_norms(loop.graph, in.options.generated_kernels); },
     "after lower_precision: what they are made of stays float; and before all that looks for elementwise operators"},
    {"fuse_statistics", On::Training, kOptional, fused_kernels,
     [](const Passage& in, Loop& loop) { fuse_statistics(loop.graph, in.options.device, in.options.learners); },
     "after lower_precision: convolutions and batch norms meet without a cast between them"},
    {"fuse_batch_norm_pairs", On::Training, kOptional, fused_kernels, on_graph<fuse_batch_norm_pairs>,
     "after fuse_statistics, whose partial statistics and sums it takes over"},
    {"fuse_residuals", On::Loops, kOptional, fused_kernels, on_graph<fuse_residuals>,
     "after lower_precision, whose casts would lie between, and before fuse_regions, which joins sums left over"},
    {"open_batch_norms", On::Training, kOptional,
     [](const ProgramOptions& options) { return options.generated_kernels; }, on_graph<open_batch_norms>,
     "after all that looks for batch norms, and before fuse_regions, which joins what they are made of"},
    {"split_whole_sums", On::Training, kOptional,
     [](const ProgramOptions& options) { return options.generated_kernels; }, on_graph<split_whole_sums>,
     "after lower_precision, whose casts would lie between, and before fuse_regions, which joins sums over rows"},
    {"read_kept_signs", On::Training, kOptional,
     [](const ProgramOptions& options) { return options.generated_kernels; }, on_graph<read_kept_signs>,
     "after lower_precision, whose casts gradients read, and before fuse_regions"},
    {"compute_parts", On::Training, kOptional,
     [](const ProgramOptions& options) { return options.generated_kernels; }, on_graph<compute_parts>,
     "after all that looks for elementwise operators, and before fuse_regions, which joins them"},
    {"fuse_regions", On::Loops, kOptional, [](const ProgramOptions& options) { return options.generated_kernels; },
     [](const Passage& passage, Loop& loop) { fuse_regions(loop.graph, passage.options.aside); },
     "after all that looks for single elementwise operators, and after lower_precision, whose casts it takes in"},
    {"fuse_region_moves", On::Loops, kOptional, [](const ProgramOptions& options) { return options.generated_kernels; },
     on_graph<fuse_region_moves>, "after fuse_regions, whose regions it changes, and all that looks for slices"},
    {"advance_weights", On::Training, kOptional, [](const ProgramOptions& options) { return options.aside; },
     on_graph<advance_weights>, "after all that moves nodes"},
    {"delay_gradients", On::Training, kOptional, [](const ProgramOptions& options) { return options.alone; },
     [](const Passage&, Loop& loop) { delay_gradients(loop.graph, loop.arenas); },
     "after all that moves nodes or changes the bytes of their values"},
    {"remove_dead", On::Loops, kRequired, always, [](const Passage&, Loop& loop) { keep_needed(loop); },
     "last of make_program(): the passes before it leave behind what they made needless"},
    {"recompute", On::Plan, kRequired, always,
     [](const Passage& in, Loop& loop) { recompute(loop.graph, in.options.again); },
     "after everything: what pays to compute again is found by planning the program"},
};
// clang-format on

bool runs_on(On on, LoopRole role) {
  return on == On::Loops || role == (on == On::Validation ? LoopRole::Validate : LoopRole::Train);
}

// Operators that take one layout find their operands in it, from place_layouts on.
void check_layouts(const Graph& graph) {
  for (const Node& node : graph.nodes) {
    for (const ValueId input : node.inputs) {
      if (!node.op->layout || input == kNone || graph.values[input].type.lies_as(*node.op->layout)) continue;
      fail(node, fmt::format("input '{}' is {}, expected {}", graph.values[input].name,
                             name_of(graph.values[input].type.layout), name_of(*node.op->layout)));
    }
  }
}

void check_after(const Pass& pass, const Program& program) {
  const auto placing =
      std::find_if(kPasses.begin(), kPasses.end(), [](const Pass& each) { return each.name == "place_layouts"; });
  const bool placed = &pass >= &*placing;
  for (const Loop& loop : program.loops) {
    try {
      check_sound(loop.graph);
      if (placed) check_layouts(loop.graph);
    } catch (const GraphError& error) {
      throw std::logic_error(
          fmt::format("the pass {} left graph '{}' unsound: {}", pass.name, loop.graph.name, error.what()));
    }
  }
}

}  // namespace

const std::vector<Pass>& passes() {
  return kPasses;
}

void run_pass(const Pass& pass, const Passage& passage) {
  if (!pass.applies(passage.options) || passage.options.without.contains(std::string(pass.name))) return;
  std::vector<Loop>& loops = passage.program.loops;
  for (size_t l = 0, count = loops.size(); l < count; ++l) {  // the pass may add one
    if (runs_on(pass.on, loops[l].role)) pass.run(passage, loops[l]);
  }
  if (passage.options.check) check_after(pass, passage.program);
}

void run_pass(std::string_view name, Program& program, const ProgramOptions& options) {
  const auto found = std::find_if(kPasses.begin(), kPasses.end(), [&](const Pass& pass) { return pass.name == name; });
  if (found == kPasses.end()) throw std::logic_error(fmt::format("there is no pass {}", name));
  ProgramNotes notes;
  run_pass(*found, {program, options, notes});
}

std::vector<std::string> pass_names(bool optional_only) {
  std::vector<std::string> names;
  for (const Pass& pass : kPasses) {
    if (pass.optional || !optional_only) names.emplace_back(pass.name);
  }
  return names;
}

void check_optional(std::string_view name) {
  const std::vector<std::string> all = pass_names(), optional = pass_names(true);
  if (std::find(optional.begin(), optional.end(), name) != optional.end()) return;
  const bool known = std::find(all.begin(), all.end(), name) != all.end();
  throw GraphError(
      fmt::format("{}; those that may be left out are {}{}",
                  known ? fmt::format("the pass '{}' is needed", name) : fmt::format("there is no pass '{}'", name),
                  fmt::join(optional, ", "), known ? "" : did_you_mean(name, optional)));
}

}  // namespace arbalest
