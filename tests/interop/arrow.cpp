// needs: arrow/api.h
// links: arrow
// flags: -O1
// SPDX-License-Identifier: Apache-2.0
// Arrow builds, combines, writes and reads tables in a pool of tessera, whose counters are those of Arrow's own pools.
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <arrow/api.h>
#include <arrow/io/memory.h>
#include <arrow/ipc/api.h>

#include <tessera/interop/arrow.hpp>

#include "beside.hpp"

namespace {

using interop_tests::check;
using interop_tests::pool_type;
using interop_tests::sample;
using adaptor = tessera::interop::arrow_pool<arrow::MemoryPool, pool_type>;

void need(const arrow::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.ToString());
}
template <typename T>
T need(arrow::Result<T> result) {
  need(result.status());
  return std::move(result).ValueUnsafe();
}

/// What a pool says of itself.
struct counts {
  std::int64_t live, peak, total, calls;
  explicit counts(const arrow::MemoryPool& pool)
      : live(pool.bytes_allocated()),
        peak(pool.max_memory()),
        total(pool.total_bytes_allocated()),
        calls(pool.num_allocations()) {}
  bool operator==(const counts&) const = default;
};

/// Allocates, moves and frees, and notes the counters after each call.
std::vector<counts> make_calls(arrow::MemoryPool& pool) {
  std::vector<counts> after;
  std::uint8_t *a = nullptr, *b = nullptr, *none = nullptr;
  const auto note = [&] { after.emplace_back(pool); };
  need(pool.Allocate(100, &a)), note();
  need(pool.Allocate(27, &b)), note();
  for (int i = 0; i < 100; ++i) a[i] = static_cast<std::uint8_t>(i);
  pool.Free(b, 27), note();
  need(pool.Reallocate(100, 5000, &a)), note();
  for (int i = 0; i < 100; ++i)
    if (a[i] != i) throw std::runtime_error("a larger allocation keeps its contents");
  need(pool.Reallocate(5000, 10, &a)), note();
  if (a[9] != 9) throw std::runtime_error("a smaller allocation keeps its contents");
  need(pool.Reallocate(10, 0, &a)), note();
  need(pool.Reallocate(0, 64, &a)), note();
  pool.Free(a, 64), note();
  need(pool.Allocate(0, &none)), note();
  pool.Free(none, 0), note();
  return after;
}
bool aligns(arrow::MemoryPool& pool) {
  for (const std::int64_t to : {64, 128, 512, 4096}) {
    std::vector<std::uint8_t*> held(20);
    bool is_aligned = true;
    for (std::uint8_t*& p : held) {
      need(pool.Allocate(10, to, &p));
      is_aligned = is_aligned && reinterpret_cast<std::uintptr_t>(p) % static_cast<std::uintptr_t>(to) == 0;
      need(pool.Reallocate(10, 300, to, &p));
      is_aligned = is_aligned && reinterpret_cast<std::uintptr_t>(p) % static_cast<std::uintptr_t>(to) == 0;
    }
    for (std::uint8_t* const p : held) pool.Free(p, 300, to);
    if (!is_aligned) return false;
  }
  return true;
}
/// Returns whether impossible sizes give Status::OutOfMemory and change nothing.
bool refuses(arrow::MemoryPool& pool) {
  std::uint8_t* p = nullptr;
  need(pool.Allocate(100, &p));
  std::uint8_t *const kept = p, *never = nullptr;
  bool is_right = true;
  for (const std::int64_t bytes : {std::numeric_limits<std::int64_t>::max(),
                                   std::numeric_limits<std::int64_t>::max() - 127, std::int64_t{1} << 48}) {
    is_right = is_right && pool.Allocate(bytes, &never).IsOutOfMemory() &&
               pool.Reallocate(100, bytes, &p).IsOutOfMemory();
  }
  is_right = is_right && p == kept && pool.bytes_allocated() == 100 && pool.Allocate(-1, &never).IsInvalid();
  pool.Free(p, 100);
  return is_right;
}
bool obeys_the_rules(pool_type& memory) {
  adaptor ours(memory);
  const auto theirs = arrow::MemoryPool::CreateDefault();
  bool is_right =
      check(make_calls(ours) == make_calls(*theirs), "the counters are those of Arrow's own pool");
  is_right = check(aligns(ours), "addresses are aligned") && is_right;
  is_right = check(refuses(ours), "impossible sizes give Status::OutOfMemory") && is_right;
  ours.ReleaseUnused();
  return check(memory.current_usage().reserved == 0, "ReleaseUnused releases everything") && is_right;
}

