// Settings, injected faults, errors and memory accounts of the simulated CANN; part of libascendcl.so.
//
// A fault is `kind:key=value,key=value`; several are separated by semicolons. `rank` restricts a fault to one rank of
// the job (environment variable RANK).
//   full:device=D[,bytes=N]         another process holds N bytes (default: all) of device D (as the machine counts)
//   die:rank=R,collective=N         the rank gets SIGKILL when it begins its Nth collective
//   hang:rank=R,collective=N        the rank never takes part in its Nth collective: its peers run into a time-out
//   hccl:collective=N[,code=C]      the Nth collective returns the HCCL result C (default 9, a time-out)
//   acl:call=NAME,code=C[,number=N] the Nth call (default 1) of that ACL function, and all later ones, return C
#include "ascendcl/simulation.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <sstream>
#include <vector>

namespace simulation {
namespace {

constexpr int kMostDevices = 64;
constexpr size_t kDefaultMemory = 65452113920;  // what torch_npu reports for a 64 GB 910B
constexpr aclError kInvalidValue = 107000;

struct Fault {
  std::string kind;
  std::map<std::string, std::string> fields;

  long number(const std::string& name, long otherwise) const {
    auto field = fields.find(name);
    return field == fields.end() ? otherwise : std::stol(field->second);
  }
  bool is_for_this_rank() const {
    auto field = fields.find("rank");
    const char* rank = std::getenv("RANK");
    return field == fields.end() || (rank != nullptr && field->second == rank);
  }
};

const std::map<std::string, std::pair<std::vector<std::string>, std::vector<std::string>>> kKinds = {
    // kind: fields that must be there, fields that may
    {"full", {{"device"}, {"bytes"}}},
    {"die", {{"rank", "collective"}, {}}},
    {"hang", {{"rank", "collective"}, {}}},
    {"hccl", {{"collective"}, {"code", "rank"}}},
    {"acl", {{"call", "code"}, {"number", "rank"}}},
};

[[noreturn]] void refuse(const std::string& variable, const std::string& value, const std::string& why) {
  std::fprintf(stderr, "simulated NPU: %s='%s': %s\n", variable.c_str(), value.c_str(), why.c_str());
  std::_Exit(2);
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

bool is_number(const std::string& text) {
  return !text.empty() && text.size() < 19 && text.find_first_not_of("0123456789") == std::string::npos;
}

size_t number_of(const char* variable, size_t otherwise) {
  const char* value = std::getenv(variable);
  if (value == nullptr || *value == '\0') return otherwise;
  if (!is_number(value)) refuse(variable, value, "not a whole number");
  return std::stoull(value);
}

std::vector<Fault> read_faults() {
  const std::string variable = "DSGEN_SIMULATED_NPU_FAULTS";
  const char* value = std::getenv(variable.c_str());
  std::vector<Fault> faults;
  for (const std::string& text : split(value == nullptr ? "" : value, ';')) {
    Fault fault;
    const size_t colon = text.find(':');
    fault.kind = text.substr(0, colon);
    auto kind = kKinds.find(fault.kind);
    if (kind == kKinds.end()) refuse(variable, text, "no such fault; there are full, die, hang, hccl and acl");
    std::vector<std::string> known = kind->second.first;
    known.insert(known.end(), kind->second.second.begin(), kind->second.second.end());
    for (const std::string& pair : split(colon == std::string::npos ? "" : text.substr(colon + 1), ',')) {
      const size_t equals = pair.find('=');
      const std::string name = pair.substr(0, equals);
      const std::string content = equals == std::string::npos ? "" : pair.substr(equals + 1);
      bool is_known = false;
      for (const std::string& field : known) is_known |= field == name;
      if (!is_known) refuse(variable, text, "the fault " + fault.kind + " has no field " + name);
      if (name != "call" && !is_number(content)) refuse(variable, text, name + " must be a whole number");
      fault.fields[name] = content;
    }
    for (const std::string& field : kind->second.first)
      if (!fault.fields.count(field)) refuse(variable, text, "the field " + field + " is missing");
    faults.push_back(fault);
  }
  return faults;
}

// CANN counts the visible devices anew from 0. What a wrong mask does there is not documented for every case; here the
// list ends before the first entry that is no device of the machine or does not ascend.
std::vector<int> read_visible(int on_machine) {
  std::vector<int> visible;
  const char* mask = std::getenv("ASCEND_RT_VISIBLE_DEVICES");
  if (mask == nullptr) {
    for (int device = 0; device < on_machine; device++) visible.push_back(device);
    return visible;
  }
  for (const std::string& entry : split(mask, ',')) {
    if (!is_number(entry) || std::stoll(entry) >= on_machine) break;
    const int device = std::stoi(entry);
    if (!visible.empty() && device <= visible.back()) break;
    visible.push_back(device);
  }
  return visible;
}

struct Settings {
  std::vector<int> visible;
  std::string soc;
  size_t memory;
  bool trace;
  std::vector<Fault> faults;

  Settings() {
    const size_t devices = number_of("DSGEN_SIMULATED_NPU_DEVICES", 8);
    if (devices > kMostDevices) refuse("DSGEN_SIMULATED_NPU_DEVICES", std::to_string(devices), "at most 64");
    const char* name = std::getenv("DSGEN_SIMULATED_NPU_SOC");
    soc = name == nullptr || *name == '\0' ? "Ascend910B3" : name;
    memory = number_of("DSGEN_SIMULATED_NPU_HBM_BYTES", kDefaultMemory);
    trace = std::getenv("DSGEN_SIMULATED_NPU_TRACE") != nullptr;
    visible = read_visible(static_cast<int>(devices));
    faults = read_faults();
  }
};

std::atomic<Settings*> g_settings{nullptr};

const Settings& settings() {
  if (Settings* there = g_settings.load()) return *there;
  auto* fresh = new Settings();
  Settings* other = nullptr;
  if (g_settings.compare_exchange_strong(other, fresh)) return *fresh;
  delete fresh;
  return *other;
}

// A forked process may have got another environment before it touches a device.
__attribute__((constructor)) void forget_settings_after_fork() {
  pthread_atfork(nullptr, nullptr, [] { g_settings = nullptr; });
}

std::mutex g_lock;  // guards all that follows
size_t g_taken[kMostDevices];
std::map<std::string, long> g_calls;
long g_collectives = 0;
aclError g_device_error = ACL_SUCCESS;
std::string g_device_error_text;

thread_local int t_device = -1;
thread_local std::string t_error_text;
thread_local std::string t_told_text;

size_t held_by_others(int device) {
  size_t held = 0;
  for (const Fault& fault : settings().faults)
    if (fault.kind == "full" && fault.number("device", -1) == device_on_machine(device))
      held += static_cast<size_t>(fault.number("bytes", static_cast<long>(settings().memory)));
  return held < settings().memory ? held : settings().memory;
}

}  // namespace

int device_count() { return static_cast<int>(settings().visible.size()); }
int device_on_machine(int device) { return settings().visible.at(device); }
const std::string& soc_name() { return settings().soc; }
bool traces() { return settings().trace; }

aclError entered(const char* call) {
  if (settings().trace) std::fprintf(stderr, "simulated NPU: %s\n", call);
  if (settings().faults.empty()) return ACL_SUCCESS;
  long count;
  {
    std::lock_guard<std::mutex> guard(g_lock);
    count = ++g_calls[call];
  }
  for (const Fault& fault : settings().faults) {
    if (fault.kind != "acl" || fault.fields.at("call") != call || !fault.is_for_this_rank()) continue;
    if (count < fault.number("number", 1)) continue;
    const long code = fault.number("code", kInvalidValue);
    return failed(static_cast<aclError>(code),
                  "EZ9999: Inner Error! simulated NPU: call " + std::to_string(count) + " of " + call +
                      " had to fail with " + std::to_string(code));
  }
  return ACL_SUCCESS;
}

aclError failed(aclError code, const std::string& text) {
  t_error_text = text;
  return code;
}

void fail_device_later(aclError code, const std::string& text) {
  std::lock_guard<std::mutex> guard(g_lock);
  if (g_device_error != ACL_SUCCESS) return;
  g_device_error = code;
  g_device_error_text = text;
}

aclError device_error() {
  std::lock_guard<std::mutex> guard(g_lock);
  return g_device_error == ACL_SUCCESS ? ACL_SUCCESS : failed(g_device_error, g_device_error_text);
}

const char* take_error_text() {
  t_told_text.swap(t_error_text);
  t_error_text.clear();
  return t_told_text.c_str();
}

CollectiveFault collective_begins() {
  CollectiveFault result;
  if (settings().faults.empty()) return result;
  long count;
  {
    std::lock_guard<std::mutex> guard(g_lock);
    count = ++g_collectives;
  }
  for (const Fault& fault : settings().faults) {
    if (fault.number("collective", -1) != count || !fault.is_for_this_rank()) continue;
    std::fprintf(stderr, "simulated NPU: fault '%s' at collective %ld\n", fault.kind.c_str(), count);
    if (fault.kind == "die") ::kill(::getpid(), SIGKILL);
    if (fault.kind == "hang") result.hang = true;
    if (fault.kind == "hccl") result.code = static_cast<int>(fault.number("code", 9));
  }
  return result;
}

bool take_memory(int device, size_t bytes) {
  const size_t others = held_by_others(device);
  std::lock_guard<std::mutex> guard(g_lock);
  if (bytes > settings().memory - others || g_taken[device] > settings().memory - others - bytes) return false;
  g_taken[device] += bytes;
  return true;
}

void give_memory_back(int device, size_t bytes) {
  std::lock_guard<std::mutex> guard(g_lock);
  g_taken[device] -= bytes;
}

size_t total_memory() { return settings().memory; }

size_t free_memory(int device) {
  const size_t others = held_by_others(device);
  std::lock_guard<std::mutex> guard(g_lock);
  return settings().memory - others - g_taken[device];
}

int current_device() { return t_device < 0 ? 0 : t_device; }
bool has_device() { return t_device >= 0; }
void set_current_device(int device) { t_device = device; }

}  // namespace simulation
