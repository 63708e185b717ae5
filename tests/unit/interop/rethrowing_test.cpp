// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/per_stream.hpp>
#include <tessera/concurrent/waiting.hpp>
#include <tessera/interop/cccl.hpp>
#include <tessera/interop/ownership.hpp>
#include <tessera/interop/std_allocators.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

#include "cccl_stand_ins.hpp"
#include "host_pools.hpp"

namespace {

using namespace tessera;

/// Like rmm::out_of_memory: shares only the base std::bad_alloc with ours.
class their_out_of_memory : public std::bad_alloc {
 public:
  explicit their_out_of_memory(const std::string& of) : text_("theirs: " + of) {}
  [[nodiscard]] const char* what() const noexcept override { return text_.c_str(); }

 private:
  std::string text_;
};
struct their_errors {
  void operator()(const std::exception& error) const { throw their_out_of_memory(error.what()); }
};
struct errors_of_ours {
  void operator()(const std::exception&) const {}
};

template <typename Call>
std::string thrown_by(Call call) {
  try {
    call();
  } catch (const their_out_of_memory& error) {
    return error.what();
  } catch (const std::exception& error) {
    return std::string("not theirs: ") + error.what();
  }
  return "nothing";
}
constexpr const char* words = "theirs: tessera: out of memory";

template <typename Allocator>
void throws_theirs() {
  rethrowing<Allocator, their_errors> pool;
  EXPECT_EQ(thrown_by([&] { (void)pool.allocate(1024_GiB); }).rfind(words, 0), 0u);
  EXPECT_EQ(thrown_by([&] { (void)pool.allocate(max_request + 1); }).rfind(words, 0), 0u);
  EXPECT_EQ(pool.try_allocate(1024_GiB), nullptr);
  EXPECT_EQ(pool.allocate(0), nullptr);
  void* const p = pool.allocate(1_MiB, stream_id{1});
  EXPECT_TRUE(pool.record_stream(p, stream_id{2}));
  pool.deallocate(p, 1_MiB);
  EXPECT_EQ(pool.current_usage().allocated, 0u);
}
TEST(rethrowing, throws_the_exception_of_another_library) {
  throws_theirs<caching_allocator<pytorch<>, simulated_device>>();
  throws_theirs<locked<caching_allocator<pytorch<>, simulated_device>>>();
  throws_theirs<per_stream<caching_allocator<pytorch<>, simulated_device>>>();
}
TEST(rethrowing, throws_the_allocators_own_exception_by_default) {
  rethrowing<caching_allocator<pytorch<>, simulated_device>, errors_of_ours> pool;
  EXPECT_THROW((void)pool.allocate(1024_GiB), out_of_memory);
}

TEST(rethrowing, throws_so_through_every_shape) {
  using pool_type =
      rethrowing<locked<caching_allocator<shape_tests::packed_tightly, host_pinned>>, their_errors>;
  auto pool = shared_allocator<pool_type>::make(shape_tests::host_memory());
  cccl_resource<shared_allocator<pool_type>, cccl_stand_ins::device_accessible> resource(pool);
  static_assert(cccl_stand_ins::resource_with<decltype(resource), cccl_stand_ins::device_accessible>);
  for (const std::size_t alignment : {std::size_t{64}, std::size_t{4096}}) {
    EXPECT_EQ(thrown_by([&] { (void)resource.allocate(stream_id{}, 1024_GiB, alignment); }).rfind(words, 0),
              0u);
    EXPECT_EQ(thrown_by([&] { (void)resource.allocate_sync(1024_GiB, alignment); }).rfind(words, 0), 0u);
  }
  pmr_resource memory(pool);
  EXPECT_EQ(thrown_by([&] { std::pmr::vector<char> large(1024_GiB, &memory); }).rfind(words, 0), 0u);
  using chars = typed_allocator<char, shared_allocator<pool_type>>;
  EXPECT_EQ(thrown_by([&] { std::vector<char, chars> large(1024_GiB, chars(pool)); }).rfind(words, 0), 0u);
  EXPECT_EQ(pool.current_usage().allocated, 0u);
}

/// A device that fails to wait for streams.
struct broken_device : simulated_device {
  bool record(stream_id, event&) noexcept { return false; }
  bool synchronize(stream_id) noexcept { return false; }
};
TEST(rethrowing, throws_it_if_the_device_cannot_wait) {
  rethrowing<caching_allocator<pytorch<>, broken_device>, their_errors> pool;
  cccl_resource resource(pool);
  EXPECT_EQ(
      thrown_by([&] { (void)resource.allocate_sync(1000); }).rfind("theirs: tessera: allocate_sync:", 0), 0u);
  EXPECT_EQ(pool.current_usage().allocated, 0u);
}

}  // namespace
