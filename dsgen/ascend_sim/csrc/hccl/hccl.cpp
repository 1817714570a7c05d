// The C interface of the simulated HCCL (libhccl.so), as torch_npu's ProcessGroupHCCL calls it.
//
// Real: communicators, every collective and point-to-point call between processes of one machine, the time-outs
// HCCL_CONNECT_TIMEOUT and HCCL_EXEC_TIMEOUT, the device memory of a communicator (twice HCCL_BUFFSIZE), errors of
// ranks that disagree.
// Not: a call ends when its data is there, so nothing overlaps; there is one host and no network; algorithms, links and
// retries of HCCL do not exist.
#include "hccl.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "hccl/mailbox.h"
#include "hccl/reduce.h"
#include "ascendcl/simulation.h"

namespace {

using Part = Communicator::Part;
using Parts = std::vector<Part>;

constexpr double kExecTimeout = 1836;
constexpr size_t kBufferMib = 200;
// What the runtime answers when a task on the device waited for a peer too long.
constexpr aclError kTaskTimeout = 507048;

const char* as_bytes(const void* pointer) { return static_cast<const char*>(pointer); }
char* as_bytes(void* pointer) { return static_cast<char*>(pointer); }
Communicator& communicator(HcclComm handle) { return *static_cast<Communicator*>(handle); }
const uint64_t* counts(const void* pointer) { return static_cast<const uint64_t*>(pointer); }

double exec_timeout() {
  const char* value = std::getenv("HCCL_EXEC_TIMEOUT");
  return value == nullptr || *value == '\0' ? kExecTimeout : std::atof(value);
}

// A peer that does not come is no error of this call, which on hardware only submits: the device reports it later.
HcclResult finish(Communicator& comm, HcclResult result) {
  if (result != HCCL_E_TIMEOUT) return result;
  simulation::fail_device_later(
      kTaskTimeout,
      "EI0002: [PID: " + std::to_string(getpid()) +
          "] The wait execution of the Notify register times out. Reason: The Notify register has not received the "
          "Notify record from remote rank [" +
          std::to_string(comm.missing()) + "]. simulated NPU: HCCL_EXEC_TIMEOUT is " +
          std::to_string(static_cast<long>(exec_timeout())) + " s");
  return HCCL_SUCCESS;
}

HcclResult exchange(Communicator& comm, const Parts& parts) {
  return finish(comm, comm.exchange(parts, exec_timeout()));
}

// To every peer the same bytes, from every peer as many into `store`.
HcclResult gather_copies(Communicator& comm, const void* send, size_t bytes, std::vector<std::vector<char>>& store) {
  store.assign(comm.size, std::vector<char>(bytes));
  Parts parts(comm.size);
  for (uint32_t peer = 0; peer < comm.size; peer++) parts[peer] = {send, bytes, store[peer].data(), bytes};
  return exchange(comm, parts);
}

HcclResult reduce_copies(void* result, const std::vector<std::vector<char>>& store, uint64_t count, HcclDataType type,
                         HcclReduceOp op) {
  std::vector<const void*> buffers;
  for (const auto& copy : store) buffers.push_back(copy.data());
  return reduce(result, buffers, count, type, op) ? HCCL_SUCCESS : HCCL_E_NOT_SUPPORT;
}

HcclResult connect(uint32_t size, const HcclRootInfo* root, uint32_t rank, size_t buffer_mib, HcclComm* handle) {
  const int device = simulation::current_device();
  const size_t bytes = 2 * buffer_mib << 20;
  if (!simulation::take_memory(device, bytes))
    return static_cast<HcclResult>(simulation::failed(
        HCCL_E_MEMORY, "EL0004: Failed to allocate memory. simulated NPU: a communicator needs " +
                           std::to_string(bytes) + " bytes (twice HCCL_BUFFSIZE)"));
  HcclResult result;
  Communicator* comm = Communicator::join(root->internal, size, rank, &result);
  if (comm == nullptr) {
    simulation::give_memory_back(device, bytes);
    if (result == HCCL_E_TIMEOUT)
      simulation::failed(result, "EI0006: Getting socket times out. simulated NPU: not all ranks came within "
                                 "HCCL_CONNECT_TIMEOUT");
    return result;
  }
  comm->device = device;
  comm->buffer_bytes = bytes;
  *handle = comm;
  return HCCL_SUCCESS;
}

size_t default_buffer_mib() {
  const char* value = std::getenv("HCCL_BUFFSIZE");
  return value == nullptr || *value == '\0' ? kBufferMib : std::strtoull(value, nullptr, 10);
}

}  // namespace

