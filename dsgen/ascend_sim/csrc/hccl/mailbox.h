// The wire of the simulated HCCL: bytes between the ranks of one machine over shared memory.
//
// The memory is an anonymous file of the rank that gave the root information, which the others open through /proc. So
// nothing is left behind however the ranks end, and the size of /dev/shm, small in containers, does not matter.
//
// For every ordered pair of ranks there is one mailbox of 1 MiB. A message longer than that goes through it in pieces.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "hccl_types.h"

struct Mailbox;

class Communicator {
 public:
  // Makes shared memory for one communicator and gives its name, which is empty when that fails.
  static std::string make_place();
  // Opens the shared memory called `name` and waits for the other ranks; null, with `result`, when that fails.
  static Communicator* join(const std::string& name, uint32_t size, uint32_t rank, HcclResult* result);
  ~Communicator();

  // What goes to and comes from one peer; null pointers for nothing.
  struct Part {
    const void* send = nullptr;
    size_t send_bytes = 0;
    void* receive = nullptr;
    size_t receive_bytes = 0;
  };

  // One part per rank, this one included. All sends and receives advance together, so that no order of the ranks and
  // no size can block. HCCL_E_TIMEOUT after `seconds` without end (0: never).
  HcclResult exchange(const std::vector<Part>& parts, double seconds);

  const std::string name;
  const uint32_t size;
  const uint32_t rank;
  // Rank that the last time-out waited for.
  uint32_t missing() const { return missing_; }

  int device = 0;            // whose memory `buffer_bytes` are
  size_t buffer_bytes = 0;

 private:
  Communicator(std::string name, uint32_t size, uint32_t rank, Mailbox* boxes);
  Mailbox& box(uint32_t from, uint32_t to);

  Mailbox* boxes_;
  std::mutex lock_;
  uint32_t missing_ = 0;
};
