// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/core/bytes.hpp>
#include <tessera/core/error.hpp>

#include "../by_day.hpp"

/// Mistakes of callers, and the message of every allocator and adapter for each.
namespace mistakes {

using tessera::operator""_MiB;

/// An interface to any type that allocates and frees blocks, whatever its function names.
class stack {
 public:
  virtual ~stack() = default;
  /// A block; throws out_of_memory.
  virtual void* take(std::size_t bytes) = 0;
  virtual void give(void* p) = 0;
  /// Frees with the size, if supported.
  virtual bool give(void*, std::size_t) { return false; }
  /// Asks whether a block belongs to it, if supported.
  virtual std::optional<bool> try_give(void*) { return {}; }
  /// Records a stream for a block, if supported.
  virtual std::optional<bool> note(void*) { return {}; }
  virtual std::optional<bool> try_note(void*) { return {}; }
  virtual void trim() {}
  virtual const char* audit() { return nullptr; }
  /// Whether a request of 0 bytes returns an address, as C++ requires.
  virtual bool serves_nothing() const { return false; }
};

/// An allocator with the usual calls.
template <typename Pool>
class stack_of : public stack {
 public:
  template <typename... From>
  explicit stack_of(From&&... from) : pool(std::forward<From>(from)...) {}
  void* take(std::size_t bytes) override { return pool.allocate(bytes, tessera::stream_id{1}); }
  void give(void* p) override { pool.deallocate(p); }
  bool give(void* p, std::size_t bytes) override { return pool.deallocate(p, bytes), true; }
  std::optional<bool> try_give(void* p) override { return pool.try_deallocate(p); }
  std::optional<bool> note(void* p) override { return pool.record_stream(p, tessera::stream_id{2}); }
  std::optional<bool> try_note(void* p) override { return pool.try_record_stream(p, tessera::stream_id{2}); }
  void trim() override { pool.trim(); }
  const char* audit() override { return pool.audit(); }

  Pool pool;
};

struct row {
  const char* name;
  /// Two allocators of a kind never give the same address, because they are numbered.
  std::function<std::unique_ptr<stack>(unsigned number)> make;
  bool names_block = true;  ///< if the position of a bare address is known
};

inline void* moved(void* p, std::ptrdiff_t by) { return static_cast<std::byte*>(p) + by; }

/// An address of no live block. Freeing it is a mistake.
struct address {
  const char* what;
  const char* words;  ///< the block is named
  std::function<void*(stack& of, stack& another)> make;
};

inline constexpr std::size_t large = 5_MiB;
inline std::vector<address> no_live_blocks() {
  return {
      {"of another allocator", "in no segment of this allocator|nor of any other",
       [](stack&, stack& another) { return another.take(large); }},
      {"on the stack", "in no segment of this allocator|nor of any other",
       [](stack&, stack&) {
         static thread_local int there;
         return static_cast<void*>(&there);
       }},
      {"wild", "in no segment of this allocator|nor of any other",
       [](stack&, stack&) { return reinterpret_cast<void*>(std::uintptr_t{0xDEAD0000}); }},
      {"inside a block", "64 bytes into a live block of 52[0-9]+ bytes at 0x[0-9a-f]+, stream [01]",
       [](stack& of, stack&) { return moved(of.take(large), 64); }},
      {"not even aligned", "[0-9]+ bytes? into a live block of 52[0-9]+ bytes at 0x[0-9a-f]+, stream [01]",
       [](stack& of, stack&) { return moved(of.take(large), 1); }},
      {"freed", "into a free|of a freed block of 52[0-9]+ bytes|in no segment",
       [](stack& of, stack&) {
         void* const p = of.take(large);
         of.give(p);
         return p;
       }},
      {"freed and asked about since", "into a free|of a freed block|in no segment",
       [](stack& of, stack&) {
         void* const p = of.take(large);
         void* const q = of.take(large);
         of.give(p);
         of.give(q);
         (void)of.take(1_MiB);
         return p == q ? nullptr : q;
       }},
      {"freed and merged into its neighbour", "into a free|of a freed block|in no segment",
       [](stack& of, stack&) {
         void* blocks[3];
         for (void*& p : blocks) p = of.take(large);
         (void)of.take(large);  // so that the segment stays
         of.give(blocks[0]);
         of.give(blocks[2]);
         of.give(blocks[1]);
         return blocks[1];
       }},
      {"of a segment that went back", "in no segment|of a freed block|where nothing is mapped",
       [](stack& of, stack&) {
         void* const p = of.take(large);
         of.give(p);
         of.trim();
         return p;
       }},
  };
}

/// Makes each mistake on each stack.
inline void run(const std::vector<row>& stacks) {
  constexpr const char* rule = "(not the address of a live block|double free)";
  // By day, each stack meets one or two of the mistakes, and the next one others.
  std::size_t number = 0;
  for (const row& r : stacks) {
    std::size_t mistake = number++;
    for (const address& a : no_live_blocks()) {
      if (mistake++ % tessera::by_day(5, 1) != 0) continue;
      SCOPED_TRACE(std::string(r.name) + ": " + a.what);
      const std::unique_ptr<stack> of = r.make(0), another = r.make(1);
      void* const p = a.make(*of, *another);
      EXPECT_EQ(of->try_give(p).value_or(false), false);
      EXPECT_EQ(of->try_note(p).value_or(false), false);
      EXPECT_STREQ(of->audit(), nullptr);
      char pointer[40];
      std::snprintf(pointer, sizeof pointer, "pointer %p", p);
      const std::string words = r.names_block ? std::string("(") + a.words + ").*" : std::string();
      EXPECT_DEATH(of->give(p), std::string("tessera: .*") + rule + ".*" + words + pointer);
      // Recording a stream for it is a mistake, too. Null is ignored; the last address may be null.
      if (p != nullptr && of->note(nullptr).has_value()) {
        EXPECT_DEATH((void)of->note(p),
                     std::string("tessera: record_stream: ") + rule + ".*" + words + pointer);
      }
    }
    SCOPED_TRACE(r.name);
    const std::unique_ptr<stack> of = r.make(0);
    // With a size that differs from the request.
    void* const p = of->take(large);
    if (of->give(nullptr, large)) {
      const std::string words =
          r.names_block ? "live block of 5242880 bytes at 0x[0-9a-f]+, stream [01]" : "";
      EXPECT_DEATH((void)of->give(p, large - 1), "tessera: .*not the requested size.*" + words);
      EXPECT_DEATH((void)of->give(p, tessera::unlimited), "tessera: .*not the requested size");
      EXPECT_TRUE(of->give(p, large));
      EXPECT_TRUE(of->give(nullptr, 0));
      EXPECT_TRUE(of->give(nullptr, tessera::unlimited));
    } else {
      of->give(p);
    }
    of->give(nullptr);
    EXPECT_FALSE(of->try_give(nullptr).value_or(false));
    EXPECT_FALSE(of->note(nullptr).value_or(false));
    // With an impossible size, and with a too large one.
    void* const nothing = of->take(0);
    EXPECT_EQ(nothing != nullptr, of->serves_nothing());
    for (const std::size_t bytes : {tessera::max_request, tessera::max_request + 1, tessera::unlimited})
      EXPECT_THROW((void)of->take(bytes), std::bad_alloc) << bytes;
    EXPECT_STREQ(of->audit(), nullptr);
  }
}

}  // namespace mistakes
