// Shared-memory mailboxes of the simulated HCCL; part of libhccl.so. See mailbox.h.
#include "hccl/mailbox.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>

namespace {

constexpr size_t kRoom = 1 << 20;
constexpr int kSpins = 200;

double seconds_of(const char* variable, double otherwise) {
  const char* value = std::getenv(variable);
  return value == nullptr || *value == '\0' ? otherwise : std::atof(value);
}

}  // namespace

// Shared memory begins as zeros, which is an empty box. Full when `written` is one more than `read`.
struct Mailbox {
  std::atomic<uint64_t> written;
  std::atomic<uint64_t> read;
  uint64_t bytes;
  char content[kRoom];

  bool empty() const { return written.load(std::memory_order_acquire) == read.load(std::memory_order_acquire); }
};

Communicator::Communicator(std::string name, uint32_t size, uint32_t rank, Mailbox* boxes)
    : name(std::move(name)), size(size), rank(rank), boxes_(boxes) {}

Communicator::~Communicator() { munmap(boxes_, sizeof(Mailbox) * size * size); }

Mailbox& Communicator::box(uint32_t from, uint32_t to) { return boxes_[from * size + to]; }

std::string Communicator::make_place() {
  const int file = memfd_create("simulated HCCL", MFD_CLOEXEC);
  return file < 0 ? "" : "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(file);
}

Communicator* Communicator::join(const std::string& name, uint32_t size, uint32_t rank, HcclResult* result) {
  const size_t bytes = sizeof(Mailbox) * size * size;
  const int file = open(name.c_str(), O_RDWR | O_CLOEXEC);
  *result = HCCL_E_SYSCALL;
  if (file < 0) return nullptr;
  void* memory = MAP_FAILED;
  if (ftruncate(file, static_cast<off_t>(bytes)) == 0)
    memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (memory == MAP_FAILED) return nullptr;
  auto* communicator = new Communicator(name, size, rank, static_cast<Mailbox*>(memory));
  const char token = 1;
  std::vector<char> tokens(size);
  std::vector<Part> parts(size);
  for (uint32_t peer = 0; peer < size; peer++) parts[peer] = {&token, 1, &tokens[peer], 1};
  *result = communicator->exchange(parts, seconds_of("HCCL_CONNECT_TIMEOUT", 120));
  const std::string own = "/proc/" + std::to_string(getpid()) + "/fd/";
  // All have opened it, or never will.
  if (name.rfind(own, 0) == 0) close(std::stoi(name.substr(own.size())));
  if (*result == HCCL_SUCCESS) return communicator;
  delete communicator;
  return nullptr;
}

HcclResult Communicator::exchange(const std::vector<Part>& parts, double seconds) {
  std::lock_guard<std::mutex> guard(lock_);
  std::vector<size_t> sent(size), received(size);
  const auto begun = std::chrono::steady_clock::now();
  long idle = 0;
  for (;;) {
    bool done = true, moved = false;
    for (uint32_t peer = 0; peer < size; peer++) {
      const Part& part = parts[peer];
      Mailbox& out = box(rank, peer);
      if (sent[peer] < part.send_bytes && out.empty()) {
        out.bytes = std::min(kRoom, part.send_bytes - sent[peer]);
        std::memcpy(out.content, static_cast<const char*>(part.send) + sent[peer], out.bytes);
        sent[peer] += out.bytes;
        out.written.fetch_add(1, std::memory_order_release);
        moved = true;
      }
      Mailbox& in = box(peer, rank);
      if (received[peer] < part.receive_bytes && !in.empty()) {
        // The ranks disagree about the operation: real HCCL checks this too (EI0005).
        if (in.bytes > part.receive_bytes - received[peer]) return HCCL_E_PARA;
        std::memcpy(static_cast<char*>(part.receive) + received[peer], in.content, in.bytes);
        received[peer] += in.bytes;
        in.read.fetch_add(1, std::memory_order_release);
        moved = true;
      }
      if (sent[peer] < part.send_bytes || received[peer] < part.receive_bytes) {
        done = false;
        if (peer != rank) missing_ = peer;
      }
    }
    if (done) return HCCL_SUCCESS;
    idle = moved ? 0 : idle + 1;
    if (idle <= kSpins) continue;
    if (idle < 10 * kSpins) {
      sched_yield();
    } else {
      usleep(50);
    }
    const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begun;
    if (seconds > 0 && waited.count() > seconds) return HCCL_E_TIMEOUT;
  }
}
