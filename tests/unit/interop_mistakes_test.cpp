// SPDX-License-Identifier: Apache-2.0
// Every adapter of interop/ reports a mistake of its caller with a message.
#include <cstddef>
#include <memory>
#include <optional>
#include <utility>

#include <gtest/gtest.h>

#include <tessera/concurrent/locked.hpp>
#include <tessera/interop/allocator_handle.hpp>
#include <tessera/interop/cccl.hpp>
#include <tessera/interop/ownership.hpp>
#include <tessera/interop/std_allocators.hpp>
#include <tessera/interop/torch_pluggable.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/tessera.hpp>

#include "mistakes.hpp"

namespace {

using namespace tessera;
using mistakes::large;
using mistakes::stack;

host_pinned host() { return host_pinned({.capacity = 128_MiB, .pin = host_pinned::pinning::never}); }
using pool_type = locked<caching_allocator<pinned_packed, host_pinned>>;

/// Allocates and frees through an adapter of interop/. Blocks have `large` bytes by default.
class shaped : public stack {
 public:
  std::optional<bool> try_give(void* p) override { return pool.try_deallocate(p); }
  std::optional<bool> note(void* p) override { return pool.record_stream(p, stream_id{}); }
  std::optional<bool> try_note(void* p) override { return pool.try_record_stream(p, stream_id{}); }
  void give(void* p) override { (void)give(p, large); }
  bool give(void* p, std::size_t bytes) override = 0;
  void trim() override { pool.trim(); }
  const char* audit() override { return pool.audit(); }

  pool_type pool{host()};
};

template <std::size_t Alignment>
class as_pmr : public shaped {
 public:
  void* take(std::size_t bytes) override { return memory_.allocate(bytes, Alignment); }
  /// A memory resource does not accept null.
  void give(void* p) override {
    if (p != nullptr) memory_.deallocate(p, large, Alignment);
  }
  bool give(void* p, std::size_t bytes) override {
    if (Alignment > 64) return false;  // another number of bytes may not be detected
    if (p != nullptr) memory_.deallocate(p, bytes, Alignment);
    return true;
  }
  bool serves_nothing() const override { return true; }

 private:
  pmr_resource<pool_type> memory_{pool};
};

class as_typed : public shaped {
 public:
  using shaped::give;
  void* take(std::size_t bytes) override { return memory_.allocate(bytes); }
  bool give(void* p, std::size_t bytes) override {
    return memory_.deallocate(static_cast<std::byte*>(p), bytes), true;
  }
  bool serves_nothing() const override { return true; }

 private:
  typed_allocator<std::byte, pool_type> memory_{pool};
};

template <typename Handle>
class as_unique : public shaped {
 public:
  using shaped::give;
  void* take(std::size_t bytes) override { return make_block(to_, bytes).release(); }
  bool give(void* p, std::size_t bytes) override {
    unique_block<Handle> owned(to_, p, bytes);
    EXPECT_EQ(owned.size(), p != nullptr ? bytes : 0);
    return owned.reset(), true;
  }
  std::optional<bool> note(void* p) override {
    unique_block<Handle> owned(to_, p, large);
    const bool noted = owned.record_stream(stream_id{});
    (void)owned.release();
    return noted;
  }

 private:
  std::conditional_t<std::is_same_v<Handle, pool_type>, pool_type&, Handle> to_{pool};
};

class as_deleter : public shaped {
 public:
  void* take(std::size_t bytes) override { return pool.allocate(bytes); }
  void give(void* p) override { unique_block<pool_type>::deleter{pool}(p); }
  bool give(void*, std::size_t) override { return false; }
};

template <std::size_t Alignment>
class as_stream_resource : public shaped {
 public:
  void* take(std::size_t bytes) override { return memory_.allocate(stream_id{}, bytes, Alignment); }
  void give(void* p) override { memory_.deallocate(stream_id{}, p, large, Alignment); }
  bool give(void* p, std::size_t bytes) override {
    if (Alignment > 64) return false;  // another number of bytes may not be detected
    return memory_.deallocate_sync(p, bytes, Alignment), true;
  }
  bool serves_nothing() const override { return true; }

 private:
  cccl_resource<pool_type> memory_{pool};
};

struct definition {
  static constexpr bool throws_out_of_memory = true;
  static host_pinned make_device(int) { return host(); }
  static auto make_allocator(auto device) {
    return locked<caching_allocator<pinned_packed, decltype(device)>>(std::move(device));
  }
};
class as_functions : public stack {
 public:
  void* take(std::size_t bytes) override { return functions_.alloc(bytes, 0, nullptr); }
  void give(void* p) override { functions_.free(p, large, 0, nullptr); }
  bool give(void* p, std::size_t bytes) override { return functions_.free(p, bytes, 0, nullptr), true; }
  void trim() override { functions_.reset(); }

 private:
  torch_pluggable<definition> functions_;
};

class as_shared : public mistakes::stack_of<shared_allocator<pool_type>> {
 public:
  as_shared() : stack_of(std::make_shared<pool_type>(host())) {}
};

template <typename Stack>
std::unique_ptr<stack> make(unsigned) {
  return std::make_unique<Stack>();
}

TEST(mistakes_death, are_named_by_shapes) {
  mistakes::run({{"pmr_resource", &make<as_pmr<64>>},
                 {"pmr_resource, aligned to 512", &make<as_pmr<512>>},
                 {"pmr_resource, aligned to 4096", &make<as_pmr<4096>>},
                 {"typed_allocator", &make<as_typed>},
                 {"unique_block", &make<as_unique<pool_type>>},
                 {"unique_block of an allocator_ref", &make<as_unique<detail::allocator_ref<pool_type>>>},
                 {"unique_block::deleter", &make<as_deleter>},
                 {"cccl_resource", &make<as_stream_resource<64>>},
                 {"cccl_resource, aligned to 256", &make<as_stream_resource<256>>},
                 {"pluggable", &make<as_functions>},
                 {"shared_allocator", &make<as_shared>}});
}

TEST(mistakes_death, are_named_by_functions_of_several_devices) {
  torch_pluggable<definition> functions;
  void* const p = functions.alloc(large, 0, nullptr);
  EXPECT_DEATH(functions.free(p, large, 1, nullptr),
               "free: the block is on another device, 0 instead of 1 .pointer 0x");
  EXPECT_DEATH(functions.free(p, large, -1, nullptr), "free: the block is on another device");
  functions.record_stream(&functions, nullptr);  // is not from here, as with PyTorch's own
  functions.free(p, large, 0, nullptr);
}

TEST(mistakes, of_alignments_throw) {
  pool_type pool(host());
  pmr_resource memory(pool);
  for (const std::size_t alignment : {std::size_t{0}, std::size_t{3}, std::size_t{96}})
    EXPECT_THROW((void)memory.allocate(10, alignment), std::bad_alloc);
}

}  // namespace
