// SPDX-License-Identifier: Apache-2.0
// A library with the functions of CUDA's driver, without a device. It records memory, contexts, streams and
// events, refuses the calls that the driver refuses, and records forbidden calls. Functions whose names begin
// with fake_ are for tests only.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <iterator>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace {

// The values are those of cuda.h.
enum : int {
  success = 0,
  invalid_value = 1,
  out_of_memory = 2,
  not_initialized = 3,
  no_device = 100,
  invalid_device = 101,
  invalid_context = 201,
  invalid_handle = 400,
  not_ready = 600,
  not_permitted = 800,
  not_supported = 801
};
using address = unsigned long long;
constexpr std::size_t granularity = std::size_t{2} << 20;

struct context {
  int device = 0;
  bool primary = true;
  long retained = 0;
};
struct segment {
  std::size_t bytes;
  int device;
};
struct physical {
  std::size_t bytes;
  int device;
  bool shareable = false;
  bool released = false;
  int mappings = 0;
  int file = -1;          // has the contents if the memory is shared with other processes
  bool imported = false;  // from another process
};
struct mapping {
  std::size_t bytes;
  address handle;
  bool granted = false;
};
/// A task of a stream: work that a test finishes, or a wait for another stream.
struct task {
  bool is_wait = false;
  std::pair<int, void*> of{};
  std::uint64_t until = 0;
};
struct queue {
  std::uint64_t given = 0, completed = 0;
  std::deque<task> tasks;
};
struct event {
  bool recorded = false;
  std::pair<int, void*> on{};
  std::uint64_t at = 0;
};

struct driver {
  std::mutex mutex;
  bool initialized = false;
  int devices = 2;
  std::size_t capacity = std::size_t{1} << 30;
  bool virtual_memory = true;
  bool file_handles = true;           // whether other processes may map memory
  bool permits_file_handles = true;   // if not, cuMemCreate refuses what the device has
  bool fabric = false, rdma = false;  // what the device offers
  int refused_types = 0;              // handle types that cuMemCreate refuses although the device offers them
  bool refuses_rdma = false;
  int latest_types = 0, latest_rdma = 0;  // of the latest cuMemCreate
  bool holds = false;                     // whether work stays until it is finished
  std::vector<context> primary{{.device = 0}, {.device = 1}}, other{{0, false}, {1, false}};
  std::map<address, segment> segments;
  std::map<address, std::size_t> ranges;
  std::map<address, physical> handles;
  std::map<address, mapping> mappings;
  std::map<std::uintptr_t, std::size_t> registered;  // host memory
  /// The bytes that copies wrote, in pages: of segments by address, and of physical memory by handle.
  std::map<std::pair<bool, address>, std::map<address, std::array<unsigned char, 4096>>> contents;
  std::map<std::pair<int, void*>, queue> streams;
  std::set<std::pair<int, void*>> ended;
  std::map<void*, event> events;
  std::vector<std::size_t> used{0, 0};
  address next_address = address{1} << 44;
  address next_handle = 1;
  std::uintptr_t next_event = 1;
  unsigned long long calls = 0, first_failing = 0, last_failing = 0;
  int failing_with = 0;
  std::string misuse;
  std::map<std::string, int> counts;
};
driver& all() {
  static driver only;
  return only;
}
thread_local context* current = nullptr;

using lock = std::lock_guard<std::mutex>;

int misused(const std::string& what, int with = invalid_value) {
  if (all().misuse.empty()) all().misuse = what;
  return with;
}
/// Counts a call that can fail. Returns the planned error, else 0.
int begin(const char* name, bool needs_context = true) {
  driver& d = all();
  ++d.counts[name];
  if (!d.initialized) return misused(std::string(name) + " before cuInit", not_initialized);
  if (needs_context && current == nullptr)
    return misused(std::string(name) + " without a context", invalid_context);
  ++d.calls;
  return d.calls >= d.first_failing && d.calls <= d.last_failing ? d.failing_with : success;
}
int device_of(const context* c) { return c->device; }
/// Whether an entry of a map, by first addresses, contains all bytes.
template <typename Map>
bool has_bytes(const Map& map, address p, std::size_t bytes) {
  auto at = map.upper_bound(p);
  if (at == map.begin()) return false;
  --at;
  return p - at->first <= at->second.bytes && bytes <= at->second.bytes - (p - at->first);
}

