// SPDX-License-Identifier: Apache-2.0
// Each rule of providers has one text, is listed where a provider's author reads what the functions mean, and is
// checked.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace {

const std::filesystem::path headers = std::string(TESSERA_TESTS_DIR) + "/../include/tessera";

std::string text_of(const std::filesystem::path& header) {
  std::ifstream file(header);
  return {std::istreambuf_iterator<char>(file), {}};
}
/// The matches of a pattern, with its groups.
std::vector<std::smatch> matches_in(const std::string& text, const char* pattern) {
  const std::regex rule(pattern);
  return {std::sregex_iterator(text.begin(), text.end(), rule), {}};
}
/// The constants of rules that a text names.
std::set<std::string> named_in(const std::string& text) {
  std::set<std::string> names;
  for (const std::smatch& found : matches_in(text, "rules::(\\w+)")) names.insert(found[1]);
  return names;
}

struct law_documents : testing::Test {
  struct constant {
    std::string name, text;
  };
  law_documents() {
    const std::string table = text_of(headers / "provider/rules.hpp");
    for (const std::smatch& found : matches_in(table, "rule (\\w+)\\{\\s*\"([^\"\\n]+)\"\\};"))
      rules.push_back({found[1], found[2]});
    for (const char* page : {"provider/provider.hpp", "provider/capabilities.hpp"}) {
      const std::string text = text_of(headers / page);
      for (const std::smatch& found : matches_in(text, "\n///   \"([^\"\\n]+)\"(, by checked_provider)?")) {
        if (std::find(listed.begin(), listed.end(), found[1]) == listed.end()) listed.push_back(found[1]);
        if (found[2].matched) marked.insert(found[1]);
      }
    }
    for (const auto& header : std::filesystem::directory_iterator(headers / "law"))
      laws += text_of(header.path());
  }
  std::vector<constant> rules;
  std::vector<std::string> listed;  ///< the texts in the documents of the concepts
  std::set<std::string> marked;     ///< those that only checked_provider checks
  std::string laws, checked_provider = text_of(headers / "debug/checked_provider.hpp");
};

TEST_F(law_documents, list_each_rule_in_the_order_of_the_table) {
  std::vector<std::string> texts;
  for (const constant& rule : rules) texts.push_back(rule.text);
  EXPECT_EQ(texts, listed);
  EXPECT_GT(texts.size(), 120u);
}

TEST_F(law_documents, name_the_rules_that_only_checked_provider_checks) {
  const std::set<std::string> by_laws = named_in(laws), by_provider = named_in(checked_provider);
  for (const auto& [name, text] : rules) {
    EXPECT_NE(by_laws.contains(name), marked.contains(text)) << text;
    EXPECT_TRUE(by_laws.contains(name) || by_provider.contains(name)) << "not checked: " << text;
  }
  EXPECT_GT(by_provider.size(), 30u);
}

TEST_F(law_documents, have_one_text_for_each_rule) {
  for (const auto& [name, text] : rules) {
    const std::string literal = '"' + text + '"';
    EXPECT_EQ((laws + checked_provider).find(literal), std::string::npos) << "not by its constant: " << text;
  }
}

}  // namespace
