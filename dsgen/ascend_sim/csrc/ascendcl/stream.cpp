// Streams, events and callbacks of the simulated AscendCL; part of libascendcl.so.
//
// Real: the objects, the time stamps of events, and that an error of the device is told by the call that waits for it.
// Not: there is no asynchrony. Work is done when it is submitted, so every stream is idle and every event has happened;
// an order that a program forgot to enforce shows no error here.
#include <unistd.h>

#include <atomic>
#include <chrono>

#include "ascendcl/simulation.h"

namespace {

struct Stream {
  int id;
};

struct Event {
  double milliseconds;
};

std::atomic<int> g_streams{0};

double now() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

aclError create_stream(aclrtStream* stream) {
  *stream = new Stream{++g_streams};
  return ACL_SUCCESS;
}

aclError create_event(aclrtEvent* event) {
  *event = new Event{now()};
  return ACL_SUCCESS;
}

}  // namespace

#define RETURN_IF_DEVICE_FAILED()                                      \
  do {                                                                 \
    RETURN_IF_FAULT();                                                 \
    if (aclError error = simulation::device_error()) return error;     \
  } while (0)

SIMULATED_API aclError aclrtCreateStream(aclrtStream* stream) {
  RETURN_IF_FAULT();
  return create_stream(stream);
}
SIMULATED_API aclError aclrtCreateStreamWithConfig(aclrtStream* stream, uint32_t, uint32_t) {
  RETURN_IF_FAULT();
  return create_stream(stream);
}
SIMULATED_API aclError aclrtDestroyStream(aclrtStream stream) {
  delete static_cast<Stream*>(stream);
  return ACL_SUCCESS;
}
SIMULATED_API aclError aclrtDestroyStreamForce(aclrtStream stream) { return aclrtDestroyStream(stream); }
SIMULATED_API aclError aclrtStreamGetId(aclrtStream stream, int32_t* id) {
  *id = stream == nullptr ? 0 : static_cast<Stream*>(stream)->id;
  return ACL_SUCCESS;
}
SIMULATED_API aclError aclrtStreamQuery(aclrtStream, aclrtStreamStatus* status) {
  RETURN_IF_DEVICE_FAILED();
  *status = ACL_STREAM_STATUS_COMPLETE;
  return ACL_SUCCESS;
}
SIMULATED_API aclError aclrtSynchronizeStream(aclrtStream) {
  RETURN_IF_DEVICE_FAILED();
  return ACL_SUCCESS;
}
SIMULATED_API aclError aclrtSynchronizeStreamWithTimeout(aclrtStream, int32_t) {
  RETURN_IF_DEVICE_FAILED();
  return ACL_SUCCESS;
}
SIMULATED_API aclError aclrtSynchronizeDevice() {
  RETURN_IF_DEVICE_FAILED();
  return ACL_SUCCESS;
}
SIMULATED_API aclError aclrtSynchronizeDeviceWithTimeout(int32_t) {
  RETURN_IF_DEVICE_FAILED();
  return ACL_SUCCESS;
}
SIMULATED_API aclError aclrtStreamWaitEvent(aclrtStream, aclrtEvent) {
  RETURN_IF_FAULT();
  return ACL_SUCCESS;
}
SIMULATED_API aclError aclrtSetStreamFailureMode(aclrtStream, uint64_t) { return ACL_SUCCESS; }
SIMULATED_API aclError aclrtSetStreamAttribute(aclrtStream, aclrtStreamAttr, aclrtStreamAttrValue*) {
  return ACL_SUCCESS;
}
SIMULATED_API aclError aclrtSetStreamOverflowSwitch(aclrtStream, uint32_t) { return ACL_SUCCESS; }
SIMULATED_API aclError aclrtGetStreamOverflowSwitch(aclrtStream, uint32_t* on) {
  *on = 0;
  return ACL_SUCCESS;
}

// ---- events

SIMULATED_API aclError aclrtCreateEvent(aclrtEvent* event) { return create_event(event); }
SIMULATED_API aclError aclrtCreateEventWithFlag(aclrtEvent* event, uint32_t) { return create_event(event); }
SIMULATED_API aclError aclrtCreateEventExWithFlag(aclrtEvent* event, uint32_t) { return create_event(event); }
SIMULATED_API aclError aclrtDestroyEvent(aclrtEvent event) {
  delete static_cast<Event*>(event);
  return ACL_SUCCESS;
}
SIMULATED_API aclError aclrtRecordEvent(aclrtEvent event, aclrtStream) {
  RETURN_IF_FAULT();
  static_cast<Event*>(event)->milliseconds = now();
  return ACL_SUCCESS;
}
SIMULATED_API aclError aclrtResetEvent(aclrtEvent, aclrtStream) { return ACL_SUCCESS; }
SIMULATED_API aclError aclrtSynchronizeEvent(aclrtEvent) {
  RETURN_IF_DEVICE_FAILED();
  return ACL_SUCCESS;
}
SIMULATED_API aclError aclrtEventElapsedTime(float* milliseconds, aclrtEvent start, aclrtEvent end) {
  *milliseconds = static_cast<float>(static_cast<Event*>(end)->milliseconds - static_cast<Event*>(start)->milliseconds);
  return ACL_SUCCESS;
}
SIMULATED_API aclError aclrtEventGetTimestamp(aclrtEvent event, uint64_t* microseconds) {
  *microseconds = static_cast<uint64_t>(static_cast<Event*>(event)->milliseconds * 1e3);
  return ACL_SUCCESS;
}
SIMULATED_API aclError aclrtQueryEventStatus(aclrtEvent, aclrtEventRecordedStatus* status) {
  RETURN_IF_DEVICE_FAILED();
  *status = ACL_EVENT_RECORDED_STATUS_COMPLETE;
  return ACL_SUCCESS;
}
SIMULATED_API aclError aclrtQueryEventWaitStatus(aclrtEvent, aclrtEventWaitStatus* status) {
  *status = ACL_EVENT_WAIT_STATUS_COMPLETE;
  return ACL_SUCCESS;
}

// ---- callbacks

SIMULATED_API aclError aclrtProcessReport(int32_t) {
  // torch_npu calls this in a loop.
  usleep(1000);
  return ACL_SUCCESS;
}
SIMULATED_API aclError aclrtSubscribeReport(uint64_t, aclrtStream) { return ACL_SUCCESS; }
SIMULATED_API aclError aclrtUnSubscribeReport(uint64_t, aclrtStream) { return ACL_SUCCESS; }
SIMULATED_API aclError aclrtLaunchCallback(aclrtCallback function, void* data, aclrtCallbackBlockType, aclrtStream) {
  function(data);
  return ACL_SUCCESS;
}
SIMULATED_API aclError aclrtLaunchHostFunc(aclrtStream, aclrtHostFunc function, void* data) {
  function(data);
  return ACL_SUCCESS;
}