void advance(driver& d) {
  for (bool any = true; any;) {
    any = false;
    for (auto& [name, q] : d.streams) {
      while (!q.tasks.empty()) {
        const task& t = q.tasks.front();
        const bool done = t.is_wait ? d.streams[t.of].completed >= t.until : !d.holds;
        if (!done) break;
        q.tasks.pop_front();
        ++q.completed;
        any = true;
      }
    }
  }
}
/// Completes the work of a stream up to a position, and the work that it waits for.
void finish(driver& d, std::pair<int, void*> stream, std::uint64_t until) {
  queue& q = d.streams[stream];
  while (q.completed < until && !q.tasks.empty()) {
    const task t = q.tasks.front();
    if (t.is_wait && d.streams[t.of].completed < t.until) {
      finish(d, t.of, t.until);  // which may complete more of this one
      continue;
    }
    q.tasks.pop_front();
    ++q.completed;
  }
  advance(d);
}
void finish_device(driver& d, int device) {
  for (auto& [name, q] : d.streams) {
    if (name.first == device) finish(d, name, q.given);
  }
}
bool is_past(driver& d, const event& e) { return !e.recorded || d.streams[e.on].completed >= e.at; }

bool take(driver& d, int device, std::size_t bytes) {
  std::size_t& used = d.used[static_cast<std::size_t>(device)];
  if (bytes > d.capacity - used) return false;
  used += bytes;
  return true;
}
void forget_if_gone(driver& d, address handle) {
  const auto found = d.handles.find(handle);
  if (!found->second.released || found->second.mappings != 0) return;
  if (!found->second.imported) d.used[static_cast<std::size_t>(found->second.device)] -= found->second.bytes;
  if (found->second.file >= 0) ::close(found->second.file);
  d.contents.erase({false, handle});
  d.handles.erase(found);
}
address new_addresses(driver& d, std::size_t bytes, std::size_t to) {
  const address at = (d.next_address + to - 1) / to * to;
  d.next_address = at + bytes + granularity;
  return at;
}

struct location {
  int type, id;
};
struct properties {
  int type, handle_types;
  location where;
  void* win32_metadata;
  unsigned char compression, direct_rdma;
  unsigned short usage;
  unsigned char reserved[4];
};
struct memory_access {
  location where;
  int flags;
};
/// Whether properties request memory of a device, which other processes may map, and nothing else.
bool are_plain(const driver& d, const properties* wanted) {
  return wanted->type == 1 &&
         (wanted->handle_types & ~((d.file_handles ? 1 : 0) | (d.fabric ? 8 : 0))) == 0 &&
         wanted->where.type == 1 && wanted->where.id >= 0 && wanted->where.id < d.devices &&
         wanted->win32_metadata == nullptr && wanted->compression == 0 &&
         (wanted->direct_rdma == 0 || (wanted->direct_rdma == 1 && d.rdma)) && wanted->usage == 0;
}

