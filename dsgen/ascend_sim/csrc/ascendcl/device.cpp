// Devices, contexts, versions and system parameters of the simulated AscendCL; part of libascendcl.so.
//
// Real: the number of devices, the mask of visible ones, which device a thread has set, the errors for wrong numbers.
// Not: contexts are only names of devices, and system parameters are accepted and forgotten.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "ascendcl/operator.h"
#include "ascendcl/simulation.h"

namespace {

constexpr aclError kInvalidDevice = 107001;
constexpr aclError kNoContext = 107002;
constexpr int kCoresOfDevice = 24;
// A context is never dereferenced by its users, so the number of its device is enough; 0 would be no context.
constexpr uintptr_t kFirstContext = 0x1000;

}  // namespace

SIMULATED_API aclError aclInit(const char*) {
  RETURN_IF_FAULT();
  std::fprintf(stderr,
               "simulated NPU: %d x %s of %.2f GiB, computed by the CPU; "
               "no figure of this process is one of hardware\n",
               simulation::device_count(), simulation::soc_name().c_str(),
               static_cast<double>(simulation::total_memory()) / (1 << 30));
  // Needs torch, which other users of CANN (and torch_npu itself, while it is being loaded) do not have yet.
  void* library = dlopen("libdsgen_host_ops.so", RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    std::fprintf(stderr, "simulated NPU: %s\n", dlerror());
    return ACL_ERROR_INTERNAL_ERROR;
  }
  auto install = reinterpret_cast<int (*)()>(dlsym(library, "dsgen_install_host_ops"));
  if (install == nullptr || install() != 0) return ACL_ERROR_INTERNAL_ERROR;
  set_operator_function(reinterpret_cast<OperatorFunction>(dlsym(library, "dsgen_run_operator")));
  return ACL_SUCCESS;
}

SIMULATED_API aclError aclFinalize() { return ACL_SUCCESS; }
SIMULATED_API const char* aclGetRecentErrMsg() { return simulation::take_error_text(); }
SIMULATED_API void aclAppLog(aclLogLevel, const char*, const char*, uint32_t, const char*, ...) {}
SIMULATED_API aclError aclrtPeekAtLastError(aclrtLastErrLevel) { return ACL_SUCCESS; }
SIMULATED_API aclError aclrtGetLastError(aclrtLastErrLevel) { return ACL_SUCCESS; }

SIMULATED_API const char* aclrtGetSocName() { return simulation::soc_name().c_str(); }

SIMULATED_API aclError aclrtGetDeviceCount(uint32_t* count) {
  RETURN_IF_FAULT();
  *count = static_cast<uint32_t>(simulation::device_count());
  return ACL_SUCCESS;
}

SIMULATED_API aclError aclrtSetDevice(int32_t device) {
  RETURN_IF_FAULT();
  if (device < 0 || device >= simulation::device_count())
    return simulation::failed(kInvalidDevice, "EE1001: The argument is invalid. simulated NPU: set device=" +
                                                  std::to_string(device) + ", valid device range is [0, " +
                                                  std::to_string(simulation::device_count()) + ")");
  simulation::set_current_device(device);
  return ACL_SUCCESS;
}

SIMULATED_API aclError aclrtGetDevice(int32_t* device) {
  if (!simulation::has_device()) return kNoContext;
  *device = simulation::current_device();
  return ACL_SUCCESS;
}

SIMULATED_API aclError aclrtResetDevice(int32_t) { return ACL_SUCCESS; }

SIMULATED_API aclError aclrtGetCurrentContext(aclrtContext* context) {
  if (!simulation::has_device()) return kNoContext;
  *context = reinterpret_cast<void*>(kFirstContext + simulation::current_device());
  return ACL_SUCCESS;
}

SIMULATED_API aclError aclrtSetCurrentContext(aclrtContext context) {
  simulation::set_current_device(static_cast<int>(reinterpret_cast<uintptr_t>(context) - kFirstContext));
  return ACL_SUCCESS;
}

SIMULATED_API aclError aclrtGetPrimaryCtxState(int32_t, uint32_t*, int32_t* active) {
  if (active != nullptr) *active = 1;
  return ACL_SUCCESS;
}

SIMULATED_API aclError aclrtGetLogicDevIdByUserDevId(const int32_t user, int32_t* const logical) {
  *logical = user;
  return ACL_SUCCESS;
}

SIMULATED_API aclError aclGetDeviceCapability(uint32_t, aclDeviceInfo, int64_t* value) {
  *value = kCoresOfDevice;
  return ACL_SUCCESS;
}

SIMULATED_API aclError aclrtGetDeviceInfo(uint32_t, aclrtDevAttr, int64_t* value) {
  *value = kCoresOfDevice;
  return ACL_SUCCESS;
}

SIMULATED_API aclError aclrtDeviceCanAccessPeer(int32_t* can, int32_t, int32_t) {
  *can = 1;
  return ACL_SUCCESS;
}

SIMULATED_API aclError aclrtDeviceEnablePeerAccess(int32_t, uint32_t) { return ACL_SUCCESS; }

SIMULATED_API aclError aclrtDeviceGetBareTgid(int32_t* process) {
  *process = getpid();
  return ACL_SUCCESS;
}

SIMULATED_API aclError aclsysGetCANNVersion(aclCANNPackageName, aclCANNPackageVersion* version) {
  std::memset(version, 0, sizeof *version);
  std::strcpy(version->version, DSGEN_SIMULATED_CANN);
  return ACL_SUCCESS;
}

SIMULATED_API aclError aclsysGetVersionStr(char*, char* version) {
  std::strcpy(version, DSGEN_SIMULATED_CANN);
  return ACL_SUCCESS;
}

SIMULATED_API aclError aclrtSetDeviceSatMode(aclrtFloatOverflowMode) { return ACL_SUCCESS; }
SIMULATED_API aclError aclrtSetOpExecuteTimeOut(uint32_t) { return ACL_SUCCESS; }
SIMULATED_API aclError aclrtSetOpWaitTimeout(uint32_t) { return ACL_SUCCESS; }
SIMULATED_API aclError aclrtSetSysParamOpt(aclSysParamOpt, int64_t) { return ACL_SUCCESS; }
SIMULATED_API aclError aclrtCtxSetSysParamOpt(aclSysParamOpt, int64_t) { return ACL_SUCCESS; }

SIMULATED_API aclError aclrtSetOpExecuteTimeOutV2(uint64_t, uint64_t* actual) {
  if (actual != nullptr) *actual = 0;
  return ACL_SUCCESS;
}

SIMULATED_API aclError aclrtGetSysParamOpt(aclSysParamOpt, int64_t* value) {
  *value = 0;
  return ACL_SUCCESS;
}
