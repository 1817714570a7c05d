// Device memory, host memory and copies of the simulated AscendCL; part of libascendcl.so.
//
// Real: the size of every device, what is allocated on it and by whom it is full, virtual memory (reserve, map, unmap)
// as torch_npu's expandable segments use it. Device memory is memory of the process that the kernel gives on first
// touch, so a device of 64 GiB costs nothing until it is written to.
// Not: memory of a device is counted per process, so two processes on one device do not see each other; physical
// memory that was unmapped has lost its content when it is mapped again; nothing is shared between processes.
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <unordered_map>

#include "ascendcl/simulation.h"

namespace {

constexpr aclError kOutOfMemory = 207001;
constexpr aclError kNotSupported = 207000;
constexpr size_t kHostAlignment = 4096;

struct Block {
  size_t bytes;
  int device;
};

std::mutex g_lock;  // guards both
std::unordered_map<void*, Block> g_blocks;
std::unordered_map<void*, size_t> g_mapped;

aclError out_of_memory(size_t bytes) {
  return simulation::failed(kOutOfMemory, "EL0004: Failed to allocate memory. simulated NPU: " + std::to_string(bytes) +
                                              " bytes asked for, " +
                                              std::to_string(simulation::free_memory(simulation::current_device())) +
                                              " free");
}

aclError allocate(void** pointer, size_t bytes) {
  const int device = simulation::current_device();
  const size_t mapped = bytes == 0 ? 1 : bytes;
  if (!simulation::take_memory(device, mapped)) return out_of_memory(bytes);
  void* memory = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    simulation::give_memory_back(device, mapped);
    return out_of_memory(bytes);
  }
  std::lock_guard<std::mutex> guard(g_lock);
  g_blocks[memory] = {mapped, device};
  *pointer = memory;
  return ACL_SUCCESS;
}

aclError map(void* address, size_t bytes, int protection) {
  void* memory = mmap(address, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  return memory == MAP_FAILED ? kOutOfMemory : ACL_SUCCESS;
}

aclError copy(void* to, size_t room, const void* from, size_t bytes) {
  if (bytes > room) return simulation::failed(ACL_ERROR_INVALID_PARAM, "simulated NPU: copy beyond the destination");
  // Source and destination may be the same memory.
  if (bytes != 0) std::memmove(to, from, bytes);
  return ACL_SUCCESS;
}

}  // namespace

SIMULATED_API aclError aclrtGetMemInfo(aclrtMemAttr, size_t* free, size_t* total) {
  RETURN_IF_FAULT();
  *free = simulation::free_memory(simulation::current_device());
  *total = simulation::total_memory();
  return ACL_SUCCESS;
}

SIMULATED_API aclError aclrtMalloc(void** pointer, size_t bytes, aclrtMemMallocPolicy) {
  RETURN_IF_FAULT();
  return allocate(pointer, bytes);
}

SIMULATED_API aclError aclrtMallocAlign32(void** pointer, size_t bytes, aclrtMemMallocPolicy) {
  RETURN_IF_FAULT();
  return allocate(pointer, bytes);
}

SIMULATED_API aclError aclrtFree(void* pointer) {
  RETURN_IF_FAULT();
  std::lock_guard<std::mutex> guard(g_lock);
  auto block = g_blocks.find(pointer);
  if (block == g_blocks.end()) return ACL_ERROR_INVALID_PARAM;
  simulation::give_memory_back(block->second.device, block->second.bytes);
  munmap(pointer, block->second.bytes);
  g_blocks.erase(block);
  return ACL_SUCCESS;
}

// ---- virtual memory. A handle of physical memory is only its size and device.

SIMULATED_API aclError aclrtReserveMemAddress(void** address, size_t bytes, size_t, void*, uint64_t) {
  RETURN_IF_FAULT();
  void* memory = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return out_of_memory(bytes);
  std::lock_guard<std::mutex> guard(g_lock);
  g_blocks[memory] = {bytes, -1};
  *address = memory;
  return ACL_SUCCESS;
}

SIMULATED_API aclError aclrtReleaseMemAddress(void* address) {
  std::lock_guard<std::mutex> guard(g_lock);
  auto block = g_blocks.find(address);
  if (block == g_blocks.end()) return ACL_ERROR_INVALID_PARAM;
  munmap(address, block->second.bytes);
  g_blocks.erase(block);
  return ACL_SUCCESS;
}

