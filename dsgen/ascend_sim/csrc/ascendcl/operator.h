// How libascendcl.so hands an operator to libdsgen_host_ops.so, which has torch to compute it with.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "acl/acl.h"

// One input or output of an operator: dense memory and what it holds.
struct OperatorTensor {
  aclDataType type;
  std::vector<int64_t> sizes;
  void* data;
};

struct OperatorCall {
  const char* name;
  std::vector<OperatorTensor> inputs;
  std::vector<OperatorTensor> outputs;
};

// True when the operator was computed.
using OperatorFunction = bool (*)(const OperatorCall&);

void set_operator_function(OperatorFunction function);
