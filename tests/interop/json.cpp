// needs: nlohmann/json.hpp
// flags: -O1
// SPDX-License-Identifier: Apache-2.0
// A document of nlohmann::json in the memory of an allocator that a function returns, with a pool for its nodes.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "nodes.hpp"

namespace {

using interop_tests::check;
using interop_tests::from_blocks;
using interop_tests::from_malloc;
using interop_tests::from_nodes;
using interop_tests::sample;

template <template <typename> class Allocator>
using document = nlohmann::basic_json<std::map, std::vector,
                                      std::basic_string<char, std::char_traits<char>, Allocator<char>>, bool,
                                      std::int64_t, std::uint64_t, double, Allocator>;

template <template <typename> class Allocator>
bool works() {
  using json = document<Allocator>;
  json read =
      json::parse(R"({"name": "a text that is too long for a string", "list": [1, 2.5, null, true]})");
  read["more"] = {{"a", 1}, {"b", {2, 3}}};
  json copy = read;
  json moved = std::move(read);
  copy["list"].push_back("another text that is too long for a string");
  return check(copy != moved, "a changed copy differs") &&
         check(copy["more"]["b"][1] == 3, "a document has its values") &&
         check(json::parse(copy.dump()) == copy, "a written document reads as it was");
}

/// A list of 100,000 objects: 400,000 nodes of maps, and 200,000 vectors and maps.
std::string places() {
  std::string text = "[";
  for (int i = 0; i < 100'000; ++i) {
    const std::string number = std::to_string(i);
    text += (i != 0 ? "," : "");
    text += R"({"id":)" + number + R"(,"name":"name )" + number + R"(","open":true,"place":[)" + number +
            ".5,2.5]}";
  }
  return text + "]";
}

/// Reads the list and writes it.
template <template <typename> class Allocator>
void read_and_write(sample& in, const std::string& text) {
  in.begin();
  document<Allocator> list;
  in.time(1, [&] { list = document<Allocator>::parse(text); });
  in.end(&interop_tests::blocks());
  const auto written = list.dump();
  in.add(written.data(), written.size());
}

}  // namespace

int main() {
  const std::string text = places();
  const auto run = [&text]<template <typename> class Allocator>(sample& in) {
    read_and_write<Allocator>(in, text);
  };
  return interop_tests::compare_nodes(
      "nlohmann::json", works<from_nodes>, works<from_blocks>,
      [&](sample& in) { run.template operator()<from_malloc>(in); },
      [&](sample& in) { run.template operator()<from_nodes>(in); },
      [&](sample& in) { run.template operator()<from_blocks>(in); });
}
