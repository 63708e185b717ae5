// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include <tessera/provider/address_book.hpp>
#include <tessera/provider/simulated_calls.hpp>

namespace tessera::inline v0_1::detail {

/// The number of counted_ptrs to an object.
class reference_count {
 public:
  reference_count& operator=(reference_count&&) = delete;

 private:
  template <typename T>
  friend class counted_ptr;
  std::size_t count_ = 0;
};

/// A std::shared_ptr for one thread, which compiles ten times faster: <memory> alone takes 0.4 s.
///   Requires:  T has a public base class reference_count
template <typename T>
class counted_ptr {
 public:
  counted_ptr() noexcept = default;
  explicit counted_ptr(T* object) noexcept : object_(object) {
    if (object_ != nullptr) ++count();
  }
  counted_ptr(const counted_ptr& from) noexcept : counted_ptr(from.object_) {}
  counted_ptr(counted_ptr&& from) noexcept : object_(std::exchange(from.object_, nullptr)) {}
  counted_ptr& operator=(counted_ptr from) noexcept {
    std::swap(object_, from.object_);
    return *this;
  }
  ~counted_ptr() {
    if (object_ != nullptr && --count() == 0) delete object_;
  }

  [[nodiscard]] T& operator*() const noexcept { return *object_; }
  [[nodiscard]] T* operator->() const noexcept { return object_; }

 private:
  [[nodiscard]] std::size_t& count() const noexcept { return static_cast<reference_count*>(object_)->count_; }
  T* object_ = nullptr;
};

/// The physical memory of one simulated device, shared by all its processes.
class simulated_memory : public reference_count {
 public:
  /// Has the memory that the options of a simulated_device give it.
  template <typename Options>
  explicit simulated_memory(const Options& of)
      : device_(of.device),
        capacity_(of.capacity),
        left_{of.capacity,
              of.normal_budget,
              of.huge_budget,
              of.giant_budget,
              of.peer_to_peer_budget,
              of.low_bandwidth_budget,
              of.high_bandwidth_budget},
        page_granularity_(of.page_granularity),
        next_address_((std::uintptr_t{device_} + 1) * max_addresses) {}

  /// The addresses of a device, far above those of a real process.
  static constexpr std::size_t max_addresses = std::size_t{1} << 56;
  /// The first address that no process of the device has taken.
  [[nodiscard]] std::uintptr_t next_address() const noexcept { return next_address_; }
  /// Takes at least so many addresses for one process, so that processes of the device share none.
  ///   Returns:  how many it took; 0 if fewer are left
  [[nodiscard]] std::size_t take_addresses(std::size_t bytes) noexcept {
    constexpr std::size_t step = std::size_t{1} << 40;
    // The last addresses are never used, so that the end of a range never wraps.
    const std::size_t left = (std::uintptr_t{device_} + 2) * max_addresses - 2_MiB - next_address_;
    const std::size_t taken = bytes <= left ? smaller(align_up(bytes, step), left) : 0;
    next_address_ += taken;
    return taken;
  }

  /// Subtracts memory from each budget that it counts against. If `kind` allows any bandwidth, it sets the
  /// bandwidth: high if all of the memory fits there, else low.
  [[nodiscard]] simulated_outcome take(std::size_t bytes, page_kind& kind) noexcept {
    page_kind taken = kind;
    if (taken.speed == page_kind::bandwidth::any)
      taken.speed = bytes <= left_.high_bandwidth ? page_kind::bandwidth::high : page_kind::bandwidth::low;
    if (bytes > left_.capacity)
      return {.broken_rule = "the capacity is reached", .out_of_memory = true, .is_full = true};
    if (bytes > pages_left(taken)) return lacks("no pages of this size are left");
    if (bytes > bandwidth_left(taken)) return lacks("no memory of this bandwidth is left");
    if (taken.peer_to_peer && bytes > left_.peer_to_peer) return lacks("no peer-to-peer memory is left");
    left_.capacity -= bytes;
    pages_left(taken) -= bytes;
    bandwidth_left(taken) -= bytes;
    if (taken.peer_to_peer) left_.peer_to_peer -= bytes;
    peak_ = larger(peak_, used());
    kind = taken;
    return {};
  }
  ///   Requires:  `kind` is the value that take() set
  void give_back(std::size_t bytes, page_kind kind) noexcept {
    left_.capacity += bytes;
    pages_left(kind) += bytes;
    bandwidth_left(kind) += bytes;
    if (kind.peer_to_peer) left_.peer_to_peer += bytes;
  }

