// Fused attention of the simulated NPU: torch's flash attention for CPU; part of libdsgen_host_ops.so.
//
// On hardware torch_npu answers scaled_dot_product_attention with npu_fusion_attention, which keeps query, key, value,
// output and one number per row, and no matrix of sequence length squared. This does the same, so that peak memory is
// counted alike. Upstream's own way for other backends is used: their choice between the implementations is the
// `overrideable` one, which is a pair of operators.
#include "host_ops/attention.h"

#include <ATen/core/Tensor.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>

#include "host_ops/tensors.h"

namespace host {
namespace {

using at::Tensor;

// Values of sdp::SDPBackend (aten/src/ATen/native/transformers/sdp_utils_cpp.h upstream).
constexpr int64_t kMath = 0;
constexpr int64_t kOverrideable = 4;

const std::string kForward = "aten::_scaled_dot_product_fused_attention_overrideable";
const std::string kBackward = kForward + "_backward";

int64_t choose(const Tensor& query, const Tensor&, const Tensor&, const std::optional<Tensor>&, double dropout, bool,
               std::optional<double>, bool) {
  // The CPU's kernel knows neither dropout nor other shapes.
  return dropout > 0 || query.dim() != 4 ? kMath : kOverrideable;
}

// (batch, heads, length, size) with one key and value head for every query head.
Tensor repeated(const Tensor& heads, int64_t wanted) {
  const int64_t there = heads.size(1);
  return there == wanted ? heads : heads.repeat_interleave(wanted / there, 1);
}

Tensor summed(const Tensor& gradient, int64_t wanted) {
  const int64_t there = gradient.size(1);
  return there == wanted ? gradient : gradient.unflatten(1, {wanted, there / wanted}).sum(2);
}

std::optional<Tensor> mask_on_host(const std::optional<Tensor>& mask, const Tensor& query) {
  if (!mask.has_value() || !mask->defined()) return std::nullopt;
  return as_cpu(*mask).to(query.scalar_type());
}

std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor> forward(
    const Tensor& query, const Tensor& key, const Tensor& value, const std::optional<Tensor>& mask, double,
    bool causal, bool, std::optional<double> scale) {
  static const bool noted = (note_use(kForward), true);
  static_cast<void>(noted);
  wait_for_queues();
  const Tensor q = as_cpu(query);
  auto [output, sums] = at::_scaled_dot_product_flash_attention_for_cpu(
      q, repeated(as_cpu(key), q.size(1)), repeated(as_cpu(value), q.size(1)), 0.0, causal, mask_on_host(mask, q),
      scale);
  const c10::Device device = query.device();
  return {to_npu(output, device), to_npu(sums, device), Tensor(), Tensor(), query.sym_size(2), key.sym_size(2),
          Tensor(), Tensor(), Tensor()};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> backward(const Tensor& gradient, const Tensor& query, const Tensor& key,
                                                    const Tensor& value, const Tensor& mask, std::array<bool, 4>,
                                                    const Tensor& output, const Tensor& sums, const Tensor&,
                                                    const Tensor&, c10::SymInt, c10::SymInt, double, bool causal,
                                                    const Tensor&, const Tensor&, std::optional<double> scale) {
  static const bool noted = (note_use(kBackward), true);
  static_cast<void>(noted);
  wait_for_queues();
  const Tensor q = as_cpu(query);
  auto [q_gradient, k_gradient, v_gradient] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      as_cpu(gradient).contiguous(), q, repeated(as_cpu(key), q.size(1)), repeated(as_cpu(value), q.size(1)),
      as_cpu(output), as_cpu(sums), 0.0, causal, mask_on_host(mask, q), scale);
  const c10::Device device = query.device();
  return {to_npu(q_gradient, device), to_npu(summed(k_gradient, key.size(1)), device),
          to_npu(summed(v_gradient, value.size(1)), device), Tensor()};
}

}  // namespace

void choose_fused_attention() { at::native::_fused_sdp_choice_stub.set_privateuse1_dispatch_ptr(&choose); }

std::optional<c10::KernelFunction> attention_kernel(const std::string& name) {
  if (name == kForward) return c10::KernelFunction::makeFromUnboxedRuntimeFunction(&forward);
  if (name == kBackward) return c10::KernelFunction::makeFromUnboxedRuntimeFunction(&backward);
  return std::nullopt;
}

}  // namespace host