SIMULATED_API aclError aclrtMallocPhysical(aclrtDrvMemHandle* handle, size_t bytes, const aclrtPhysicalMemProp*,
                                           uint64_t) {
  RETURN_IF_FAULT();
  const int device = simulation::current_device();
  if (!simulation::take_memory(device, bytes)) return out_of_memory(bytes);
  *handle = reinterpret_cast<aclrtDrvMemHandle>(new Block{bytes, device});
  return ACL_SUCCESS;
}

SIMULATED_API aclError aclrtFreePhysical(aclrtDrvMemHandle handle) {
  Block* block = reinterpret_cast<Block*>(handle);
  simulation::give_memory_back(block->device, block->bytes);
  delete block;
  return ACL_SUCCESS;
}

SIMULATED_API aclError aclrtMapMem(void* address, size_t bytes, size_t, aclrtDrvMemHandle, uint64_t) {
  RETURN_IF_FAULT();
  std::lock_guard<std::mutex> guard(g_lock);
  g_mapped[address] = bytes;
  return map(address, bytes, PROT_READ | PROT_WRITE);
}

SIMULATED_API aclError aclrtUnmapMem(void* address) {
  std::lock_guard<std::mutex> guard(g_lock);
  auto mapped = g_mapped.find(address);
  if (mapped == g_mapped.end()) return ACL_ERROR_INVALID_PARAM;
  const size_t bytes = mapped->second;
  g_mapped.erase(mapped);
  return map(address, bytes, PROT_NONE);
}

SIMULATED_API aclError aclrtMemExportToShareableHandle(aclrtDrvMemHandle, aclrtMemHandleType, uint64_t, uint64_t*) {
  return kNotSupported;
}
SIMULATED_API aclError aclrtMemImportFromShareableHandle(uint64_t, int32_t, aclrtDrvMemHandle*) {
  return kNotSupported;
}
SIMULATED_API aclError aclrtMemSetPidToShareableHandle(uint64_t, int32_t*, size_t) { return kNotSupported; }

// ---- host memory

SIMULATED_API aclError aclrtMallocHost(void** pointer, size_t bytes) {
  RETURN_IF_FAULT();
  return posix_memalign(pointer, kHostAlignment, bytes == 0 ? 1 : bytes) == 0 ? ACL_SUCCESS : kOutOfMemory;
}

SIMULATED_API aclError aclrtFreeHost(void* pointer) {
  std::free(pointer);
  return ACL_SUCCESS;
}

SIMULATED_API aclError aclrtHostRegister(void* pointer, uint64_t, aclrtHostRegisterType, void** device_pointer) {
  if (device_pointer != nullptr) *device_pointer = pointer;
  return ACL_SUCCESS;
}
SIMULATED_API aclError aclrtHostRegisterV2(void*, uint64_t, uint32_t) { return ACL_SUCCESS; }
SIMULATED_API aclError aclrtHostUnregister(void*) { return ACL_SUCCESS; }

SIMULATED_API aclError aclrtPointerGetAttributes(const void*, aclrtPtrAttributes* attributes) {
  std::memset(attributes, 0, sizeof *attributes);
  return ACL_SUCCESS;
}

// ---- copies

SIMULATED_API aclError aclrtMemcpy(void* to, size_t room, const void* from, size_t bytes, aclrtMemcpyKind) {
  RETURN_IF_FAULT();
  return copy(to, room, from, bytes);
}

SIMULATED_API aclError aclrtMemcpyAsync(void* to, size_t room, const void* from, size_t bytes, aclrtMemcpyKind,
                                        aclrtStream) {
  RETURN_IF_FAULT();
  return copy(to, room, from, bytes);
}

SIMULATED_API aclError aclrtMemcpyAsyncWithCondition(void* to, size_t room, const void* from, size_t bytes,
                                                     aclrtMemcpyKind, aclrtStream) {
  RETURN_IF_FAULT();
  return copy(to, room, from, bytes);
}

SIMULATED_API aclError aclrtMemset(void* to, size_t room, int32_t value, size_t bytes) {
  RETURN_IF_FAULT();
  if (bytes > room) return ACL_ERROR_INVALID_PARAM;
  std::memset(to, value, bytes);
  return ACL_SUCCESS;
}

SIMULATED_API aclError aclrtMemsetAsync(void* to, size_t room, int32_t value, size_t bytes, aclrtStream) {
  return aclrtMemset(to, room, value, bytes);
}
