// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "base/files/file.h"
#include "graph/file/graph_file.h"
#include "graph/file/graph_source.h"
#include "graph/file/literals.h"
#include "graph/file/model_parameters.h"
#include "graph/file/onnx_file.h"

namespace arbalest {
namespace {

const std::vector<std::string> kKindNames = {"int", "float", "string", "ints", "floats", "strings"};
const std::vector<std::string> kHeaderKeys = {"ir_version", "opset_import",  "producer_name", "producer_version",
                                              "domain",     "model_version", "doc_string",    "metadata_props"};

// Recursive descent. Only the branches of If nest.
class Parser : private LiteralReader {
 public:
  Parser(std::string_view text, const std::string& file) : LiteralReader(text, file) { source_.file = file; }

  GraphSource parse() {
    if (token_.is("<")) parse_header();
    source_.name = parse_name("the graph's name").text;
    source_.inputs = parse_values("(", ")");
    expect("=>");
    source_.outputs = parse_values("(", ")");
    if (token_.is("<")) source_.values = parse_values("<", ">");
    source_.nodes = parse_nodes();
    note_producer(source_, producer_);
    while (token_.kind != Token::Kind::End) source_.functions.push_back(parse_function());
    take_nested_graphs_apart(source_);
    return std::move(source_);
  }

 private:
  static constexpr int kDeepest = 64;  // of branches

  Opsets parse_opsets() {
    Opsets opsets;
    expect("[");
    if (accept("]")) return opsets;
    do {
      std::string domain = parse_string("a domain");
      expect(":");
      opsets.emplace_back(std::move(domain), parse_integer("the domain's version"));
    } while (more("]"));
    return opsets;
  }

  void parse_metadata() {
    expect("[");
    if (accept("]")) return;
    do {
      const SourcePlace at = place(token_);
      std::string key = parse_string("a key");
      expect(":");
      source_.metadata.push_back({{std::move(key), at}, parse_string("a value")});
    } while (more("]"));
  }

  // <key: value, …>: what neither a graph nor a reader of the source has a place for is checked and dropped.
  void parse_header() {
    expect("<");
    do {
      const Token key = expect_kind(Token::Kind::Identifier, "a key of the model's header");
      const std::string name(key.text);
      if (std::find(kHeaderKeys.begin(), kHeaderKeys.end(), name) == kHeaderKeys.end()) {
        fail(key, fmt::format("unknown header key '{}', expected one of {}{}", name, fmt::join(kHeaderKeys, ", "),
                              did_you_mean(name, kHeaderKeys)));
      }
      expect(":");
      if (name == "opset_import") {
        source_.opsets_place = place(key);
        source_.opsets = parse_opsets();
      } else if (name == "metadata_props") {
        parse_metadata();
      } else if (name == "ir_version" || name == "model_version") {
        parse_integer("a whole number");
      } else {
        const std::string text = parse_string("text");
        if (name == "producer_name") producer_ = text;
      }
    } while (more(">"));
  }

  // A node's operands or results: names, any of which may be left out.
  std::vector<SourceName> parse_operands(std::string_view close) {
    std::vector<SourceName> names;
    if (token_.is(close)) return names;
    while (true) {
      const bool left_out = token_.is(",") || token_.is(close);
      names.push_back(left_out ? SourceName{"", place(token_)}
                               : parse_name(fmt::format("a value's name or '{}'", close)));
      if (!accept(",")) return names;
    }
  }

  std::vector<SourceNode> parse_nodes() {
    std::vector<SourceNode> nodes;
    expect("{");
    while (!accept("}")) nodes.push_back(parse_node());
    return nodes;
  }

  // [label] outputs = domain.Op <attributes> (inputs), or with the attributes last
  SourceNode parse_node() {
    SourceNode node;
    if (token_.kind == Token::Kind::End) unexpected("a node or '}'");
    if (accept("[")) {
      node.label = parse_name("the node's name");
      expect("]");
    }
    node.outputs = parse_operands("=");
    expect("=");
    Token part = expect_kind(Token::Kind::Identifier, "an operator");
    node.op.place = place(part);
    while (accept(".")) {
      node.domain += (node.domain.empty() ? "" : ".") + std::string(part.text);
      part = expect_kind(Token::Kind::Identifier, "an operator");
    }
    node.op.text = part.text;
    if (token_.is("<")) node.attributes = parse_attributes();
    if (!accept("(")) unexpected(node.attributes.empty() ? "'<' or '('" : "'('");
    node.inputs = parse_operands(")");
    if (!accept(")")) unexpected("',' or ')'");
    if (node.attributes.empty() && token_.is("<")) node.attributes = parse_attributes();
    return node;
  }