  /// The number of the device.
  [[nodiscard]] unsigned device() const noexcept { return device_; }
  /// Bytes of a page.
  [[nodiscard]] std::size_t page_size(page_kind kind) const noexcept {
    return kind.size == page_kind::page_size::normal ? page_granularity_ : kind.granularity();
  }
  [[nodiscard]] std::size_t used() const noexcept { return capacity_ - left_.capacity; }
  [[nodiscard]] std::size_t peak_used() const noexcept { return peak_; }

 private:
  [[nodiscard]] static simulated_outcome lacks(const char* why) noexcept {
    return {.broken_rule = why, .out_of_memory = true};
  }
  [[nodiscard]] std::size_t& pages_left(page_kind kind) noexcept {
    return kind.size == page_kind::page_size::huge_1g ? left_.giant
           : kind.size == page_kind::page_size::huge  ? left_.huge
                                                      : left_.normal;
  }
  [[nodiscard]] std::size_t& bandwidth_left(page_kind kind) noexcept {
    return kind.speed == page_kind::bandwidth::low ? left_.low_bandwidth : left_.high_bandwidth;
  }

  unsigned device_;
  std::size_t capacity_;
  struct budgets {
    std::size_t capacity;
    std::size_t normal, huge, giant;
    std::size_t peer_to_peer;
    std::size_t low_bandwidth, high_bandwidth;
  } left_;
  std::size_t page_granularity_;
  std::uintptr_t next_address_;
  std::size_t peak_ = 0;
};

/// Physical memory without an address. It is given back once no handle and no mapping refers to it.
class simulated_piece : public reference_count {
 public:
  explicit simulated_piece(counted_ptr<simulated_memory> from) noexcept : from_(std::move(from)) {}
  simulated_piece& operator=(simulated_piece&&) = delete;
  ~simulated_piece() { from_->give_back(bytes_, kind_); }

  /// Takes its memory, once.
  [[nodiscard]] simulated_outcome take(std::size_t bytes, page_kind kind) noexcept {
    const simulated_outcome outcome = from_->take(bytes, kind);
    if (outcome.works()) {
      bytes_ = bytes;
      kind_ = kind;
    }
    return outcome;
  }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] unsigned device() const noexcept { return from_->device(); }
  /// Bytes of each of its pages. It is mapped at a multiple of the page size.
  [[nodiscard]] std::size_t page_size() const noexcept { return from_->page_size(kind_); }

 private:
  counted_ptr<simulated_memory> from_;
  std::size_t bytes_ = 0;
  page_kind kind_{};
};

/// Chooses addresses as a driver may: at random places, or where memory was released.
class simulated_places {
 public:
  /// With a seed of 0, it chooses none.
  explicit simulated_places(std::uint64_t seed) noexcept : state_(seed) {}
  [[nodiscard]] bool is_random() const noexcept { return state_ != 0; }

  /// Finds addresses for which is_free(pointer, bytes) is true, in `room` bytes from `first` on. They begin at a multiple of
  /// `step`, a power of two.
  ///   Returns:  null if it finds none in 64 tries
  template <typename F>
  [[nodiscard]] void* find(std::uintptr_t first, std::size_t room, std::size_t bytes, std::size_t step,
                           F is_free) noexcept {
    const auto suits = [&](std::uintptr_t at) {
      return at % step == 0 && at >= first && at - first <= room && bytes <= room - (at - first) &&
             is_free(pointer_to(at), bytes);
    };
    for (int tries = 0; tries < 64; ++tries) {
      const bool again = next() % 2 == 0;
      const std::uintptr_t at =
          again ? released_[next() % kept] : align_up(first, step) + next() % (room / step + 1) * step;
      if (suits(at)) return pointer_to(at);
    }
    return nullptr;
  }
  void note_released(const void* p) noexcept {
    if (is_random()) released_[next() % kept] = address_of(p);
  }

 private:
  /// A number of a sequence that never is 0.
  ///   Source:  Marsaglia's xorshift64*
  [[nodiscard]] std::uint64_t next() noexcept {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return (state_ * 0x2545F4914F6CDD1Du) >> 16;
  }

  static constexpr std::size_t kept = 8;

  std::uint64_t state_;
  std::uintptr_t released_[kept]{};  // nvcc 13 compiles no std::array here
};

/// What a process knows of a chunk.
struct simulated_chunk {
  counted_ptr<simulated_piece> memory;
  bool is_granted = false;  ///< where it is mapped
  bool is_exported = false;
  importer_list importers{provider::importers::listed};
};