/// Submits a copy from or to the device's memory. The bytes move at once, the stream takes its time.
int copy(const char* name, address device, std::size_t bytes, void* stream, void* to, const void* from) {
  driver& d = all();
  const lock held(d.mutex);
  if (const int failed = begin(name)) return failed;
  const bool in_segment = has_bytes(d.segments, device, bytes);
  if (!in_segment && !has_bytes(d.mappings, device, bytes)) return invalid_value;
  const std::pair on{device_of(current), stream};
  if (d.ended.contains(on)) return invalid_handle;
  const auto segment = in_segment ? std::prev(d.segments.upper_bound(device)) : d.segments.end();
  const auto mapped = in_segment ? d.mappings.end() : std::prev(d.mappings.upper_bound(device));
  const address first = device - (in_segment ? segment->first : mapped->first);
  const int file = in_segment ? -1 : d.handles[mapped->second.handle].file;
  if (file >= 0) {
    const auto at = static_cast<off_t>(first);
    const ssize_t moved = to != nullptr ? ::pread(file, to, bytes, at) : ::pwrite(file, from, bytes, at);
    return moved == static_cast<ssize_t>(bytes) ? success : invalid_value;
  }
  auto& pages = d.contents[{in_segment, in_segment ? segment->first : mapped->second.handle}];
  for (std::size_t done = 0, part = 0; done < bytes; done += part) {
    const std::size_t offset = (first + done) % 4096;
    part = bytes - done < 4096 - offset ? bytes - done : 4096 - offset;
    unsigned char* const page = pages[(first + done) / 4096].data() + offset;
    if (to != nullptr)
      std::memcpy(static_cast<unsigned char*>(to) + done, page, part);
    else
      std::memcpy(page, static_cast<const unsigned char*>(from) + done, part);
  }
  ++d.streams[on].given;
  d.streams[on].tasks.push_back({});
  return advance(d), success;
}

}  // namespace

extern "C" {

int cuInit(unsigned flags) {
  driver& d = all();
  const lock held(d.mutex);
  if (flags != 0) return misused("cuInit with flags");
  if (d.devices == 0) return no_device;
  d.initialized = true;
  return success;
}
int cuGetErrorName(int error, const char** name) {
  static const std::map<int, const char*> names{{success, "CUDA_SUCCESS"},
                                                {invalid_value, "CUDA_ERROR_INVALID_VALUE"},
                                                {out_of_memory, "CUDA_ERROR_OUT_OF_MEMORY"},
                                                {no_device, "CUDA_ERROR_NO_DEVICE"},
                                                {invalid_device, "CUDA_ERROR_INVALID_DEVICE"},
                                                {invalid_context, "CUDA_ERROR_INVALID_CONTEXT"},
                                                {invalid_handle, "CUDA_ERROR_INVALID_HANDLE"},
                                                {not_supported, "CUDA_ERROR_NOT_SUPPORTED"}};
  const auto found = names.find(error);
  if (found == names.end()) return *name = nullptr, invalid_value;
  return *name = found->second, success;
}
int cuGetErrorString(int error, const char** text) {
  if (error != out_of_memory && error != no_device) return *text = nullptr, invalid_value;
  return *text = error == out_of_memory ? "out of memory" : "no CUDA-capable device is detected", success;
}
int cuDeviceGetCount(int* count) { return *count = all().devices, success; }
int cuDeviceGet(int* device, int number) {
  const lock held(all().mutex);
  if (number < 0 || number >= all().devices) return invalid_device;
  return *device = number, success;
}
int cuDeviceGetAttribute(int* value, int attribute, int) {
  const lock held(all().mutex);
  switch (attribute) {
    case 102: return *value = all().virtual_memory, success;
    case 103: return *value = all().file_handles, success;
    case 110: return *value = all().rdma, success;
    case 128: return all().fabric ? (*value = 1, success) : invalid_value;  // as an older driver
    default: return misused("cuDeviceGetAttribute of something else");
  }
}
int cuDeviceTotalMem_v2(std::size_t* bytes, int) { return *bytes = all().capacity, success; }
int cuDevicePrimaryCtxRetain(void** made, int device) {
  driver& d = all();
  const lock held(d.mutex);
  if (const int failed = begin("cuDevicePrimaryCtxRetain", false)) return failed;
  ++d.primary[static_cast<std::size_t>(device)].retained;
  return *made = &d.primary[static_cast<std::size_t>(device)], success;
}
int cuDevicePrimaryCtxRelease_v2(int device) {
  driver& d = all();
  const lock held(d.mutex);
  if (--d.primary[static_cast<std::size_t>(device)].retained < 0)
    return misused("a context is released twice");
  return success;
}
int cuCtxGetCurrent(void** now) {
  const lock held(all().mutex);
  if (const int failed = begin("cuCtxGetCurrent", false)) return failed;
  return *now = current, success;
}
int cuCtxSetCurrent(void* wanted) {
  const lock held(all().mutex);
  // The call that restores the thread's context must succeed; otherwise the caller is left in another
  // context.
  if (const int failed = begin("cuCtxSetCurrent", false); failed != success && current == nullptr)
    return failed;
  return current = static_cast<context*>(wanted), success;
}
int cuCtxSynchronize() {
  driver& d = all();
  const lock held(d.mutex);
  if (const int failed = begin("cuCtxSynchronize")) return failed;
  return finish_device(d, device_of(current)), success;
}

int cuMemAlloc_v2(address* given, std::size_t bytes) {
  driver& d = all();
  const lock held(d.mutex);
  if (const int failed = begin("cuMemAlloc")) return failed;
  if (bytes == 0) return invalid_value;
  if (!take(d, device_of(current), bytes)) return out_of_memory;
  *given = new_addresses(d, bytes, 512);
  d.segments[*given] = {bytes, device_of(current)};
  return success;
}
int cuMemFree_v2(address p) {
  driver& d = all();
  const lock held(d.mutex);
  if (const int failed = begin("cuMemFree")) return failed;
  const auto found = d.segments.find(p);
  if (found == d.segments.end()) return misused("cuMemFree of what was not given");
  if (found->second.device != device_of(current)) return misused("cuMemFree in another device's context");
  finish_device(d, found->second.device);
  d.used[static_cast<std::size_t>(found->second.device)] -= found->second.bytes;
  d.contents.erase({true, p});
  d.segments.erase(found);
  return success;
}
int cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  driver& d = all();
  const lock held(d.mutex);
  if (const int failed = begin("cuMemGetInfo")) return failed;
  *total = d.capacity;
  return *free = d.capacity - d.used[static_cast<std::size_t>(device_of(current))], success;
}