  std::vector<SourceAttribute> parse_attributes() {
    std::vector<SourceAttribute> attributes;
    expect("<");
    if (accept(">")) return attributes;
    do {
      attributes.push_back(parse_attribute(false));
    } while (more(">"));
    return attributes;
  }

  // name [: kind] = value; in a function's list the value may be missing.
  SourceAttribute parse_attribute(bool of_function) {
    SourceAttribute attribute;
    const Token name = expect_kind(Token::Kind::Identifier, "an attribute's name");
    attribute.name = {std::string(name.text), place(name)};
    if (accept(":")) {
      const Token kind = expect_kind(Token::Kind::Identifier, "an attribute's type");
      const auto found = std::find(kKindNames.begin(), kKindNames.end(), kind.text);
      if (found != kKindNames.end()) {
        attribute.kind = AttributeKind(found - kKindNames.begin());
      } else if (kind.text != "tensor" && kind.text != "graph") {
        fail(kind, fmt::format("unknown or unsupported attribute type {}, expected one of {}, tensor, graph{}",
                               describe(kind), fmt::join(kKindNames, ", "), did_you_mean(kind.text, kKindNames)));
      }
    }
    if (of_function && !token_.is("=")) return attribute;
    expect("=");
    const Token start = token_;
    parse_attribute_value(attribute);
    if (attribute.kind && attribute.value) {
      auto converted = convert(*attribute.value, *attribute.kind);
      if (!converted) {
        fail(start, fmt::format("attribute '{}' is {}, expected {}", attribute.name.text, to_string(*attribute.value),
                                name_of(*attribute.kind)));
      }
      attribute.value = std::move(*converted);
    }
    if (of_function && !attribute.value) {
      fail(start, fmt::format("found {}, expected a number, text in quotes or a list: a default", describe(start)));
    }
    return attribute;
  }

  void parse_attribute_value(SourceAttribute& attribute) {
    if (accept("@")) {
      attribute.reference = expect_kind(Token::Kind::Identifier, "the name of a function's attribute").text;
    } else if (accept("[")) {
      attribute.value = parse_list();
    } else if (token_.kind == Token::Kind::Identifier && lookahead().is("(")) {
      attribute.graph = parse_branch();
    } else if (token_.kind == Token::Kind::Identifier && !at_word()) {
      attribute.tensor = parse_tensor();
    } else {
      attribute.value = parse_scalar();
    }
  }

  // name (inputs) => (outputs) <types> { nodes }
  std::shared_ptr<const SourceFunction> parse_branch() {
    const Token start = token_;
    if (++depth_ > kDeepest) fail(start, fmt::format("branches are nested more than {} deep", kDeepest));
    auto branch = std::make_shared<SourceFunction>();
    branch->name = parse_name("the branch's name");
    branch->inputs = parse_values("(", ")");
    expect("=>");
    branch->outputs = parse_values("(", ")");
    if (token_.is("<")) branch->values = parse_values("<", ">");
    branch->nodes = parse_nodes();
    --depth_;
    return branch;
  }

  void parse_function_header(SourceFunction& function) {
    static const std::vector<std::string> keys = {"domain", "opset_import", "doc_string"};
    expect("<");
    do {
      const Token key = expect_kind(Token::Kind::Identifier, "a key of the function's header");
      expect(":");
      if (key.text == "domain") {
        function.domain = parse_string("the function's domain");
      } else if (key.text == "opset_import") {
        function.opsets = parse_opsets();
      } else if (key.text == "doc_string") {
        parse_string("text");
      } else {
        fail(key, fmt::format("unknown key {} of a function, expected one of {}{}", describe(key),
                              fmt::join(keys, ", "), did_you_mean(key.text, keys)));
      }
    } while (more(">"));
  }

  // <domain: "block", …> name <attributes> (inputs) => (outputs) <types> { nodes }
  SourceFunction parse_function() {
    SourceFunction function;
    if (token_.is("<")) parse_function_header(function);
    if (token_.kind != Token::Kind::Identifier && token_.kind != Token::Kind::String) {
      unexpected("a function or the end of the file");
    }
    function.name = parse_name("the function's name");
    if (accept("<") && !accept(">")) {
      do {
        function.attributes.push_back(parse_attribute(true));
      } while (more(">"));
    }
    function.inputs = parse_values("(", ")");
    expect("=>");
    function.outputs = parse_values("(", ")");
    if (token_.is("<")) function.values = parse_values("<", ">");
    function.nodes = parse_nodes();
    return function;
  }

