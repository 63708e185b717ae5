// needs: llama.h ggml-backend.h
// links: llama ggml ggml-base
// flags: -O1
// SPDX-License-Identifier: Apache-2.0
// llama.cpp runs a model, which this program writes, with its weights in a pool of tessera.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include <ggml-backend.h>
#include <ggml.h>
#include <gguf.h>
#include <llama.h>

#include <tessera/interop/ggml.hpp>

#include "beside.hpp"
#include "ggml_backend_types.hpp"

namespace {

using interop_tests::check;
using interop_tests::pool_type;
using interop_tests::sample;
using memory_type = tessera::interop::ggml_buffer_type<ggml_backend_cpu_buffer_from_ptr, pool_type>;

constexpr std::int64_t width = 256, hidden = 768, words = 512;
constexpr int layers = 4, heads = 8;

/// Writes tensors of random numbers, and the settings of a model, in the file format of llama.cpp.
class model_file {
 public:
  explicit model_file(const std::string& path) {
    gguf_set_val_str(file_, "general.architecture", "llama");
    gguf_set_val_str(file_, "tokenizer.ggml.model", "none");
    const auto set = [this](const char* key, std::int64_t value) {
      gguf_set_val_u32(file_, (std::string("llama.") + key).c_str(), static_cast<std::uint32_t>(value));
    };
    set("context_length", 256), set("embedding_length", width), set("block_count", layers);
    set("feed_forward_length", hidden), set("attention.head_count", heads),
        set("attention.head_count_kv", heads);
    set("rope.dimension_count", width / heads), set("vocab_size", words);
    gguf_set_val_f32(file_, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    add("token_embd.weight", width, words), add("output_norm.weight", width),
        add("output.weight", width, words);
    for (int i = 0; i < layers; ++i) {
      const std::string block = "blk." + std::to_string(i) + ".";
      add(block + "attn_norm.weight", width), add(block + "ffn_norm.weight", width);
      for (const char* const name : {"attn_q", "attn_k", "attn_v", "attn_output"})
        add(block + name + ".weight", width, width);
      add(block + "ffn_gate.weight", width, hidden), add(block + "ffn_up.weight", width, hidden);
      add(block + "ffn_down.weight", hidden, width);
    }
    is_written = gguf_write_to_file(file_, path.c_str(), false);
    gguf_free(file_);
    ggml_free(context_);
  }
  model_file(const model_file&) = delete;

  std::size_t tensor_bytes = 0;
  bool is_written = false;

 private:
  void add(const std::string& name, std::int64_t columns, std::int64_t rows = 1) {
    ggml_tensor* const made = rows == 1 ? ggml_new_tensor_1d(context_, GGML_TYPE_F32, columns)
                                        : ggml_new_tensor_2d(context_, GGML_TYPE_F32, columns, rows);
    auto* const values = static_cast<float*>(made->data);
    for (std::int64_t i = 0; i < columns * rows; ++i) {
      state_ = state_ * 1664525 + 1013904223;
      const float random = static_cast<float>(state_ >> 8) / (1 << 24) - 0.5f;
      values[i] = rows == 1 ? 1 + random / 4 : random / std::sqrt(static_cast<float>(columns)) * 4;
    }
    ggml_set_name(made, name.c_str());
    gguf_add_tensor(file_, made);
    tensor_bytes += ggml_nbytes(made);
  }
  gguf_context* file_ = gguf_init_empty();
  ggml_context* context_ = ggml_init({std::size_t{64} << 20, nullptr, false});
  std::uint32_t state_ = 1;
};

bool use(sample& in, pool_type* pool, const std::string& path, std::size_t tensor_bytes) {
  ggml_backend_load_all();
  std::optional<memory_type> memory;
  llama_model_tensor_buft_override overrides[2] = {};
  llama_model_params settings = llama_model_default_params();
  settings.load_mode = LLAMA_LOAD_MODE_NONE;  // reads the weights into buffers, in place of mapping the file
  settings.use_extra_bufts = false;           // keeps the weights as the file has them
  if (pool != nullptr) {
    memory.emplace(*pool, "tessera", ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU));
    overrides[0] = {".*", memory->get()};
    settings.tensor_buft_overrides = overrides;
  }
  in.begin();
  llama_model* model = nullptr;
  in.time(3, [&] {
    if (model != nullptr) llama_model_free(model);
    model = llama_model_load_from_file(path.c_str(), settings);
  });
  if (!check(model != nullptr, "llama.cpp loads the model")) return false;
  bool is_right = pool == nullptr ||
                  check(pool->current_usage().requested >= tensor_bytes, "all weights are in the pool");

  llama_context_params context_settings = llama_context_default_params();
  context_settings.n_ctx = 128;
  context_settings.n_batch = 64;
  context_settings.n_threads = context_settings.n_threads_batch = 1;
  llama_context* const context = llama_init_from_model(model, context_settings);
  if (!check(context != nullptr, "llama.cpp makes a context")) return false;
  std::vector<llama_token> tokens{1, 17, 300, 42, 5};
  llama_batch batch = llama_batch_get_one(tokens.data(), static_cast<std::int32_t>(tokens.size()));
  llama_token next = 0;
  in.time(1, [&] {
    for (int i = 0; i < 32; ++i) {
      is_right = check(llama_decode(context, batch) == 0, "llama.cpp decodes") && is_right;
      const float* const logits = llama_get_logits_ith(context, -1);
      in.add_floats(logits, words);
      next = static_cast<llama_token>(std::max_element(logits, logits + words) - logits);
      in.add(&next, sizeof next);
      batch = llama_batch_get_one(&next, 1);
    }
  });
  in.end(pool);
  llama_free(context);
  llama_model_free(model);
  return is_right;
}

}  // namespace

int main(int, char** arguments) {
  const auto quiet = [](ggml_log_level, const char*, void*) {};
  ggml_log_set(quiet, nullptr);
  llama_log_set(quiet, nullptr);
  if (!interop_tests::has_these_types()) return 0;
  const std::string path = std::string(arguments[0]) + ".gguf";
  const model_file file(path);
  if (!check(file.is_written, "the model is written")) return 1;
  const int code = interop_tests::run_beside(
      "llama.cpp", [&](sample& in, pool_type* pool) { return use(in, pool, path, file.tensor_bytes); });
  std::remove(path.c_str());
  return code;
}