int cuEventCreate(void** made, unsigned flags) {
  driver& d = all();
  const lock held(d.mutex);
  if (const int failed = begin("cuEventCreate")) return failed;
  if (flags != 2) return misused("an event with timing");
  *made = reinterpret_cast<void*>(16 * d.next_event++);
  d.events[*made] = {};
  return success;
}
int cuEventDestroy_v2(void* e) {
  driver& d = all();
  const lock held(d.mutex);
  const int failed = begin("cuEventDestroy", false);  // of earlier work; the event is destroyed
  if (d.events.erase(e) == 0) return misused("cuEventDestroy of what is no event", invalid_handle);
  return failed;
}
int cuEventRecord(void* e, void* stream) {
  driver& d = all();
  const lock held(d.mutex);
  if (const int failed = begin("cuEventRecord")) return failed;
  const auto found = d.events.find(e);
  if (found == d.events.end()) return misused("cuEventRecord of what is no event", invalid_handle);
  const std::pair on{device_of(current), stream};
  if (d.ended.contains(on)) return invalid_handle;
  found->second = {true, on, d.streams[on].given};
  return success;
}
int cuEventQuery(void* e) {
  driver& d = all();
  const lock held(d.mutex);
  if (const int failed = begin("cuEventQuery", false)) return failed;
  const auto found = d.events.find(e);
  if (found == d.events.end()) return misused("cuEventQuery of what is no event", invalid_handle);
  return is_past(d, found->second) ? success : not_ready;
}
int cuEventSynchronize(void* e) {
  driver& d = all();
  const lock held(d.mutex);
  if (const int failed = begin("cuEventSynchronize")) return failed;
  const auto found = d.events.find(e);
  if (found == d.events.end()) return misused("cuEventSynchronize of what is no event", invalid_handle);
  return finish(d, found->second.on, found->second.at), success;
}
int cuStreamSynchronize(void* stream) {
  driver& d = all();
  const lock held(d.mutex);
  if (const int failed = begin("cuStreamSynchronize")) return failed;
  const std::pair on{device_of(current), stream};
  if (d.ended.contains(on)) return invalid_handle;
  return finish(d, on, d.streams[on].given), success;
}
int cuStreamGetFlags(void* stream, unsigned* flags) {
  driver& d = all();
  const lock held(d.mutex);
  if (const int failed = begin("cuStreamGetFlags")) return failed;
  return d.ended.contains({device_of(current), stream}) ? invalid_handle : (*flags = 0, success);
}
int cuStreamWaitEvent(void* stream, void* e, unsigned flags) {
  driver& d = all();
  const lock held(d.mutex);
  if (const int failed = begin("cuStreamWaitEvent")) return failed;
  const auto found = d.events.find(e);
  if (found == d.events.end() || flags != 0) return misused("cuStreamWaitEvent for what is no event");
  queue& q = d.streams[{device_of(current), stream}];
  ++q.given;
  q.tasks.push_back({true, found->second.on, found->second.at});
  return advance(d), success;
}

