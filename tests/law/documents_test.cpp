// SPDX-License-Identifier: Apache-2.0
// The comments of the provider concepts list each misuse that a law tries, with the text of the law.
#include <array>
#include <cstddef>
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
/// The rules of a law that name what a device refuses.
std::set<std::string> refusals(const std::string& law) {
  const std::string text = header("law/" + law);
  const std::regex sentence("\"([^\"\\n]+)\""),
      refuses("refuse|once$|only when|no more is mapped|alone|multiple of|not |begins");
  // A rule that begins with these words states what a device does, not what it refuses.
  const std::regex does(
      "^(segments|a range begins|a ready|the page size|a refused|granularity|unregister ends|what was|each "
      "|discarding|pages of a kind)");
  std::set<std::string> found;
  for (std::sregex_iterator at(text.begin(), text.end(), sentence), end; at != end; ++at) {
    const std::string words = (*at)[1];
    if (std::regex_search(words, refuses) && !std::regex_search(words, does)) found.insert(words);
  }
  return found;
}

TEST(law_documents, list_each_misuse_that_is_tried) {
  const std::string concepts =
      std::regex_replace(header("provider/provider.hpp"), std::regex("\\n/// *"), " ");
  ASSERT_NE(concepts.find("What it must refuse"), std::string::npos);
  std::size_t listed = 0;
  for (const char* law : {"provider.hpp", "virtual_memory.hpp"}) {
    for (const std::string& words : refusals(law)) {
      EXPECT_NE(concepts.find(words), std::string::npos) << law << " tries what is not listed: " << words;
      ++listed;
    }
  }
  EXPECT_GE(listed, 24u);
}

}  // namespace
