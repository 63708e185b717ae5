#include <tessera/tool/main.hpp>
using namespace tessera::literals;
template <std::size_t Kept>
struct keep_at_most : tessera::policy::evict_at_free<Kept> {
  using alternatives = tessera::tool::alternatives<keep_at_most<1_MiB>, keep_at_most<64_MiB>>;
};
using lean = tessera::recipe::with<tessera::recipe::pytorch<>, keep_at_most<8_MiB>>;
int main(int count, char** words) {
  return tessera::tool::run<tessera::tool::named<"lean", lean>>(count, words);
}