int cuMemGetAllocationGranularity(std::size_t* bytes, const properties* wanted, int which) {
  driver& d = all();
  const lock held(d.mutex);
  if (!are_plain(d, wanted) || which != 0) return misused("cuMemGetAllocationGranularity of something else");
  return *bytes = granularity, success;
}
int cuMemAddressReserve(address* given, std::size_t bytes, std::size_t to, address wanted,
                        unsigned long long flags) {
  driver& d = all();
  const lock held(d.mutex);
  if (const int failed = begin("cuMemAddressReserve", false)) return failed;
  if (wanted != 0 || flags != 0) return misused("cuMemAddressReserve with wishes");
  if (bytes == 0 || bytes % granularity != 0 || (to & (to - 1)) != 0) return invalid_value;
  if (bytes > std::size_t{1} << 46) return out_of_memory;
  *given = new_addresses(d, bytes, to > granularity ? to : granularity);
  d.ranges[*given] = bytes;
  return success;
}
int cuMemAddressFree(address p, std::size_t bytes) {
  driver& d = all();
  const lock held(d.mutex);
  if (const int failed = begin("cuMemAddressFree", false)) return failed;
  const auto found = d.ranges.find(p);
  if (found == d.ranges.end() || found->second != bytes) return invalid_value;
  const auto inside = d.mappings.lower_bound(p);
  if (inside != d.mappings.end() && inside->first < p + bytes) return invalid_value;
  d.ranges.erase(found);
  return success;
}
int cuMemCreate(address* made, std::size_t bytes, const properties* wanted, unsigned long long flags) {
  driver& d = all();
  const lock held(d.mutex);
  if (const int failed = begin("cuMemCreate", false)) return failed;
  if (!d.virtual_memory) return not_supported;
  if (!are_plain(d, wanted) || flags != 0) return misused("cuMemCreate of something else");
  *made = ~address{0};  // a driver may write although it fails
  if ((wanted->handle_types & 1) != 0 && !d.permits_file_handles) return not_permitted;
  if ((wanted->handle_types & d.refused_types) != 0) return not_permitted;
  if (wanted->direct_rdma != 0 && d.refuses_rdma) return not_supported;
  if (bytes == 0 || bytes % granularity != 0) return invalid_value;
  if (!take(d, wanted->where.id, bytes)) return out_of_memory;
  *made = d.next_handle++;
  d.handles[*made] = {bytes, wanted->where.id, (wanted->handle_types & 1) != 0};
  d.latest_types = wanted->handle_types, d.latest_rdma = wanted->direct_rdma;
  return success;
}
int cuMemRelease(address handle) {
  driver& d = all();
  const lock held(d.mutex);
  if (const int failed = begin("cuMemRelease", false)) return failed;
  const auto found = d.handles.find(handle);
  if (found == d.handles.end() || found->second.released) return misused("cuMemRelease of what is no memory");
  found->second.released = true;
  return forget_if_gone(d, handle), success;
}
int cuMemExportToShareableHandle(void* made, address handle, int type, unsigned long long flags) {
  driver& d = all();
  const lock held(d.mutex);
  if (const int failed = begin("cuMemExportToShareableHandle", false)) return failed;
  const auto found = d.handles.find(handle);
  if (type == 1 && found != d.handles.end() && !found->second.shareable) return invalid_value;
  if ((type != 1 && type != 8) || flags != 0 || found == d.handles.end())
    return misused("cuMemExportToShareableHandle of something else");
  physical& memory = found->second;
  if (memory.file < 0) {
    memory.file = ::memfd_create("chunk", MFD_CLOEXEC);
    if (memory.file < 0 || ::ftruncate(memory.file, static_cast<off_t>(memory.bytes)) != 0)
      return out_of_memory;
    for (const auto& [page, bytes] : d.contents[{false, handle}])
      if (::pwrite(memory.file, bytes.data(), bytes.size(), static_cast<off_t>(page * 4096)) != 4096)
        return out_of_memory;
    d.contents.erase({false, handle});
  }
  if (type == 8) {  // 64 bytes, by which another process finds the file
    std::array<char, 64> path{};
    std::snprintf(path.data(), path.size(), "/proc/%d/fd/%d", static_cast<int>(::getpid()), memory.file);
    return std::memcpy(made, path.data(), path.size()), success;
  }
  const int file = ::dup(memory.file);
  return std::memcpy(made, &file, sizeof file), file >= 0 ? success : out_of_memory;
}
int cuMemImportFromShareableHandle(address* made, void* from, int type) {
  driver& d = all();
  const lock held(d.mutex);
  if (const int failed = begin("cuMemImportFromShareableHandle")) return failed;
  struct stat found{};
  const bool by_fabric = type == 8 && d.fabric;
  const int opened = by_fabric ? ::open(static_cast<const char*>(from), O_RDWR | O_CLOEXEC) : -1;
  const int file = by_fabric ? opened : static_cast<int>(reinterpret_cast<std::uintptr_t>(from));
  if ((type != 1 && !by_fabric) || ::fstat(file, &found) != 0) return invalid_value;
  *made = d.next_handle++;
  d.handles[*made] = {.bytes = static_cast<std::size_t>(found.st_size),
                      .device = device_of(current),
                      .file = by_fabric ? opened : ::dup(file),
                      .imported = true};
  return success;
}
int cuMemMap(address p, std::size_t bytes, std::size_t offset, address handle, unsigned long long flags) {
  driver& d = all();
  const lock held(d.mutex);
  if (const int failed = begin("cuMemMap", false)) return failed;
  if (offset != 0 || flags != 0) return misused("cuMemMap with wishes");
  const auto memory = d.handles.find(handle);
  if (memory == d.handles.end() || memory->second.released) return misused("cuMemMap of what is no memory");
  if (p % granularity != 0 || bytes % granularity != 0 || bytes != memory->second.bytes) return invalid_value;
  auto range = d.ranges.upper_bound(p);
  if (range == d.ranges.begin()) return invalid_value;
  --range;
  if (p - range->first > range->second || bytes > range->second - (p - range->first)) return invalid_value;
  auto next = d.mappings.lower_bound(p);
  if (next != d.mappings.end() && next->first < p + bytes) return invalid_value;
  if (next != d.mappings.begin() && (--next)->first + next->second.bytes > p) return invalid_value;
  d.mappings[p] = {bytes, handle};
  ++memory->second.mappings;
  return success;
}
int cuMemUnmap(address p, std::size_t bytes) {
  driver& d = all();
  const lock held(d.mutex);
  if (const int failed = begin("cuMemUnmap", false)) return failed;
  const auto found = d.mappings.find(p);
  if (found == d.mappings.end()) return success;  // so does the driver 580 on an H200
  if (found->second.bytes != bytes) return invalid_value;
  const address handle = found->second.handle;
  d.mappings.erase(found);
  --d.handles[handle].mappings;
  return forget_if_gone(d, handle), success;
}
int cuMemSetAccess(address p, std::size_t bytes, const memory_access* wanted, std::size_t count) {
  driver& d = all();
  const lock held(d.mutex);
  if (const int failed = begin("cuMemSetAccess", false)) return failed;
  if (count != 1 || wanted->where.type != 1 || wanted->flags != 3)
    return misused("cuMemSetAccess of something else");
  const auto found = d.mappings.find(p);
  if (found == d.mappings.end() || found->second.bytes != bytes) return invalid_value;
  if (d.handles[found->second.handle].device != wanted->where.id) return misused("access for another device");
  found->second.granted = true;
  return success;
}