// Also where faults strike. The name of the call is counted like those of ACL.
#define BEGIN_COLLECTIVE()                                                                      \
  do {                                                                                          \
    if (aclError fault = simulation::entered(__func__)) return static_cast<HcclResult>(fault);  \
    const simulation::CollectiveFault fault = simulation::collective_begins();                  \
    while (fault.hang) sleep(3600);                                                             \
    if (fault.code != 0)                                                                        \
      return static_cast<HcclResult>(simulation::failed(                                        \
          fault.code, std::string("EI9999: Inner Error! simulated NPU: ") + __func__ +          \
                          " had to fail with " + std::to_string(fault.code)));                  \
  } while (0)

#define NEEDS_TYPE(type)                              \
  const size_t element = element_bytes(type);         \
  if (element == 0) return HCCL_E_NOT_SUPPORT

// ---- communicators

SIMULATED_API HcclResult HcclGetRootInfo(HcclRootInfo* root) {
  const std::string place = Communicator::make_place();
  std::memset(root, 0, sizeof *root);
  std::snprintf(root->internal, COMM_NAME_MAX_LENGTH, "%s", place.c_str());
  return place.empty() ? HCCL_E_SYSCALL : HCCL_SUCCESS;
}

SIMULATED_API HcclResult HcclCommInitRootInfo(uint32_t size, const HcclRootInfo* root, uint32_t rank, HcclComm* comm) {
  return connect(size, root, rank, default_buffer_mib(), comm);
}

SIMULATED_API HcclResult HcclCommInitRootInfoConfig(uint32_t size, const HcclRootInfo* root, uint32_t rank,
                                                    const HcclCommConfig* config, HcclComm* comm) {
  const bool is_set = config != nullptr && config->hcclBufferSize != HCCL_COMM_BUFFSIZE_CONFIG_NOT_SET;
  return connect(size, root, rank, is_set ? config->hcclBufferSize : default_buffer_mib(), comm);
}

SIMULATED_API HcclResult HcclCommInitAll(uint32_t, int32_t*, HcclComm*) { return HCCL_E_NOT_SUPPORT; }

SIMULATED_API HcclResult HcclCommDestroy(HcclComm handle) {
  Communicator* comm = static_cast<Communicator*>(handle);
  simulation::give_memory_back(comm->device, comm->buffer_bytes);
  delete comm;
  return HCCL_SUCCESS;
}

SIMULATED_API HcclResult HcclGetCommAsyncError(HcclComm, HcclResult* error) {
  *error = HCCL_SUCCESS;
  return HCCL_SUCCESS;
}

SIMULATED_API uint32_t HcclGetCommConfigCapability() { return 0; }
SIMULATED_API HcclResult HcclSetConfig(HcclConfig, HcclConfigValue) { return HCCL_SUCCESS; }
SIMULATED_API HcclResult HcclGetConfig(HcclConfig, HcclConfigValue* value) {
  value->value = 0;
  return HCCL_SUCCESS;
}
SIMULATED_API HcclResult HcclGetCommName(HcclComm handle, char* name) {
  std::snprintf(name, COMM_NAME_MAX_LENGTH, "%s", communicator(handle).name.c_str());
  return HCCL_SUCCESS;
}
SIMULATED_API HcclResult HcclGetRankSize(HcclComm handle, uint32_t* size) {
  *size = communicator(handle).size;
  return HCCL_SUCCESS;
}
SIMULATED_API HcclResult HcclGetRankId(HcclComm handle, uint32_t* rank) {
  *rank = communicator(handle).rank;
  return HCCL_SUCCESS;
}
SIMULATED_API const char* HcclGetErrorString(HcclResult) { return "simulated NPU"; }

// ---- collectives