  GraphSource source_;
  std::string producer_;
  int depth_ = 0;  // of the branches that are read
};

// "; did you mean 'examples/lenet.onnxtxt'?" or "": of the graph files in the folder of one that is not there. What
// follows a name's last dot says little: with it all names would be alike.
std::string suggested_file(const std::string& path) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::path(path).parent_path();
  std::set<fs::path> graphs;
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder.empty() ? "." : folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const fs::path file = entry->path().filename();
    std::error_code broken;  // a link that leads nowhere
    if ((file.extension() != ".onnxtxt" && file.extension() != ".onnx") || !entry->is_regular_file(broken)) continue;
    graphs.insert(file);
    names.push_back(file.stem().string());
  }
  std::sort(names.begin(), names.end());
  const std::string nearest = nearest_name(fs::path(path).stem().string(), names);
  for (const std::string& extension :
       {fs::path(path).extension().string(), std::string(".onnxtxt"), std::string(".onnx")}) {
    if (!graphs.contains(nearest + extension)) continue;
    return fmt::format("; did you mean '{}'?", (folder / (nearest + extension)).string());
  }
  return "";
}

GraphSource parse_text(std::string_view content, const std::string& file) {
  if (is_utf16(content)) throw GraphError(Position{file, 1, 1}, "found UTF-16, expected text in UTF-8");
  const std::string text = plain_text(content);
  return Parser(text, file).parse();
}

}  // namespace

Graph read_graph_text(std::string_view text, const std::string& file, const OpRegistry& registry, int64_t batch,
                      const ModelFiles& models) {
  return build_graph(parse_text(text, file), registry, batch, models);
}

std::string read_whole_file(const std::string& path) {
  std::error_code error;  // of a path that is not there the stream tells
  if (std::filesystem::is_character_file(path, error) || std::filesystem::is_block_file(path, error)) {
    throw GraphError(Position{path, 0, 0}, "found a device, expected a file");  // some have no end
  }
  constexpr uint64_t kMost = uint64_t{1} << 31;  // as a message of protobuf has; tensors may lie in files next to it
  if (const uint64_t size = std::filesystem::file_size(path, error); !error && size > kMost) {
    throw GraphError(Position{path, 0, 0}, fmt::format("found {} bytes, expected at most {}", size, kMost));
  }
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  if (file && file.peek() != std::ifstream::traits_type::eof()) content << file.rdbuf();
  if (!file.is_open() || file.bad() || content.fail()) {
    const int reason = errno;
    throw GraphError(Position{path, 0, 0}, fmt::format("cannot be read: {}{}", std::strerror(reason),
                                                       reason == ENOENT ? suggested_file(path) : ""));
  }
  return std::move(content).str();
}

GraphSource read_source(const std::string& path) {
  if (path.ends_with(".onnx")) return read_onnx_source(path);
  const std::string content = read_whole_file(path);
  if (path.ends_with(".onnxtxt") || path.ends_with(".txt")) return parse_text(content, path);
  // A binary model starts with the tag of a field (ir_version: byte 8); text does not contain such bytes.
  const std::string_view start = std::string_view(content).substr(0, 256);
  const bool binary = std::any_of(start.begin(), start.end(), [](char c) {
    return uint8_t(c) < 0x20 && c != '\n' && c != '\r' && c != '\t' && c != '\f' && c != '\v';
  });
  return binary ? read_onnx_source(path) : parse_text(content, path);
}

Graph load_graph(const std::string& path, const OpRegistry& registry, int64_t batch, const ModelFiles& models,
                 std::vector<std::string>* files) {
  return build_graph(read_source(path), registry, batch, models, files);
}

ModelFile parse_model_file(std::string_view text) {
  const size_t equals = text.find('=');
  const std::string_view name = text.substr(0, equals);
  const auto in_name = [](char c) { return c == '_' || std::isalnum(uint8_t(c)); };
  const bool named = equals != text.npos && !name.empty() && std::all_of(name.begin(), name.end(), in_name);
  ModelFile model{std::string(named ? name : ""), std::string(named ? text.substr(equals + 1) : text)};
  if (model.path.empty()) throw GraphError(fmt::format("found '{}', expected NAME=FILE or FILE", text));
  return model;
}

}  // namespace arbalest
