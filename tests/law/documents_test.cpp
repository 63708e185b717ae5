// SPDX-License-Identifier: Apache-2.0
// Each rule that a law checks is listed where a provider's author reads what the functions mean, in the law's text.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <string>

#include <gtest/gtest.h>

namespace {

const std::filesystem::path headers = std::string(TESSERA_TESTS_DIR) + "/../include/tessera";

std::string text_of(const std::filesystem::path& header) {
  std::ifstream file(header);
  return {std::istreambuf_iterator<char>(file), {}};
}
void add_matches(std::set<std::string>& found, const std::string& text, const char* pattern) {
  const std::regex rule(pattern);
  for (std::sregex_iterator at(text.begin(), text.end(), rule), end; at != end; ++at) found.insert((*at)[1]);
}

TEST(law_documents, list_each_rule_that_is_checked) {
  std::set<std::string> checked, listed;
  for (const auto& header : std::filesystem::directory_iterator(headers / "law"))
    add_matches(checked, text_of(header.path()), "\"([^\"\\n]+)\"_rule");
  for (const char* page : {"provider.hpp", "capabilities.hpp"})
    add_matches(listed, text_of(headers / "provider" / page), "\n///   \"([^\"\\n]+)\"");
  for (const std::string& rule : checked) EXPECT_TRUE(listed.contains(rule)) << "not listed: " << rule;
  for (const std::string& rule : listed) EXPECT_TRUE(checked.contains(rule)) << "not checked: " << rule;
  EXPECT_GT(checked.size(), 120u);
}

}  // namespace