SIMULATED_API HcclResult HcclAllReduce(void* send, void* receive, uint64_t count, HcclDataType type, HcclReduceOp op,
                                       HcclComm handle, aclrtStream) {
  BEGIN_COLLECTIVE();
  NEEDS_TYPE(type);
  std::vector<std::vector<char>> store;
  const HcclResult result = gather_copies(communicator(handle), send, count * element, store);
  return result == HCCL_SUCCESS ? reduce_copies(receive, store, count, type, op) : result;
}

SIMULATED_API HcclResult HcclReduce(void* send, void* receive, uint64_t count, HcclDataType type, HcclReduceOp op,
                                    uint32_t root, HcclComm handle, aclrtStream) {
  BEGIN_COLLECTIVE();
  NEEDS_TYPE(type);
  std::vector<std::vector<char>> store;
  const HcclResult result = gather_copies(communicator(handle), send, count * element, store);
  if (result != HCCL_SUCCESS || communicator(handle).rank != root) return result;
  return reduce_copies(receive, store, count, type, op);
}

SIMULATED_API HcclResult HcclReduceScatterV(void* send, const void* send_counts, const void* send_starts, void* receive,
                                            uint64_t count, HcclDataType type, HcclReduceOp op, HcclComm handle,
                                            aclrtStream) {
  BEGIN_COLLECTIVE();
  NEEDS_TYPE(type);
  Communicator& comm = communicator(handle);
  std::vector<std::vector<char>> store(comm.size, std::vector<char>(count * element));
  Parts parts(comm.size);
  for (uint32_t peer = 0; peer < comm.size; peer++)
    parts[peer] = {as_bytes(send) + counts(send_starts)[peer] * element, counts(send_counts)[peer] * element,
                   store[peer].data(), count * element};
  const HcclResult result = exchange(comm, parts);
  return result == HCCL_SUCCESS ? reduce_copies(receive, store, count, type, op) : result;
}

SIMULATED_API HcclResult HcclReduceScatter(void* send, void* receive, uint64_t count, HcclDataType type,
                                           HcclReduceOp op, HcclComm handle, aclrtStream stream) {
  const uint32_t size = communicator(handle).size;
  std::vector<uint64_t> equal(size, count), starts(size);
  for (uint32_t peer = 0; peer < size; peer++) starts[peer] = peer * count;
  return HcclReduceScatterV(send, equal.data(), starts.data(), receive, count, type, op, handle, stream);
}

SIMULATED_API HcclResult HcclAllGatherV(void* send, uint64_t count, void* receive, const void* receive_counts,
                                        const void* receive_starts, HcclDataType type, HcclComm handle, aclrtStream) {
  BEGIN_COLLECTIVE();
  NEEDS_TYPE(type);
  Communicator& comm = communicator(handle);
  // The own part may lie inside `receive`, where it must not be overwritten before it is sent.
  const std::vector<char> own(as_bytes(send), as_bytes(send) + count * element);
  Parts parts(comm.size);
  for (uint32_t peer = 0; peer < comm.size; peer++)
    parts[peer] = {own.data(), own.size(), as_bytes(receive) + counts(receive_starts)[peer] * element,
                   counts(receive_counts)[peer] * element};
  return exchange(comm, parts);
}

SIMULATED_API HcclResult HcclAllGather(void* send, void* receive, uint64_t count, HcclDataType type, HcclComm handle,
                                       aclrtStream stream) {
  const uint32_t size = communicator(handle).size;
  std::vector<uint64_t> equal(size, count), starts(size);
  for (uint32_t peer = 0; peer < size; peer++) starts[peer] = peer * count;
  return HcclAllGatherV(send, count, receive, equal.data(), starts.data(), type, handle, stream);
}

SIMULATED_API HcclResult HcclBroadcast(void* buffer, uint64_t count, HcclDataType type, uint32_t root, HcclComm handle,
                                       aclrtStream) {
  BEGIN_COLLECTIVE();
  NEEDS_TYPE(type);
  Communicator& comm = communicator(handle);
  Parts parts(comm.size);
  if (comm.rank == root) {
    for (uint32_t peer = 0; peer < comm.size; peer++)
      if (peer != root) parts[peer] = {buffer, count * element, nullptr, 0};
  } else {
    parts[root] = {nullptr, 0, buffer, count * element};
  }
  return exchange(comm, parts);
}

