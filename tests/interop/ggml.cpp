// needs: ggml-backend.h
// links: ggml ggml-base
// flags: -O1
// SPDX-License-Identifier: Apache-2.0
// ggml computes a graph whose weights and intermediate tensors are in a pool of tessera.
#include <cstdint>
#include <cstdlib>
#include <vector>

#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml.h>

#include <tessera/interop/ggml.hpp>

#include "beside.hpp"
#include "ggml_backend_types.hpp"

namespace {

using interop_tests::check;
using interop_tests::pool_type;
using interop_tests::sample;
using memory_type = tessera::interop::ggml_buffer_type<ggml_backend_cpu_buffer_from_ptr, pool_type>;

constexpr std::int64_t width = 512, hidden = 2048;
constexpr int layers = 4;

void fill(ggml_tensor* tensor) {
  std::vector<float> values(static_cast<std::size_t>(ggml_nelements(tensor)));
  std::uint32_t state = static_cast<std::uint32_t>(values.size()) | 1;
  for (float& value : values) {
    state = state * 1664525 + 1013904223;
    value = (static_cast<float>(state >> 8) / (1 << 24) - 0.5f) / 16;
  }
  ggml_backend_tensor_set(tensor, values.data(), 0, ggml_nbytes(tensor));
}

/// Layers of a network, in one buffer of a type.
struct network {
  ggml_context* context = ggml_init({16 * ggml_tensor_overhead(), nullptr, true});
  std::vector<ggml_tensor*> up, down;
  ggml_backend_buffer_t buffer;

  explicit network(ggml_backend_buffer_type_t type) {
    for (int i = 0; i < layers; ++i) {
      up.push_back(ggml_new_tensor_2d(context, GGML_TYPE_F32, width, hidden));
      down.push_back(ggml_new_tensor_2d(context, GGML_TYPE_F32, hidden, width));
    }
    buffer = ggml_backend_alloc_ctx_tensors_from_buft(context, type);
    for (int i = 0; i < layers; ++i) fill(up[i]), fill(down[i]);
  }
  network(const network&) = delete;
  ~network() {
    ggml_backend_buffer_free(buffer);
    ggml_free(context);
  }
};

/// Computes a batch of rows; an allocator of graphs places the intermediate tensors.
void compute(sample& in, const network& net, ggml_backend_t backend, ggml_gallocr_t places,
             std::int64_t rows) {
  ggml_context* const context =
      ggml_init({64 * ggml_tensor_overhead() + ggml_graph_overhead(), nullptr, true});
  ggml_tensor* const x = ggml_new_tensor_2d(context, GGML_TYPE_F32, width, rows);
  ggml_set_input(x);
  ggml_tensor* y = x;
  for (int i = 0; i < layers; ++i)
    y = ggml_add(context, y,
                 ggml_mul_mat(context, net.down[i], ggml_relu(context, ggml_mul_mat(context, net.up[i], y))));
  ggml_set_output(y);
  ggml_cgraph* const graph = ggml_new_graph(context);
  ggml_build_forward_expand(graph, y);
  if (!ggml_gallocr_alloc_graph(places, graph)) std::exit(1);
  fill(x);
  in.time(3, [&] {
    if (ggml_backend_graph_compute(backend, graph) != GGML_STATUS_SUCCESS) std::exit(1);
  });
  std::vector<float> result(static_cast<std::size_t>(ggml_nelements(y)));
  ggml_backend_tensor_get(y, result.data(), 0, ggml_nbytes(y));
  in.add_floats(result.data(), result.size());
  ggml_free(context);
}

bool use(sample& in, pool_type* pool) {
  ggml_backend_t const backend = ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr);
  if (!check(backend != nullptr, "ggml has a backend for the CPU")) return false;
  std::optional<memory_type> memory;
  if (pool != nullptr) memory.emplace(*pool, "tessera", ggml_backend_get_device(backend));
  ggml_backend_buffer_type_t const type =
      memory ? memory->get() : ggml_backend_get_default_buffer_type(backend);
  bool is_right = check(ggml_backend_supports_buft(backend, type), "the backend takes buffers of the type");
  in.begin();
  {
    const network net(type);
    ggml_gallocr_t const places = ggml_gallocr_new(type);
    for (const std::int64_t rows : {16, 64, 5, 128}) compute(in, net, backend, places, rows);
    in.end(pool);
    if (pool != nullptr) {
      const std::size_t expected =
          ggml_backend_buffer_get_size(net.buffer) + ggml_gallocr_get_buffer_size(places, 0);
      is_right = check(pool->current_usage().requested == expected, "every buffer is in the pool") &&
                 check(interop_tests::is_of(*pool, ggml_backend_buffer_get_base(net.buffer)),
                       "the weights are in the pool") &&
                 check(ggml_backend_buffer_is_host(net.buffer), "the buffer is host memory") && is_right;
      ggml_backend_buffer_t const large = ggml_backend_buft_alloc_buffer(type, std::size_t{1} << 50);
      is_right = check(large == nullptr, "a buffer is null if memory is full") && is_right;
    }
    ggml_gallocr_free(places);
  }
  ggml_backend_free(backend);
  return is_right;
}

}  // namespace

int main() {
  ggml_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  if (!interop_tests::has_these_types()) return 0;
  return interop_tests::run_beside("ggml", [](sample& in, pool_type* pool) {
    ggml_backend_load_all();
    return use(in, pool);
  });
}
