// The single operators of AscendCL that torch_npu's own C++ runs, computed by torch; part of libdsgen_host_ops.so.
#include <ATen/core/Tensor.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/InferenceMode.h>

#include <map>

#include "ascendcl/operator.h"

namespace {

const std::map<aclDataType, at::ScalarType> kTypes = {
    {ACL_FLOAT, at::kFloat}, {ACL_FLOAT16, at::kHalf}, {ACL_BF16, at::kBFloat16}, {ACL_DOUBLE, at::kDouble},
    {ACL_INT8, at::kChar},   {ACL_INT16, at::kShort},  {ACL_INT32, at::kInt},     {ACL_INT64, at::kLong},
    {ACL_UINT8, at::kByte},  {ACL_BOOL, at::kBool}};

at::Tensor tensor(const OperatorTensor& description) {
  return at::from_blob(description.data, description.sizes, kTypes.at(description.type));
}

// Padding per dimension, as CANN has it (before, after), to torch's order, which begins with the last dimension.
std::vector<int64_t> padding(const at::Tensor& pairs) {
  const at::Tensor numbers = pairs.to(at::kLong).flatten();
  std::vector<int64_t> result;
  for (int64_t i = numbers.numel() - 2; i >= 0; i -= 2) {
    result.push_back(numbers[i].item<int64_t>());
    result.push_back(numbers[i + 1].item<int64_t>());
  }
  return result;
}

bool run(const OperatorCall& call) {
  const std::string name = call.name;
  const auto& inputs = call.inputs;
  at::Tensor output = tensor(call.outputs.at(0));
  if (name == "ZerosLike") {
    output.zero_();
  } else if (name == "OnesLike") {
    output.fill_(1);
  } else if (name == "Fill" && inputs.size() == 2) {
    output.copy_(tensor(inputs[1]).reshape({}).expand_as(output));
  } else if (name == "Identity" || name == "TensorMove" || name == "Cast") {
    output.copy_(tensor(inputs.at(0)).view(output.sizes()));
  } else if (name == "PadV3" && inputs.size() == 3) {
    output.copy_(at::constant_pad_nd(tensor(inputs[0]), padding(tensor(inputs[1])), tensor(inputs[2]).item()));
  } else {
    return false;
  }
  return true;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) bool dsgen_run_operator(const OperatorCall& call) {
  for (const auto& description : call.inputs)
    if (kTypes.count(description.type) == 0) return false;
  for (const auto& description : call.outputs)
    if (kTypes.count(description.type) == 0) return false;
  // Called from a thread that may stand anywhere inside autograd.
  c10::InferenceMode guard;
  return run(call);
}
