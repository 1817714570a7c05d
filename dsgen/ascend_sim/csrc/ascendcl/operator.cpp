// Single operators of the simulated AscendCL; part of libascendcl.so.
//
// Nearly all computing is replaced one level higher, at torch's dispatcher (host_ops/kernels.cpp). What arrives here
// are the few operators that torch_npu's own C++ runs by itself. libdsgen_host_ops.so computes them; any other is
// refused by name, never skipped.
#include "ascendcl/operator.h"

#include <cstdio>

#include "acl/acl_op_compiler.h"
#include "ascendcl/simulation.h"

namespace {

struct Buffer {
  void* data;
  size_t bytes;
};

struct Description {
  aclDataType type;
  aclFormat format;
  std::vector<int64_t> sizes;
};

OperatorFunction g_function = nullptr;

const Description* description(const aclTensorDesc* pointer) { return reinterpret_cast<const Description*>(pointer); }

std::vector<OperatorTensor> tensors(int count, const aclTensorDesc* const descriptions[],
                                    const aclDataBuffer* const buffers[]) {
  std::vector<OperatorTensor> result;
  for (int i = 0; i < count; i++)
    result.push_back({description(descriptions[i])->type, description(descriptions[i])->sizes,
                      reinterpret_cast<const Buffer*>(buffers[i])->data});
  return result;
}

}  // namespace

void set_operator_function(OperatorFunction function) { g_function = function; }

SIMULATED_API aclError aclopCompileAndExecute(const char* name, int input_count, const aclTensorDesc* const inputs[],
                                              const aclDataBuffer* const input_data[], int output_count,
                                              const aclTensorDesc* const outputs[], aclDataBuffer* const output_data[],
                                              const aclopAttr*, aclopEngineType, aclopCompileType, const char*,
                                              aclrtStream) {
  RETURN_IF_FAULT();
  if (simulation::traces()) std::fprintf(stderr, "simulated NPU: operator %s\n", name);
  const OperatorCall call{name, tensors(input_count, inputs, input_data),
                          tensors(output_count, outputs, output_data)};
  if (g_function != nullptr && g_function(call)) return ACL_SUCCESS;
  std::fprintf(stderr, "simulated NPU: cannot compute the operator %s\n", name);
  return simulation::failed(ACL_ERROR_OP_NOT_FOUND, std::string("EZ9999: simulated NPU: the operator ") + name +
                                                        " is not simulated; DSGEN_SIMULATED_NPU_OPS=all lets torch "
                                                        "compute whatever it can");
}

// ---- descriptions of tensors

SIMULATED_API aclTensorDesc* aclCreateTensorDesc(aclDataType type, int count, const int64_t* sizes, aclFormat format) {
  return reinterpret_cast<aclTensorDesc*>(new Description{type, format, std::vector<int64_t>(sizes, sizes + count)});
}
SIMULATED_API void aclDestroyTensorDesc(const aclTensorDesc* pointer) { delete description(pointer); }
SIMULATED_API aclError aclGetTensorDescDimV2(const aclTensorDesc* pointer, size_t index, int64_t* size) {
  *size = description(pointer)->sizes.at(index);
  return ACL_SUCCESS;
}
SIMULATED_API aclFormat aclGetTensorDescFormat(const aclTensorDesc* pointer) { return description(pointer)->format; }
SIMULATED_API size_t aclGetTensorDescNumDims(const aclTensorDesc* pointer) {
  return description(pointer)->sizes.size();
}
SIMULATED_API aclDataType aclGetTensorDescType(const aclTensorDesc* pointer) { return description(pointer)->type; }
SIMULATED_API void aclSetTensorDescName(aclTensorDesc*, const char*) {}
SIMULATED_API aclError aclSetTensorFormat(aclTensorDesc*, aclFormat) { return ACL_SUCCESS; }
SIMULATED_API aclError aclSetTensorPlaceMent(aclTensorDesc*, aclMemType) { return ACL_SUCCESS; }
SIMULATED_API aclError aclSetTensorShape(aclTensorDesc*, int, const int64_t*) { return ACL_SUCCESS; }

SIMULATED_API aclDataBuffer* aclCreateDataBuffer(void* data, size_t bytes) {
  return reinterpret_cast<aclDataBuffer*>(new Buffer{data, bytes});
}
SIMULATED_API aclError aclDestroyDataBuffer(const aclDataBuffer* pointer) {
  delete reinterpret_cast<const Buffer*>(pointer);
  return ACL_SUCCESS;
}

// ---- attributes and compile options: none of the operators above reads one

SIMULATED_API aclopAttr* aclopCreateAttr() { return reinterpret_cast<aclopAttr*>(new char(0)); }
SIMULATED_API void aclopDestroyAttr(const aclopAttr* attributes) { delete reinterpret_cast<const char*>(attributes); }
SIMULATED_API aclError aclopSetAttrBool(aclopAttr*, const char*, uint8_t) { return ACL_SUCCESS; }
SIMULATED_API aclError aclopSetAttrDataType(aclopAttr*, const char*, aclDataType) { return ACL_SUCCESS; }
SIMULATED_API aclError aclopSetAttrFloat(aclopAttr*, const char*, float) { return ACL_SUCCESS; }
SIMULATED_API aclError aclopSetAttrInt(aclopAttr*, const char*, int64_t) { return ACL_SUCCESS; }
SIMULATED_API aclError aclopSetAttrListBool(aclopAttr*, const char*, int, const uint8_t*) { return ACL_SUCCESS; }
SIMULATED_API aclError aclopSetAttrListFloat(aclopAttr*, const char*, int, const float*) { return ACL_SUCCESS; }
SIMULATED_API aclError aclopSetAttrListInt(aclopAttr*, const char*, int, const int64_t*) { return ACL_SUCCESS; }
SIMULATED_API aclError aclopSetAttrListListInt(aclopAttr*, const char*, int, const int*, const int64_t* const[]) {
  return ACL_SUCCESS;
}
SIMULATED_API aclError aclopSetAttrString(aclopAttr*, const char*, const char*) { return ACL_SUCCESS; }
SIMULATED_API aclError aclSetCompileopt(aclCompileOpt, const char*) { return ACL_SUCCESS; }
SIMULATED_API size_t aclGetCompileoptSize(aclCompileOpt) { return 64; }
SIMULATED_API aclError aclGetCompileopt(aclCompileOpt, char* value, size_t room) {
  if (room != 0) value[0] = '\0';
  return ACL_SUCCESS;
}
