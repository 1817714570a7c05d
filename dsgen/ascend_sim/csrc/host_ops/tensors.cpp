// Tensors of the NPU seen as tensors of the CPU; part of libdsgen_host_ops.so. See tensors.h.
#include "host_ops/tensors.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty_strided.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace c10_npu {
// torch_npu/csrc/core/npu/NPUStream.h, whose other contents need more headers than the wheel has.
bool npuSynchronizeDevice(bool check_error);
}  // namespace c10_npu

namespace host {

bool is_on_npu(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == c10::DeviceType::PrivateUse1;
}

at::Tensor as_cpu(const at::Tensor& tensor) {
  c10::DataPtr data(const_cast<void*>(tensor.storage().data()), c10::Device(c10::kCPU));
  c10::Storage storage(c10::Storage::use_byte_size_t(), tensor.storage().nbytes(), std::move(data), nullptr, false);
  at::Tensor result = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  result.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sym_sizes(), tensor.sym_strides(),
                                                      tensor.sym_storage_offset());
  return result;
}

at::Tensor to_npu(const at::Tensor& tensor, c10::Device device) {
  if (!tensor.defined() || tensor.device().type() != c10::DeviceType::CPU) return tensor;
  const at::Tensor dense = tensor.is_non_overlapping_and_dense() ? tensor : tensor.contiguous();
  at::Tensor result = at::empty_strided(dense.sizes(), dense.strides(), dense.options().device(device));
  if (dense.numel() != 0)
    std::memcpy(const_cast<void*>(result.storage().data()), dense.const_data_ptr(),
                dense.numel() * dense.element_size());
  return result;
}

void wait_for_queues() { c10_npu::npuSynchronizeDevice(true); }

void note_use(const std::string& name) {
  static const char* path = std::getenv("DSGEN_SIMULATED_NPU_USED_OPS");
  if (path == nullptr || *path == '\0') return;
  const int file = open(path, O_WRONLY | O_CREAT | O_APPEND, 0644);
  TORCH_CHECK(file >= 0, "DSGEN_SIMULATED_NPU_USED_OPS: ", path, " cannot be written");
  const std::string line = name + "\n";
  // Several ranks append, each line with one call.
  TORCH_CHECK(write(file, line.data(), line.size()) == static_cast<ssize_t>(line.size()), path, " cannot be written");
  close(file);
}

}  // namespace host
