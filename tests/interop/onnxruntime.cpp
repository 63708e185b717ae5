// needs: onnxruntime/onnxruntime_c_api.h
// links: onnxruntime
// flags: -O1
// SPDX-License-Identifier: Apache-2.0
// ONNX Runtime runs a model with its weights and activations in a pool of tessera.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include <onnxruntime/onnxruntime_c_api.h>

#include <tessera/interop/onnxruntime.hpp>

#include "beside.hpp"

namespace {

using interop_tests::check;
using interop_tests::pool_type;
using interop_tests::sample;

/// Writes a message in the format of protocol buffers.
class message {
 public:
  message& number(unsigned field, std::uint64_t value) {
    varint(field << 3);
    varint(value);
    return *this;
  }
  message& text(unsigned field, const std::string& value) {
    varint(field << 3 | 2);
    varint(value.size());
    bytes_ += value;
    return *this;
  }
  message& part(unsigned field, const message& value) { return text(field, value.bytes_); }
  [[nodiscard]] const std::string& bytes() const { return bytes_; }

 private:
  void varint(std::uint64_t value) {
    for (; value >= 128; value >>= 7) bytes_ += static_cast<char>(value | 128);
    bytes_ += static_cast<char>(value);
  }
  std::string bytes_;
};

constexpr std::int64_t inputs = 256, hidden = 4096, outputs = 1024;
constexpr int of_floats = 1;  // TensorProto.DataType.FLOAT

std::vector<float> random_floats(std::size_t count) {
  std::vector<float> values(count);
  std::uint32_t state = static_cast<std::uint32_t>(count) | 1;
  for (float& value : values) {
    state = state * 1664525 + 1013904223;
    value = static_cast<float>(state >> 8) / (1 << 24) - 0.5f;
  }
  return values;
}
/// TensorProto: the weights of a layer.
message weights(const char* name, const std::vector<std::int64_t>& sizes) {
  message made;
  std::size_t count = 1;
  for (const std::int64_t size : sizes) {
    made.number(1, static_cast<std::uint64_t>(size));
    count *= static_cast<std::size_t>(size);
  }
  const std::vector<float> values = random_floats(count);
  return made.number(2, of_floats)
      .text(8, name)
      .text(9, std::string(reinterpret_cast<const char*>(values.data()), count * sizeof(float)));
}
/// NodeProto: one operation.
message operation(const char* kind, const std::vector<const char*>& from, const char* to) {
  message made;
  for (const char* const input : from) made.text(1, input);
  return made.text(2, to).text(4, kind);
}
/// ValueInfoProto: rows of `columns` floats. The number of rows may vary.
message rows(const char* name, std::int64_t columns) {
  const message shape = message()
                            .part(1, message().text(2, "rows"))
                            .part(1, message().number(1, static_cast<std::uint64_t>(columns)));
  return message().text(1, name).part(2, message().part(1, message().number(1, of_floats).part(2, shape)));
}
/// ModelProto: y = relu(x a + b) c.
std::string model() {
  const message graph = message()
                            .part(1, operation("MatMul", {"x", "a"}, "xa"))
                            .part(1, operation("Add", {"xa", "b"}, "sum"))
                            .part(1, operation("Relu", {"sum"}, "positive"))
                            .part(1, operation("MatMul", {"positive", "c"}, "y"))
                            .text(2, "layers")
                            .part(5, weights("a", {inputs, hidden}))
                            .part(5, weights("b", {hidden}))
                            .part(5, weights("c", {hidden, outputs}))
                            .part(11, rows("x", inputs))
                            .part(12, rows("y", outputs));
  return message().number(1, 8).part(7, graph).part(8, message().number(2, 13)).bytes();
}
// ONNX Runtime packs both matrices for its kernels, in memory of the allocator. It uses `b` where the model was loaded.
constexpr std::size_t weight_bytes = sizeof(float) * (inputs * hidden + hidden * outputs);

const OrtApi& api() { return *OrtGetApiBase()->GetApi(ORT_API_VERSION); }
void need(OrtStatus* status) {
  if (status == nullptr) return;
  std::printf("FAILED: ONNX Runtime: %s\n", api().GetErrorMessage(status));
  std::exit(1);
}

/// Runs the model with batches of several sizes.
bool run_batches(OrtSession* session, const OrtMemoryInfo* host, sample& in, pool_type* pool) {
  bool is_right = true;
  for (const std::int64_t count : {64, 7, 200, 64, 33, 128}) {
    std::vector<float> x = random_floats(static_cast<std::size_t>(count * inputs));
    const std::int64_t shape[] = {count, inputs};
    OrtValue *input = nullptr, *output = nullptr;
    need(api().CreateTensorWithDataAsOrtValue(host, x.data(), x.size() * sizeof(float), shape, 2,
                                              ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &input));
    const char *const names[] = {"x"}, *const results[] = {"y"};
    in.time(5, [&] {
      if (output != nullptr) api().ReleaseValue(std::exchange(output, nullptr));
      need(api().Run(session, nullptr, names, &input, 1, results, 1, &output));
    });
    void* y = nullptr;
    need(api().GetTensorMutableData(output, &y));
    is_right =
        is_right && check(pool == nullptr || interop_tests::is_of(*pool, y), "the output is in the pool");
    in.add_floats(static_cast<const float*>(y), static_cast<std::size_t>(count * outputs));
    api().ReleaseValue(output);
    api().ReleaseValue(input);
  }
  return is_right;
}
/// The statistics of the registered allocator, as ONNX Runtime reads them.
bool reports(OrtAllocator* memory, pool_type& pool) {
  OrtKeyValuePairs* pairs = nullptr;
  need(api().AllocatorGetStats(memory, &pairs));
  const char* const in_use = api().GetKeyValue(pairs, "InUse");
  const bool is_right = in_use != nullptr && in_use == std::to_string(pool.current_usage().allocated);
  api().ReleaseKeyValuePairs(pairs);
  return check(is_right, "ONNX Runtime reads the bytes in use");
}

bool use(sample& in, pool_type* pool) {
  const std::string bytes = model();
  OrtEnv* environment = nullptr;
  OrtMemoryInfo *host = nullptr, *ours = nullptr;
  OrtSessionOptions* options = nullptr;
  OrtSession* session = nullptr;
  need(api().CreateEnv(ORT_LOGGING_LEVEL_WARNING, "tessera", &environment));
  need(api().CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &host));
  need(api().CreateCpuMemoryInfo(OrtDeviceAllocator, OrtMemTypeDefault, &ours));
  need(api().CreateSessionOptions(&options));
  need(api().SetIntraOpNumThreads(options, 1));
  using adaptor = tessera::interop::ort_allocator<OrtAllocator, OrtApi, pool_type>;
  std::optional<adaptor> memory;
  if (pool != nullptr) {
    memory.emplace(*pool, api(), ORT_API_VERSION, ours);
    need(api().RegisterAllocator(environment, &*memory));
    need(api().AddSessionConfigEntry(options, "session.use_env_allocators", "1"));
  }
  in.begin();
  need(api().CreateSessionFromArray(environment, bytes.data(), bytes.size(), options, &session));
  bool is_right = run_batches(session, host, in, pool);
  in.end(pool);
  if (pool != nullptr) {
    is_right = is_right && reports(&*memory, *pool) &&
               check(pool->current_usage().requested >= weight_bytes, "the weights are in the pool");
  }
  api().ReleaseSession(session);
  api().ReleaseSessionOptions(options);
  if (pool != nullptr) need(api().UnregisterAllocator(environment, ours));
  api().ReleaseEnv(environment);
  api().ReleaseMemoryInfo(host);
  api().ReleaseMemoryInfo(ours);
  return is_right;
}

}  // namespace

int main() { return interop_tests::run_beside("ONNX Runtime", use); }