/// A table of numbers, words and lists, some of them null.
std::shared_ptr<arrow::Table> build(std::int64_t rows, std::int64_t first, arrow::MemoryPool* pool) {
  arrow::Int64Builder numbers(pool);
  arrow::StringBuilder words(pool);
  auto values = std::make_shared<arrow::DoubleBuilder>(pool);
  arrow::ListBuilder lists(pool, values);
  for (std::int64_t i = first; i < first + rows; ++i) {
    need(i % 7 == 0 ? numbers.AppendNull() : numbers.Append(i * i));
    need(words.Append(std::string(static_cast<std::size_t>(i % 40), static_cast<char>('a' + i % 26))));
    need(lists.Append());
    for (std::int64_t k = 0; k < i % 5; ++k)
      need(values->Append(static_cast<double>(i) / static_cast<double>(k + 1)));
  }
  const auto schema =
      arrow::schema({arrow::field("number", arrow::int64()), arrow::field("word", arrow::utf8()),
                     arrow::field("list", arrow::list(arrow::float64()))});
  return arrow::Table::Make(schema, {need(numbers.Finish()), need(words.Finish()), need(lists.Finish())});
}
/// Builds a table in parts, joins them, and sends the table through Arrow's file format.
void make_tables(sample& in, arrow::MemoryPool* pool) {
  std::vector<std::shared_ptr<arrow::Table>> parts;
  for (std::int64_t i = 0; i < 8; ++i) parts.push_back(build(40'000, i * 40'000, pool));
  const auto joined = need(need(arrow::ConcatenateTables(parts))->CombineChunks(pool));
  parts.clear();
  const auto out = need(arrow::io::BufferOutputStream::Create(1 << 16, pool));
  auto options = arrow::ipc::IpcWriteOptions::Defaults();
  options.memory_pool = pool;
  const auto writer = need(arrow::ipc::MakeStreamWriter(out, joined->schema(), options));
  need(writer->WriteTable(*joined, 50'000));
  need(writer->Close());
  const std::shared_ptr<arrow::Buffer> written = need(out->Finish());
  auto read_options = arrow::ipc::IpcReadOptions::Defaults();
  read_options.memory_pool = pool;
  const auto reader = need(arrow::ipc::RecordBatchStreamReader::Open(
      std::make_shared<arrow::io::BufferReader>(written), read_options));
  const auto read = need(need(reader->ToTable())->CombineChunks(pool));
  if (!read->Equals(*joined)) throw std::runtime_error("the table that is read is the one that was written");
  if (in.taken.bytes == 0) in.add(written->data(), static_cast<std::size_t>(written->size()));
}

bool use(sample& in, pool_type* memory) {
  std::optional<adaptor> ours;
  if (memory != nullptr) {
    if (!obeys_the_rules(*memory)) return false;
    ours.emplace(*memory);
  }
  const auto own = arrow::MemoryPool::CreateDefault();
  arrow::MemoryPool& pool = ours ? static_cast<arrow::MemoryPool&>(*ours) : *own;
  arrow::MemoryPool& unused = *arrow::default_memory_pool();
  in.begin();
  in.time(5, [&] { make_tables(in, &pool); });
  in.end(memory);
  bool is_right = check(pool.bytes_allocated() == 0, "Arrow frees all of its memory");
  std::printf("%s: at most %lld bytes in %lld allocations\n", pool.backend_name().c_str(),
              static_cast<long long>(pool.max_memory()), static_cast<long long>(pool.num_allocations()));
  return check(unused.total_bytes_allocated() == 0, "all of Arrow's memory is from the pool") && is_right;
}

}  // namespace

int main() {
  return interop_tests::run_beside("Arrow", [](sample& in, pool_type* pool) {
    try {
      return use(in, pool);
    } catch (const std::exception& error) {
      return check(false, error.what());
    }
  });
}
