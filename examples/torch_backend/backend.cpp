// SPDX-License-Identifier: Apache-2.0
// A backend of PyTorch for the device of memory.hpp, and all that it needs beside an allocator. Kernels run on the CPU.
#include <chrono>
#include <fstream>
#include <string>
#include <thread>

#include <ATen/EmptyTensor.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_cpu_dispatch.h>
#include <ATen/ops/as_strided_cpu_dispatch.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/set_cpu_dispatch.h>
#include <ATen/ops/view_cpu_dispatch.h>
#include <torch/library.h>

#include <tessera/observe/snapshot.hpp>
#include <tessera/observe/to_pickle.hpp>

#include "memory.hpp"

namespace chip {
namespace {

using guard = tessera::interop::torch_guard<device_memory>;
constexpr c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
at::Tensor empty(c10::IntArrayRef size, std::optional<c10::ScalarType> scalar, std::optional<c10::Layout>,
                 std::optional<c10::Device> device, std::optional<bool> is_pinned,
                 std::optional<c10::MemoryFormat> format) {
  TORCH_CHECK(!is_pinned.value_or(false), "only memory of the CPU can be pinned");
  const c10::OptionalDeviceGuard on(device);
  return at::detail::empty_generic(size, &devices::instance(), keys, c10::dtype_or_default(scalar), format);
}
at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride,
                         std::optional<c10::ScalarType> scalar, std::optional<c10::Layout>,
                         std::optional<c10::Device> device, std::optional<bool>) {
  const c10::OptionalDeviceGuard on(device);
  return at::detail::empty_strided_generic(size, stride, &devices::instance(), keys,
                                           c10::dtype_or_default(scalar));
}
/// The same memory as a tensor of the CPU.
at::Tensor on_host(const at::Tensor& of) {
  return at::from_blob(of.data_ptr(), of.sizes(), of.strides(), of.options().device(c10::kCPU));
}
/// Copies on the current stream of the device. The host waits, except in a non-blocking copy within a device or with pinned memory.
at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  devices::check_process();
  if (to.numel() == 0) return to;
  const c10::Stream stream = guard().getStream((to.is_cpu() ? from : to).device());
  const c10::DataPtr& other = (to.is_cpu() ? to : from).storage().data_ptr();
  const bool waits =
      !non_blocking || (from.device() != to.device() &&
                        !pinned::instance().record_event(other.get(), other.get_context(), stream));
  if (waits && !from.is_cpu()) guard().synchronizeStream(guard().getStream(from.device()));
  driver().submit(streams::to_stream(stream),
                  [target = on_host(to), source = on_host(from.expand_as(to))]() mutable {
                    const c10::InferenceMode inference;
                    target.copy_(source);
                  });
  if (waits) guard().synchronizeStream(stream);
  return to;
}
at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}
at::Scalar local_scalar_dense(const at::Tensor& of) { return of.cpu().item(); }
at::Tensor& set_storage(at::Tensor& self, at::Storage from, int64_t offset, c10::IntArrayRef size,
                        c10::IntArrayRef stride) {
  return at::cpu::set_(self, std::move(from), offset, size, stride);
}
void on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) { at::native::cpu_fallback(op, stack); }
// The operators of convolutions have other names for a backend, and one of them lacks the size of the bias.
void convolution_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const bool is_backward = op.schema().name() == "aten::convolution_backward_overrideable";
  if (is_backward) {
    const at::Tensor weight = (*stack)[stack->size() - 8].toTensor();
    const bool is_transposed = (*stack)[stack->size() - 4].toBool();
    stack->insert(stack->end() - 7, std::vector<int64_t>{weight.size(is_transposed ? 1 : 0)});
  }
  at::native::cpu_fallback(c10::Dispatcher::singleton().findSchemaOrThrow(
                               is_backward ? "aten::convolution_backward" : "aten::convolution", ""),
                           stack);
}
/// Keeps the current stream busy.
void busy(int64_t milliseconds) {
  driver().submit(streams::to_stream(guard().getStream(guard().getDevice())),
                  [=] { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); });
}
/// Writes what PyTorch's memory_viz and tessera-replay read.
void write_snapshot(const std::string& path, int64_t device) {
  std::ofstream file(path, std::ios::binary);
  file << tessera::observe::to_pickle(
      tessera::observe::take_snapshot(devices::front(static_cast<int>(device))));
  TORCH_CHECK(file.flush(), "the snapshot cannot be written to ", path);
}

C10_REGISTER_GUARD_IMPL(PrivateUse1, guard)
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &local_scalar_dense);
  m.impl("as_strided", &at::cpu::as_strided);
  m.impl("_reshape_alias", &at::cpu::_reshape_alias);
  for (const char* const name : {"convolution_overrideable", "convolution_backward_overrideable"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&convolution_on_cpu>());
  m.impl("view", &at::cpu::view);
  m.impl("resize_", &devices::resize_of);
  m.impl("set_.source_Storage", static_cast<at::Tensor& (*)(at::Tensor&, at::Storage)>(&at::cpu::set_));
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("record_stream", &devices::record_stream_of);
}
TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_cpu>()); }
TORCH_LIBRARY(chip, m) {
  m.def("busy", &busy);
  m.def("device_count", [] { return int64_t{device_count}; });
  m.def("is_forked", [] { return devices::is_forked(); });
  m.def("write_snapshot", &write_snapshot);
}
const bool is_registered = [] {
  c10::SetAllocator(devices::type(), &devices::instance());
  at::setHostAllocator(devices::type(), &pinned::instance());
  at::RegisterPrivateUse1HooksInterface(new tessera::interop::torch_hooks<device_memory, pinned_memory>);
  c10::register_privateuse1_backend("chip");
  return true;
}();

}  // namespace
}  // namespace chip