SIMULATED_API HcclResult HcclScatter(void* send, void* receive, uint64_t count, HcclDataType type, uint32_t root,
                                     HcclComm handle, aclrtStream) {
  BEGIN_COLLECTIVE();
  NEEDS_TYPE(type);
  Communicator& comm = communicator(handle);
  const size_t bytes = count * element;
  Parts parts(comm.size);
  if (comm.rank == root)
    for (uint32_t peer = 0; peer < comm.size; peer++) parts[peer] = {as_bytes(send) + peer * bytes, bytes, nullptr, 0};
  parts[root].receive = receive;
  parts[root].receive_bytes = bytes;
  return exchange(comm, parts);
}

SIMULATED_API HcclResult HcclAlltoAllV(const void* send, const void* send_counts, const void* send_starts,
                                       HcclDataType send_type, const void* receive, const void* receive_counts,
                                       const void* receive_starts, HcclDataType type, HcclComm handle, aclrtStream) {
  BEGIN_COLLECTIVE();
  NEEDS_TYPE(type);
  const size_t sent = element_bytes(send_type);
  Communicator& comm = communicator(handle);
  // HCCL declares its destination const.
  char* to = const_cast<char*>(as_bytes(receive));
  Parts parts(comm.size);
  for (uint32_t peer = 0; peer < comm.size; peer++)
    parts[peer] = {as_bytes(send) + counts(send_starts)[peer] * sent, counts(send_counts)[peer] * sent,
                   to + counts(receive_starts)[peer] * element, counts(receive_counts)[peer] * element};
  return exchange(comm, parts);
}

SIMULATED_API HcclResult HcclAlltoAll(const void* send, uint64_t send_count, HcclDataType send_type,
                                      const void* receive, uint64_t count, HcclDataType type, HcclComm handle,
                                      aclrtStream stream) {
  const uint32_t size = communicator(handle).size;
  std::vector<uint64_t> send_counts(size, send_count), send_starts(size), equal(size, count), starts(size);
  for (uint32_t peer = 0; peer < size; peer++) {
    send_starts[peer] = peer * send_count;
    starts[peer] = peer * count;
  }
  return HcclAlltoAllV(send, send_counts.data(), send_starts.data(), send_type, receive, equal.data(), starts.data(),
                       type, handle, stream);
}

SIMULATED_API HcclResult HcclBarrier(HcclComm handle, aclrtStream) {
  BEGIN_COLLECTIVE();
  const char token = 1;
  std::vector<std::vector<char>> store;
  return gather_copies(communicator(handle), &token, 1, store);
}

// ---- point to point

SIMULATED_API HcclResult HcclBatchSendRecv(HcclSendRecvItem* items, uint32_t count, HcclComm handle, aclrtStream) {
  BEGIN_COLLECTIVE();
  Communicator& comm = communicator(handle);
  Parts parts(comm.size);
  for (uint32_t i = 0; i < count; i++) {
    const HcclSendRecvItem& item = items[i];
    NEEDS_TYPE(item.dataType);
    Part& part = parts[item.remoteRank];
    // A second message to the same peer in one batch would need a queue.
    if (item.sendRecvType == HCCL_SEND ? part.send_bytes != 0 : part.receive_bytes != 0) return HCCL_E_NOT_SUPPORT;
    if (item.sendRecvType == HCCL_SEND) {
      part.send = item.buf;
      part.send_bytes = item.count * element;
    } else {
      part.receive = item.buf;
      part.receive_bytes = item.count * element;
    }
  }
  return exchange(comm, parts);
}

SIMULATED_API HcclResult HcclSend(void* buffer, uint64_t count, HcclDataType type, uint32_t to, HcclComm handle,
                                  aclrtStream stream) {
  HcclSendRecvItem item{HCCL_SEND, buffer, count, type, to};
  return HcclBatchSendRecv(&item, 1, handle, stream);
}

SIMULATED_API HcclResult HcclRecv(void* buffer, uint64_t count, HcclDataType type, uint32_t from, HcclComm handle,
                                  aclrtStream stream) {
  HcclSendRecvItem item{HCCL_RECV, buffer, count, type, from};
  return HcclBatchSendRecv(&item, 1, handle, stream);
}