int cuMemcpyDtoHAsync_v2(void* to, address from, std::size_t bytes, void* stream) {
  return copy("cuMemcpyDtoHAsync", from, bytes, stream, to, nullptr);
}
int cuMemcpyHtoDAsync_v2(address to, const void* from, std::size_t bytes, void* stream) {
  return copy("cuMemcpyHtoDAsync", to, bytes, stream, nullptr, from);
}
int cuMemHostRegister_v2(void* p, std::size_t bytes, unsigned flags) {
  driver& d = all();
  const lock held(d.mutex);
  if (const int failed = begin("cuMemHostRegister")) return failed;
  const auto at = reinterpret_cast<std::uintptr_t>(p);
  if (p == nullptr || bytes == 0 || flags != 0) return misused("cuMemHostRegister of something else");
  for (const auto& [first, size] : d.registered) {
    if (at < first + size && first < at + bytes) return invalid_value;
  }
  return d.registered[at] = bytes, success;
}
int cuMemHostUnregister(void* p) {
  driver& d = all();
  const lock held(d.mutex);
  if (const int failed = begin("cuMemHostUnregister")) return failed;
  return d.registered.erase(reinterpret_cast<std::uintptr_t>(p)) == 1 ? success : invalid_value;
}

// For tests.

/// Starts again, not initialized, with this many devices and this much memory.
void fake_reset(int devices, std::size_t capacity, int virtual_memory) {
  driver& d = all();
  const lock held(d.mutex);
  d.initialized = false;
  d.devices = devices;
  d.capacity = capacity;
  d.virtual_memory = d.file_handles = virtual_memory != 0;
  d.permits_file_handles = true;
  d.fabric = d.rdma = d.refuses_rdma = false;
  d.refused_types = 0;
  d.holds = false;
  d.registered.clear();
  d.primary.assign(static_cast<std::size_t>(devices), {});
  d.other.assign(static_cast<std::size_t>(devices), {});
  for (int i = 0; i < devices; ++i) {
    d.primary[static_cast<std::size_t>(i)].device = d.other[static_cast<std::size_t>(i)].device = i;
    d.other[static_cast<std::size_t>(i)].primary = false;
  }
  for (const auto& [handle, memory] : d.handles) {
    if (memory.file >= 0) ::close(memory.file);
  }
  d.segments.clear(), d.ranges.clear(), d.handles.clear(), d.mappings.clear(), d.contents.clear();
  d.streams.clear(), d.ended.clear(), d.events.clear();
  d.used.assign(static_cast<std::size_t>(devices), 0);
  d.calls = d.first_failing = d.last_failing = 0;
  d.misuse.clear(), d.counts.clear();
  current = nullptr;
}
/// Lets no other process map memory. The device says so, unless `late`.
void fake_refuse_files(int late) {
  const lock held(all().mutex);
  (late != 0 ? all().permits_file_handles : all().file_handles) = false;
}
/// Offers handles of a fabric, and access by network devices. cuMemCreate still refuses some of them.
void fake_offer(int refused_types, int refuses_rdma) {
  driver& d = all();
  const lock held(d.mutex);
  d.fabric = d.rdma = true;
  d.refused_types = refused_types, d.refuses_rdma = refuses_rdma != 0;
}
/// The handle types of the latest chunk, and 256 more if network devices may access it.
int fake_latest_chunk() {
  const lock held(all().mutex);
  return all().latest_types + 256 * all().latest_rdma;
}
/// Makes the calls between two numbers fail, counted from now.
void fake_fail(unsigned long long first, unsigned long long last, int with) {
  driver& d = all();
  const lock held(d.mutex);
  d.calls = 0;
  d.first_failing = first, d.last_failing = last, d.failing_with = with;
}
unsigned long long fake_calls() {
  const lock held(all().mutex);
  return all().calls;
}
int fake_count(const char* name) {
  const lock held(all().mutex);
  return all().counts[name];
}
/// Gives a stream work. If work is held, it stays until a test finishes it or a thread waits for it.
void fake_hold(int holds) {
  const lock held(all().mutex);
  all().holds = holds != 0;
  advance(all());
}
void fake_submit(int device, void* stream) {
  const lock held(all().mutex);
  queue& q = all().streams[{device, stream}];
  ++q.given;
  q.tasks.push_back({});
  advance(all());
}
void fake_finish(int device, void* stream) {
  const lock held(all().mutex);
  finish(all(), {device, stream}, all().streams[{device, stream}].given);
}
/// Completes only the next task of a stream.
void fake_finish_one(int device, void* stream) {
  const lock held(all().mutex);
  finish(all(), {device, stream}, all().streams[{device, stream}].completed + 1);
}
void fake_end_stream(int device, void* stream) {
  const lock held(all().mutex);
  all().ended.insert({device, stream});
}
/// A context of a device that is not its primary one.
void* fake_other_context(int device) { return &all().other[static_cast<std::size_t>(device)]; }
/// The context of the calling thread.
void* fake_current() { return current; }
/// Whether work of a device may use all bytes from this address on.
int fake_usable(int device, address p, std::size_t bytes) {
  driver& d = all();
  const lock held(d.mutex);
  auto segment = d.segments.upper_bound(p);
  if (segment != d.segments.begin()) {
    --segment;
    if (p - segment->first < segment->second.bytes)
      return segment->second.device == device && bytes <= segment->second.bytes - (p - segment->first);
  }
  for (const address end = p + bytes; p < end;) {
    auto at = d.mappings.upper_bound(p);
    if (at == d.mappings.begin()) return 0;
    --at;
    if (p - at->first >= at->second.bytes || !at->second.granted) return 0;
    if (d.handles[at->second.handle].device != device) return 0;
    p = at->first + at->second.bytes;
  }
  return 1;
}
std::size_t fake_used(int device) {
  const lock held(all().mutex);
  return all().used[static_cast<std::size_t>(device)];
}
/// The number of objects that were not returned.
std::size_t fake_outstanding() {
  driver& d = all();
  const lock held(d.mutex);
  std::size_t count =
      d.segments.size() + d.ranges.size() + d.handles.size() + d.mappings.size() + d.events.size();
  for (const context& c : d.primary) count += static_cast<std::size_t>(c.retained);
  return count;
}
/// The first forbidden call, or an empty text.
const char* fake_misuse() {
  const lock held(all().mutex);
  return all().misuse.c_str();
}
}
