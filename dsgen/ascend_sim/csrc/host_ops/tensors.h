// The same bytes as a tensor of the NPU and as one of the CPU.
//
// This works because the simulated device memory is memory of the process (ascendcl/memory.cpp).
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace host {

bool is_on_npu(const at::Tensor& tensor);

// A CPU tensor over the memory of `tensor`, which must outlive it. Nothing is copied.
at::Tensor as_cpu(const at::Tensor& tensor);

// A copy of a CPU tensor in device memory that torch_npu's own allocator gives.
at::Tensor to_npu(const at::Tensor& tensor, c10::Device device);

// Waits until torch_npu has submitted all that stands in its task queues (TASK_QUEUE_ENABLE), since the CPU is going to
// read the memory. Raises what torch_npu raises when the device has failed.
void wait_for_queues();

// Appends the name of an operator that a process really used to the file of DSGEN_SIMULATED_NPU_USED_OPS.
void note_use(const std::string& name);

}  // namespace host