/// The addresses of one process on a simulated device: segments, reserved ranges and mappings.
///
/// Addresses only grow and are never reused, unless simulated_places chooses them. The destructor gives all memory back.
///   Cost:  logarithmic in the ranges, segments and mappings; can_use() is linear in the mappings that it
///          checks, segment_entries() in the segments
class simulated_ranges {
 public:
  static constexpr std::size_t alignment = 2_MiB;
  /// The size of a range is a multiple of this.
  static constexpr std::size_t min_page = 4_KiB;

  /// Takes addresses of `device` while it needs more. A `seed` other than 0 lets simulated_places choose among one part of them.
  ///   Requires:  `device` outlives it
  simulated_ranges(simulated_memory& device, std::uint64_t seed) noexcept : device_(&device), places_(seed) {
    (void)add_room(places_.is_random() ? max_random_room : 1);
  }
  simulated_ranges& operator=(simulated_ranges&&) = delete;
  [[gnu::cold]] ~simulated_ranges() {
    segments_.for_each([](void*, const segment& s) { s.memory->give_back(s.bytes, s.kind); });
  }

  /// Acquires a segment of a memory of the device.
  [[nodiscard, gnu::cold]] simulated_outcome acquire(const counted_ptr<simulated_memory>& memory,
                                                     std::size_t bytes, page_kind kind,
                                                     std::size_t granularity) {
    const std::size_t step = larger(granularity, kind.granularity());
    if (bytes == 0 || (bytes & (step - 1)) != 0)
      return {"the size is 0, or no multiple of the granularity and of the page size"};
    void* const p = find_room(bytes, step);
    if (p == nullptr) return {"no addresses are left", true};
    simulated_outcome outcome = memory->take(bytes, kind);
    if (!outcome.works()) return outcome;
    if (!segments_.insert(p, {bytes, kind, memory})) {
      memory->give_back(bytes, kind);
      return out_of_host_memory;
    }
    outcome.address = p;
    take(p, bytes);
    outcome.units = bytes >> 20;
    return outcome;
  }
  [[nodiscard, gnu::cold]] simulated_outcome release(const void* p, std::size_t bytes) {
    const segment* const found = segments_.find(p);
    if (found == nullptr) return {"no segment begins here"};
    if (found->bytes != bytes) return {"the segment has another size"};
    const segment released = segments_.extract(p);
    released.memory->give_back(bytes, released.kind);
    places_.note_released(p);
    return {.units = bytes >> 20};
  }

  [[nodiscard]] simulated_outcome reserve(std::size_t bytes, std::size_t to) {
    if (bytes == 0 || bytes % min_page != 0) return {"the size is 0 or no multiple of 4 KiB"};
    if (!std::has_single_bit(to)) return {"the alignment is no power of two"};
    void* const p = find_room(bytes, to);
    if (p == nullptr) return {"no addresses are left", true};
    if (!book_.add_range(p, bytes)) return out_of_host_memory;
    take(p, bytes);
    return {.address = p};
  }
  [[nodiscard]] simulated_outcome unreserve(const void* p, std::size_t bytes) {
    if (const char* const rule = book_.why_not_unreserve(p, bytes)) return {rule};
    book_.remove_range(p);
    places_.note_released(p);
    return {};
  }

  /// Whether the device may access all these addresses: they lie in one segment, or are mapped with access.
  [[nodiscard]] bool can_use(const void* p, std::size_t bytes) const noexcept {
    if (segments_.around(p, bytes) != nullptr) return true;
    const auto* m = book_.mappings().around(p, 0);
    for (; m != nullptr && book_.chunk_of(*m).data.is_granted; m = book_.mappings().around(p, 0)) {
      const std::uintptr_t end = m->begin + m->bytes;
      const std::size_t here = end - address_of(p);
      if (bytes <= here) return true;
      bytes -= here;
      p = pointer_to(end);
    }
    return false;
  }

  [[nodiscard]] address_book<simulated_chunk>& book() noexcept { return book_; }
  [[nodiscard]] const address_book<simulated_chunk>& book() const noexcept { return book_; }
  /// Entries of the page table for segments.
  [[nodiscard]] std::size_t segment_entries() const noexcept {
    std::size_t sum = 0;
    segments_.for_each([&](void*, const segment& s) {
      sum += ((s.bytes - 1) >> std::countr_zero(s.memory->page_size(s.kind))) + 1;
    });
    return sum;
  }

 private:
  struct segment {
    std::size_t bytes;
    page_kind kind;
    counted_ptr<simulated_memory> memory;
  };

  /// Addresses of a driver lie in 47 bits.
  static constexpr std::size_t max_random_room = std::size_t{1} << 47;

