// What all parts of the simulated CANN share: settings, injected faults, errors, and the accounts of device memory.
//
// Everything is decided by environment variables, read when they are first needed. docs/ascend-sim.md describes them;
// they are parsed in simulation.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "acl/acl.h"

#define SIMULATED_API extern "C" __attribute__((visibility("default")))
#define SIMULATED_INTERNAL __attribute__((visibility("default")))

namespace simulation {

// ---- settings

// Devices that this process may use: those of the machine, or those of ASCEND_RT_VISIBLE_DEVICES.
SIMULATED_INTERNAL int device_count();
// Number of a visible device on the machine.
int device_on_machine(int device);
const std::string& soc_name();
SIMULATED_INTERNAL bool traces();

// ---- errors

// Every entry point that can fail begins with this: counts the call, and gives the error that a fault asks for here.
SIMULATED_INTERNAL aclError entered(const char* call);
// `code`, with a text that aclGetRecentErrMsg gives to this thread.
SIMULATED_INTERNAL aclError failed(aclError code, const std::string& text);
// As on hardware, what goes wrong on the device is told by the next call that waits for the device.
SIMULATED_INTERNAL void fail_device_later(aclError code, const std::string& text);
// The error that fail_device_later left. It stays: a failed device answers nothing else any more.
aclError device_error();
// Text of this thread's last error, which is forgotten by this.
const char* take_error_text();

// ---- faults of collectives

struct CollectiveFault {
  bool hang = false;
  int code = 0;  // an HcclResult; 0 means no fault
};
// To be called at the start of every collective; does not return where this rank has to die.
SIMULATED_INTERNAL CollectiveFault collective_begins();

// ---- device memory

// Takes `bytes` from the free memory of a device, or returns false when they are not there.
SIMULATED_INTERNAL bool take_memory(int device, size_t bytes);
SIMULATED_INTERNAL void give_memory_back(int device, size_t bytes);
size_t total_memory();
size_t free_memory(int device);

// ---- the device that a thread has set

SIMULATED_INTERNAL int current_device();
bool has_device();
void set_current_device(int device);

}  // namespace simulation

#define RETURN_IF_FAULT()                                              \
  do {                                                                 \
    if (aclError fault = simulation::entered(__func__)) return fault; \
  } while (0)
