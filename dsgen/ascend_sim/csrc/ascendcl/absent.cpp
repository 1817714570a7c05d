// Parts of CANN that torch_npu links against and this simulation does not have; part of libascendcl.so.
//
// Profiling and dumps are accepted and record nothing. Kernels that a program brings as binaries are refused.
#include "ascendcl/simulation.h"

namespace {
constexpr aclError kNotSupported = 207000;
}

SIMULATED_API aclError aclmdlInitDump() { return ACL_SUCCESS; }
SIMULATED_API aclError aclmdlFinalizeDump() { return ACL_SUCCESS; }
SIMULATED_API aclError aclmdlSetDump(const char*) { return ACL_SUCCESS; }

SIMULATED_API uint64_t MsprofGetHashId(const char*, size_t) { return 0; }
SIMULATED_API int32_t MsprofRegisterCallback(uint32_t, void*) { return 0; }
SIMULATED_API int32_t MsprofReportAdditionalInfo(uint32_t, const void*, uint32_t) { return 0; }
SIMULATED_API int32_t MsprofReportApi(uint32_t, const void*) { return 0; }
SIMULATED_API int32_t MsprofReportCompactInfo(uint32_t, const void*, uint32_t) { return 0; }
SIMULATED_API uint64_t MsprofSysCycleTime() { return 0; }

SIMULATED_API aclError aclrtBinaryGetFunction(const aclrtBinHandle, const char*, aclrtFuncHandle*) {
  return kNotSupported;
}
SIMULATED_API aclError aclrtBinaryLoadFromData(const void*, size_t, const aclrtBinaryLoadOptions*, aclrtBinHandle*) {
  return kNotSupported;
}
SIMULATED_API aclError aclrtGetFunctionAddr(aclrtFuncHandle, void**, void**) { return kNotSupported; }
SIMULATED_API int rtDevBinaryRegister(const void*, void**) { return kNotSupported; }
SIMULATED_API int rtFunctionRegister(void*, const void*, const char*, const void*, uint32_t) { return kNotSupported; }
SIMULATED_API int rtGetC2cCtrlAddr(uint64_t*, uint32_t*) { return kNotSupported; }
SIMULATED_API int rtKernelLaunch(const void*, uint32_t, void*, uint32_t, void*, void*) { return kNotSupported; }