  /// Finds addresses that begin at a multiple of 2 MiB and of `to`, a power of two. Returns null if none are left.
  [[nodiscard, gnu::cold]] void* find_room(std::size_t bytes, std::size_t to) noexcept {
    if (places_.is_random()) {
      const auto is_free = [this](const void* p, std::size_t n) {
        return !segments_.overlaps(p, n) && !book_.ranges().overlaps(p, n);
      };
      return places_.find(next_, room_, bytes, larger(to, alignment), is_free);
    }
    constexpr std::size_t most = simulated_memory::max_addresses;
    if (bytes > most || to > most) return nullptr;
    const auto end = [&, this] { return ((0 - next_) & (to - 1)) + bytes; };
    const bool follows = next_ + room_ == device_->next_address();
    if (end() > room_ && !add_room(follows ? end() - room_ : bytes + to)) return nullptr;
    return pointer_to(next_ + end() - bytes);
  }
  /// Takes at least so many addresses of the device. If they do not follow the others, these are left.
  [[nodiscard]] bool add_room(std::size_t bytes) noexcept {
    const std::uintptr_t begin = device_->next_address();
    const std::size_t taken = device_->take_addresses(bytes);
    if (taken == 0) return false;
    room_ = begin == next_ + room_ ? room_ + taken : taken;
    next_ = begin + taken - room_;
    return true;
  }
  /// Takes addresses that find_room() found.
  void take(const void* p, std::size_t bytes) noexcept {
    if (places_.is_random()) return;
    const std::size_t taken = address_of(p) - next_ + align_up(bytes, alignment);
    next_ += taken;
    room_ -= taken;
  }

  simulated_memory* device_;
  std::uintptr_t next_ = 0;
  std::size_t room_ = 0;  // bytes of addresses left
  simulated_places places_;
  range_map<segment> segments_;
  address_book<simulated_chunk> book_;
};

class simulated_process;

/// The devices and processes of a simulated machine.
struct simulated_machine : reference_count {
  static constexpr std::size_t max_devices = 255;
  std::array<bool, max_devices> devices{};    ///< whether a device has this number
  ordered_map<simulated_process*> processes;  ///< by number, from 1; null if the process has ended
};

/// A process on one device of a simulated machine: its addresses and its handles of physical memory. The
/// destructor gives back all of them, as the end of a process does.
///   Source:  the rules of sharing follow CANN's acl.rt.mem_export_to_shareable_handle: memory is exported
///            once, and imported once by each other process, before the exporter destroys it
class simulated_process : public reference_count {
 public:
  /// A `seed` other than 0 lets simulated_places choose addresses.
  [[gnu::cold]] simulated_process(counted_ptr<simulated_machine> machine,
                                  counted_ptr<simulated_memory> memory, std::uint64_t seed)
      : machine_(std::move(machine)),
        memory_(std::move(memory)),
        number_(next_number()),
        addresses_(*memory_, seed) {
    if (!machine_->processes.insert(key_of(number_), this)) raise(std::bad_alloc());
  }
  simulated_process& operator=(simulated_process&&) = delete;
  [[gnu::cold]] ~simulated_process() { *machine_->processes.find(key_of(number_)) = nullptr; }

  /// Creates physical memory of a memory of the device.
  [[nodiscard]] simulated_outcome create(const counted_ptr<simulated_memory>& memory, std::size_t bytes,
                                         page_kind kind, std::uint64_t& handle) {
    if (bytes == 0 || bytes % memory->page_size(kind) != 0)
      return {"the size is 0 or no multiple of the page size"};
    auto* const made = new (std::nothrow) simulated_piece(memory);
    if (made == nullptr) return out_of_host_memory;
    const counted_ptr piece(made);
    const simulated_outcome outcome = piece->take(bytes, kind);
    if (!outcome.works()) return outcome;
    if (const char* const rule = book().add_chunk({bytes, piece->page_size(), {piece}}, handle))
      return {rule};
    return {.units = bytes >> 20};
  }
  [[nodiscard]] simulated_outcome map(const void* p, std::size_t bytes, std::uint64_t handle, bool granted) {
    if (const char* const rule = book().map(p, bytes, handle)) return {rule};
    book().find(handle)->data.is_granted = granted;
    return {.units = pages_at(p)};
  }
  [[nodiscard]] simulated_outcome grant(const void* p, std::size_t bytes) {
    if (const char* const rule = book().why_no_mapping(p, bytes)) return {rule};
    book().chunk_of(*book().mapping_at(p)).data.is_granted = true;
    return {.units = pages_at(p)};
  }
  [[nodiscard]] simulated_outcome unmap(const void* p, std::size_t bytes, bool any_size) {
    const auto* const found = book().mapping_at(p);
    const std::size_t expected = found != nullptr && any_size ? found->bytes : bytes;
    if (const char* const rule = book().why_no_mapping(p, expected)) return {rule};
    const std::size_t pages = pages_at(p);
    book().unmap(p);
    return {.units = pages};
  }

