// Reductions of the simulated HCCL; part of libhccl.so. See reduce.h.
#include "hccl/reduce.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cstdint>

namespace {

template <class Value>
Value combine(Value a, Value b, HcclReduceOp op) {
  switch (op) {
    case HCCL_REDUCE_PROD:
      return a * b;
    case HCCL_REDUCE_MAX:
      return std::max(a, b);
    case HCCL_REDUCE_MIN:
      return std::min(a, b);
    default:
      return a + b;
  }
}

template <class Element, class Sum = Element>
bool reduce_as(void* result, const std::vector<const void*>& buffers, size_t count, HcclReduceOp op) {
  auto* to = static_cast<Element*>(result);
  for (size_t i = 0; i < count; i++) {
    Sum sum = static_cast<Sum>(static_cast<const Element*>(buffers[0])[i]);
    for (size_t rank = 1; rank < buffers.size(); rank++)
      sum = combine<Sum>(sum, static_cast<Sum>(static_cast<const Element*>(buffers[rank])[i]), op);
    to[i] = static_cast<Element>(sum);
  }
  return true;
}

}  // namespace

size_t element_bytes(HcclDataType type) {
  switch (type) {
    case HCCL_DATA_TYPE_INT8:
    case HCCL_DATA_TYPE_UINT8:
      return 1;
    case HCCL_DATA_TYPE_INT16:
    case HCCL_DATA_TYPE_UINT16:
    case HCCL_DATA_TYPE_FP16:
    case HCCL_DATA_TYPE_BFP16:
      return 2;
    case HCCL_DATA_TYPE_INT32:
    case HCCL_DATA_TYPE_UINT32:
    case HCCL_DATA_TYPE_FP32:
      return 4;
    case HCCL_DATA_TYPE_INT64:
    case HCCL_DATA_TYPE_UINT64:
    case HCCL_DATA_TYPE_FP64:
      return 8;
    default:
      return 0;
  }
}

bool reduce(void* result, const std::vector<const void*>& buffers, size_t count, HcclDataType type, HcclReduceOp op) {
  switch (type) {
    case HCCL_DATA_TYPE_INT8:
      return reduce_as<int8_t>(result, buffers, count, op);
    case HCCL_DATA_TYPE_INT16:
      return reduce_as<int16_t>(result, buffers, count, op);
    case HCCL_DATA_TYPE_INT32:
      return reduce_as<int32_t>(result, buffers, count, op);
    case HCCL_DATA_TYPE_INT64:
      return reduce_as<int64_t>(result, buffers, count, op);
    case HCCL_DATA_TYPE_FP32:
      return reduce_as<float>(result, buffers, count, op);
    case HCCL_DATA_TYPE_FP16:
      return reduce_as<c10::Half, float>(result, buffers, count, op);
    case HCCL_DATA_TYPE_BFP16:
      return reduce_as<c10::BFloat16, float>(result, buffers, count, op);
    default:
      return false;
  }
}
