// SPDX-License-Identifier: Apache-2.0
// Each misuse that a law tries is listed where a provider's author reads what the functions mean, in the law's text.
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <string>

#include <gtest/gtest.h>

namespace {

std::string header(const std::string& name) {
  std::ifstream file(std::string(TESSERA_TESTS_DIR) + "/../include/tessera/" + name);
  return {std::istreambuf_iterator<char>(file), {}};
}
/// The texts of the provider laws that say what a provider refuses.
std::set<std::string> refusals() {
  const std::string text = header("law/provider.hpp");
  const std::regex refusal("\"([^\"\\n]* refuses? [^\"\\n]*)\"");
  std::set<std::string> found;
  for (std::sregex_iterator at(text.begin(), text.end(), refusal), end; at != end; ++at)
    found.insert((*at)[1]);
  return found;
}

TEST(law_documents, list_each_misuse_that_is_tried) {
  const std::string concepts =
      std::regex_replace(header("provider/provider.hpp"), std::regex("\\n/// *"), " ");
  ASSERT_NE(concepts.find("What it must refuse"), std::string::npos);
  const std::set<std::string> tried = refusals();
  for (const std::string& rule : tried)
    EXPECT_NE(concepts.find('"' + rule + '"'), std::string::npos) << "not listed: " << rule;
  EXPECT_EQ(tried.size(), 26u);
}

}  // namespace
