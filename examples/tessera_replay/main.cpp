// SPDX-License-Identifier: Apache-2.0
// tessera-replay: runs recorded programs through allocators.

#include <charconv>
#include <cstdio>
#include <string>
#include <string_view>

#include "commands.hpp"

namespace {

constexpr const char* usage_text =
    "tessera-replay compare TRACE... [--conf TEXT] [--capacity BYTES] [--json]\n"
    "    what each recipe would have reserved, and how often it would have called the device\n"
    "tessera-replay decisions TRACE [--recipe NAME] [--conf TEXT] [--capacity BYTES]\n"
    "    every decision, a line each\n"
    "tessera-replay verify SNAPSHOT... [--json]\n"
    "    whether the pytorch recipe decides as the GPU did on which the snapshot was recorded\n"
    "tessera-replay fit TRACE [--recipe NAME] [--conf TEXT] [--json]\n"
    "    the least capacity with which the trace completes\n"
    "tessera-replay explain TEXT [--dialect pytorch|torch_npu|paddle]\n"
    "    what a configuration string means, key by key (* is not at its default), or where it is wrong\n"
    "\n"
    "TRACE     op,id,bytes,stream,t_us or id,lower,upper,size (CSV), or a PyTorch snapshot\n"
    "--recipe  pytorch (default), pytorch_expandable, cuda_async, torch_npu, torch_npu_expandable, paddle,\n"
    "          paddle_auto_growth, paddle_naive_best_fit, pinned, pinned_expandable, pinned_packed, "
    "stitched,\n"
    "          stitched_calmly, power_of_two, passthrough\n"
    "--conf    settings in the words of the recipe's system, as explain explains them\n"
    "--capacity  bytes of device memory; 80 GiB if not given\n";

int complain(const std::string& text) {
  std::fprintf(stderr, "tessera-replay: %s\n", text.c_str());
  return replay::wrong_input;
}

}  // namespace

int main(int count, char** words) {
  const std::string_view command = count > 1 ? words[1] : "";
  if (command == "--help" || command == "-h" || command == "help") {
    std::fputs(usage_text, stdout);
    return replay::done;
  }
  replay::arguments said;
  for (int i = 2; i < count; ++i) {
    const std::string_view word = words[i];
    if (word == "--json") {
      said.json = true;
    } else if (word == "--recipe" || word == "--conf" || word == "--dialect" || word == "--capacity") {
      if (++i == count) return complain(std::string(word) + ": a value is missing");
      const std::string_view value = words[i];
      if (word == "--recipe") said.recipe = value;
      if (word == "--dialect") said.dialect = value;
      if (word == "--conf") said.conf = value;
      if (word == "--capacity") {
        const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), said.capacity);
        if (error != std::errc{} || end != value.data() + value.size() || said.capacity == 0) {
          return complain("--capacity " + std::string(value) + ": must be a positive number of bytes");
        }
      }
    } else if (word.starts_with("-")) {
      return complain(std::string(word) + ": no such option; see tessera-replay --help");
    } else {
      said.files.emplace_back(word);
    }
  }
  const bool single = command == "decisions" || command == "fit" || command == "explain";
  if (!single && command != "compare" && command != "verify") {
    return complain((command.empty() ? "a command is missing" : std::string(command) + ": no such command") +
                    std::string("\n") + usage_text);
  }
  const std::string thing = command == "explain" ? "text" : "file";
  if (said.files.empty()) return complain(std::string(command) + ": a " + thing + " is missing");
  if (single && said.files.size() > 1) return complain(std::string(command) + ": takes one " + thing);
  if (command == "compare") return replay::compare(said);
  if (command == "decisions") return replay::decisions(said);
  if (command == "explain") return replay::explain(said);
  return command == "verify" ? replay::verify(said) : replay::fit(said);
}
