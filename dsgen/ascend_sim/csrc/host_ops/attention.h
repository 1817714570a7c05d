// Fused attention of the simulated NPU.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <string>

namespace host {

// Makes torch's definition of scaled_dot_product_attention use the operators below on the NPU.
void choose_fused_attention();

// The kernel for one of the two operators by which torch lets a backend bring its own fused attention; none for any
// other operator.
std::optional<c10::KernelFunction> attention_kernel(const std::string& name);

}  // namespace host
