// Element sizes and reductions of the simulated HCCL.
#pragma once

#include <cstddef>
#include <vector>

#include "hccl_types.h"

// Bytes of an element; 0 for a type that HCCL knows and this simulation does not.
size_t element_bytes(HcclDataType type);

// Reduces one buffer of `count` elements per rank, in the order of the ranks, into `result`, which may be one of them.
// Half-precision types are added up in fp32 and rounded once. False for types that HCCL does not reduce.
bool reduce(void* result, const std::vector<const void*>& buffers, size_t count, HcclDataType type, HcclReduceOp op);