  [[nodiscard]] simulated_outcome export_memory(std::uint64_t handle, provider::importers who) {
    if (const char* const rule = book().why_not_export(handle)) return {rule};
    simulated_chunk& chunk = book().find(handle)->data;
    if (std::exchange(chunk.is_exported, true)) return {"the memory is exported already"};
    chunk.importers = importer_list(who);
    return {};
  }
  [[nodiscard]] bool is_exported(std::uint64_t handle) noexcept { return exported(*this, handle) != nullptr; }
  /// Lists a process as an importer of memory that this process exported.
  [[nodiscard]] simulated_outcome allow(std::int32_t exporter, std::uint64_t handle, std::int32_t importer) {
    simulated_chunk* const m = exported(*this, handle);
    if (exporter != number_ || m == nullptr) return not_exported;
    return {m->importers.allow(importer)};
  }
  /// Sets `handle` to memory that the process `exporter` exported under its own handle `theirs`.
  [[nodiscard]] simulated_outcome import_memory(std::int32_t exporter, std::uint64_t theirs,
                                                std::uint64_t& handle) {
    if (exporter == number_) return {"the memory belongs to this process"};
    const simulated_chunk* const m = exported_by(exporter, theirs);
    if (m == nullptr) return not_exported;
    if (!m->importers.may_import(number_)) return {"this process is not listed"};
    const simulated_piece& piece = *m->memory;
    if (piece.device() != memory_->device() && !peers_[piece.device()])
      return {"the memory is on another device, without peer access"};
    return {book().add_chunk({piece.bytes(), piece.page_size(), {m->memory}, address_of(&piece)}, handle)};
  }
  [[nodiscard]] simulated_outcome enable_peer_access(unsigned device) {
    if (device == memory_->device()) return {"a device is no peer of itself"};
    if (device >= simulated_machine::max_devices || !machine_->devices[device])
      return {"the machine has no such device"};
    peers_[device] = true;
    return {};
  }

  [[nodiscard]] const counted_ptr<simulated_machine>& machine() const noexcept { return machine_; }
  [[nodiscard]] const counted_ptr<simulated_memory>& memory() const noexcept { return memory_; }
  [[nodiscard]] std::int32_t number() const noexcept { return number_; }
  [[nodiscard]] simulated_ranges& addresses() noexcept { return addresses_; }
  [[nodiscard]] const simulated_ranges& addresses() const noexcept { return addresses_; }
  [[nodiscard]] address_book<simulated_chunk>& book() noexcept { return addresses_.book(); }

 private:
  static constexpr simulated_outcome not_exported{"no memory is exported under this name"};

  [[nodiscard]] static std::uint64_t key_of(std::int32_t process) noexcept {
    return static_cast<std::uint64_t>(process);
  }
  [[nodiscard]] std::int32_t next_number() const noexcept {
    return static_cast<std::int32_t>(machine_->processes.size() + 1);
  }
  /// Null if the process has exported no such memory.
  [[nodiscard]] static simulated_chunk* exported(simulated_process& by, std::uint64_t handle) noexcept {
    auto* const found = by.book().find(handle);
    return found != nullptr && found->data.is_exported ? &found->data : nullptr;
  }
  [[nodiscard]] const simulated_chunk* exported_by(std::int32_t process,
                                                   std::uint64_t handle) const noexcept {
    simulated_process* const* const other = process > 0 ? machine_->processes.find(key_of(process)) : nullptr;
    return other != nullptr && *other != nullptr ? exported(**other, handle) : nullptr;
  }
  /// The pages of the mapping that begins at an address.
  [[nodiscard]] std::size_t pages_at(const void* p) noexcept {
    const auto& mapped = book().chunk_of(*book().mapping_at(p));
    return mapped.bytes / mapped.page_size;
  }

  counted_ptr<simulated_machine> machine_;
  counted_ptr<simulated_memory> memory_;
  std::int32_t number_;
  simulated_ranges addresses_;
  std::array<bool, simulated_machine::max_devices> peers_{};  // devices to which this process has access
};

}  // namespace tessera::inline v0_1::detail
