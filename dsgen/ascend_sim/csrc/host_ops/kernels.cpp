// Computing for the simulated NPU: torch's CPU kernels, run on device memory; part of libdsgen_host_ops.so.
//
// torch_npu registers a kernel with torch's dispatcher for every aten operator that an NPU computes. For those that
// overridden_ops.txt names, dsgen_install_host_ops registers another one over it:
//   - the CPU kernel of the same operator, on CPU tensors over the same memory;
//   - for operators that upstream torch defines by other operators, that definition, on the NPU tensors themselves.
// All else stays torch_npu's: allocation, views, conversion between devices and dtypes (_to_copy), streams, memory
// statistics, collectives. An operator that stands in no list fails where torch_npu looks for its kernel in CANN.
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "host_ops/attention.h"
#include "host_ops/tensors.h"

namespace {

using at::Tensor;
using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::IValue;
using c10::OperatorHandle;
using torch::jit::Stack;

// Shown by torch._C._dispatch_dump, and so how a test finds what is overridden.
constexpr const char* kOwner = "dsgen simulated NPU";
const DispatchKeySet kCpu(DispatchKey::CPU);

// The arguments of one call, turned into tensors of the CPU, and its results, turned back.
class Call {
 public:
  Call(const OperatorHandle& op, Stack* stack) : op_(op), stack_(stack) {}

  void run() {
    const size_t first = stack_->size() - op_.schema().arguments().size();
    for (size_t i = 0; i < op_.schema().arguments().size(); i++) {
      IValue& value = (*stack_)[first + i];
      arguments_.push_back(value);
      value = argument(value, op_.schema().arguments()[i].name());
    }
    check_devices();
    op_.redispatchBoxed(kCpu, stack_);
    write_back();
    const size_t results = op_.schema().returns().size();
    for (size_t i = stack_->size() - results; i < stack_->size(); i++) (*stack_)[i] = result((*stack_)[i]);
  }

 private:
  struct Pair {
    Tensor npu, cpu;
  };

  Tensor argument(const Tensor& tensor) {
    if (!host::is_on_npu(tensor)) {
      if (tensor.defined() && tensor.dim() > 0) has_cpu_tensor_ = true;
      return tensor;
    }
    if (!has_device_) device_ = tensor.device();
    has_device_ = has_npu_tensor_ = true;
    for (const Pair& pair : pairs_)
      if (pair.npu.is_same(tensor)) return pair.cpu;
    pairs_.push_back({tensor, host::as_cpu(tensor)});
    return pairs_.back().cpu;
  }

  IValue argument(const IValue& value, const std::string& name) {
    if (value.isTensor()) return argument(value.toTensor());
    if (value.isTensorList()) {
      c10::List<Tensor> list;
      for (const Tensor& tensor : value.toTensorVector()) list.push_back(argument(tensor));
      return list;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> list;
      for (const std::optional<Tensor>& tensor : value.toOptionalTensorVector())
        list.push_back(tensor ? std::optional<Tensor>(argument(*tensor)) : std::nullopt);
      return list;
    }
    if (value.isDevice() && value.toDevice().type() == c10::DeviceType::PrivateUse1) {
      device_ = value.toDevice();
      has_device_ = true;
      return c10::Device(c10::kCPU);
    }
    // Random numbers then come from the CPU's generator, which the same manual_seed has seeded.
    if (value.isGenerator() && value.toGenerator().device().type() == c10::DeviceType::PrivateUse1) return IValue();
    if (value.isBool() && name == "pin_memory") return false;
    return value;
  }

  // torch_npu refuses this too; the CPU kernel alone would not notice.
  void check_devices() const {
    static const std::set<std::string> may_mix = {"aten::index", "aten::index_put_", "aten::_index_put_impl_"};
    TORCH_CHECK(!(has_cpu_tensor_ && has_npu_tensor_) || may_mix.count(op_.schema().name()) != 0,
                "Expected all tensors to be on the same device, but found at least two devices, ", device_,
                " and cpu! (when checking arguments for ", op_.schema().name(), ")");
  }

  // An output that the CPU kernel resized has got other memory.
  void write_back() {
    for (const Pair& pair : pairs_) {
      const bool moved = pair.cpu.storage().data() != pair.npu.storage().data();
      if (!moved && pair.cpu.sizes() == pair.npu.sizes()) continue;
      pair.npu.resize_(pair.cpu.sizes());
      if (pair.cpu.numel() != 0) host::as_cpu(pair.npu).copy_(pair.cpu);
    }
  }

  Tensor result(const Tensor& tensor) {
    for (const Pair& pair : pairs_)
      if (pair.cpu.is_same(tensor)) return pair.npu;
    if (!has_device_) return tensor;
    if (device_.index() < 0) device_ = c10::impl::VirtualGuardImpl(c10::DeviceType::PrivateUse1).getDevice();
    return host::to_npu(tensor, device_);
  }

  IValue result(const IValue& value) {
    if (value.isTensor()) return result(value.toTensor());
    if (!value.isTensorList()) return value;
    c10::List<Tensor> list;
    for (const Tensor& tensor : value.toTensorVector()) list.push_back(result(tensor));
    return list;
  }

  const OperatorHandle& op_;
  Stack* stack_;
  std::vector<IValue> arguments_;  // keeps what the aliases point to alive
  std::vector<Pair> pairs_;
  c10::Device device_{c10::DeviceType::PrivateUse1, -1};
  bool has_device_ = false, has_npu_tensor_ = false, has_cpu_tensor_ = false;
};

class Kernel : public c10::OperatorKernel {
 public:
  explicit Kernel(const c10::OperatorName& name) : name_(name.name) {}

 protected:
  void used() {
    if (!used_.exchange(true)) host::note_use(name_);
  }

 private:
  const std::string name_;
  std::atomic<bool> used_{false};
};

class OnHost : public Kernel {
 public:
  using Kernel::Kernel;
  void operator()(const OperatorHandle& op, DispatchKeySet, Stack* stack) {
    used();
    host::wait_for_queues();
    Call(op, stack).run();
  }
};

class ByDefinition : public Kernel {
 public:
  using Kernel::Kernel;
  void operator()(const OperatorHandle& op, DispatchKeySet, Stack* stack) {
    used();
    op.redispatchBoxed(kCpu, stack);
  }
};

// copy_ between host and device is torch_npu's own; on one device it would be an operator of CANN.
class Copy : public Kernel {
 public:
  Copy(const c10::OperatorName& name, c10::SafeKernelFunction original)
      : Kernel(name), original_(std::move(original)) {}
  void operator()(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
    const size_t first = stack->size() - op.schema().arguments().size();
    if (host::is_on_npu((*stack)[first].toTensor()) && host::is_on_npu((*stack)[first + 1].toTensor())) {
      used();
      host::wait_for_queues();
      Call(op, stack).run();
    } else {
      original_.callBoxed(op, keys, stack);
    }
  }

 private:
  const c10::SafeKernelFunction original_;
};

bool has_kernel(const OperatorHandle& op, DispatchKey key) { return op.hasKernelForDispatchKey(key); }

bool runs_on_cpu(const OperatorHandle& op) {
  return has_kernel(op, DispatchKey::CPU) || has_kernel(op, DispatchKey::CompositeExplicitAutograd) ||
         has_kernel(op, DispatchKey::CompositeExplicitAutogradNonFunctional);
}

bool is_view(const OperatorHandle& op) {
  for (const auto& result : op.schema().returns())
    if (result.alias_info() != nullptr && !result.alias_info()->isWrite()) return true;
  return false;
}

std::vector<c10::RegistrationHandleRAII>& registrations() {
  // Never destroyed: the dispatcher may be gone before.
  static auto* kept = new std::vector<c10::RegistrationHandleRAII>();
  return *kept;
}

void override_with(const c10::OperatorName& name, DispatchKey key, c10::KernelFunction kernel) {
  registrations().push_back(
      c10::Dispatcher::singleton().registerImpl(name, key, std::move(kernel), std::nullopt, nullptr, kOwner));
}

void override_operator(const OperatorHandle& op) {
  const c10::OperatorName& name = op.operator_name();
  if (auto kernel = host::attention_kernel(name.name)) {
    override_with(name, DispatchKey::PrivateUse1, std::move(*kernel));
  } else if (name.name == "aten::copy_") {
    auto original = op.getComputedKernelForDispatchKey(DispatchKey::PrivateUse1);
    override_with(name, DispatchKey::PrivateUse1,
                  c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<Copy>(name, std::move(original))));
  } else if (runs_on_cpu(op)) {
    override_with(name, DispatchKey::PrivateUse1,
                  c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<OnHost>(name)));
  } else if (has_kernel(op, DispatchKey::CompositeImplicitAutograd)) {
    for (DispatchKey key : {DispatchKey::PrivateUse1, DispatchKey::AutogradPrivateUse1})
      override_with(name, key, c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<ByDefinition>(name)));
  }
}

// Names of operators, one a line, in the file beside this library; # begins a comment.
std::set<std::string> listed_operators() {
  Dl_info info;
  dladdr(reinterpret_cast<void*>(&listed_operators), &info);
  const std::string library = info.dli_fname;
  std::ifstream file(library.substr(0, library.rfind('/') + 1) + "overridden_ops.txt");
  std::set<std::string> names;
  for (std::string line; std::getline(file, line);)
    if (!line.empty() && line[0] != '#') names.insert("aten::" + line);
  return names;
}

// Stays torch_npu's even when all computing is overridden: it does not compute.
const std::set<std::string> kNeverOverridden = {
    "aten::_copy_from_and_resize", "aten::_has_compatible_shallow_copy_type", "aten::_local_scalar_dense",
    "aten::_pin_memory", "aten::_to_copy", "aten::data", "aten::empty", "aten::empty_like", "aten::empty_strided",
    "aten::is_pinned", "aten::is_set_to", "aten::new_empty", "aten::new_empty_strided", "aten::pin_memory",
    "aten::record_stream", "aten::resize_", "aten::set_"};

class Silence : public c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

}  // namespace

// Returns 0, or 1 when the list is missing. May be called again.
extern "C" __attribute__((visibility("default"))) int dsgen_install_host_ops() {
  if (!registrations().empty()) return 0;
  const std::set<std::string> listed = listed_operators();
  if (listed.empty()) return 1;
  const char* wanted = std::getenv("DSGEN_SIMULATED_NPU_OPS");
  const bool all = wanted != nullptr && std::strcmp(wanted, "all") == 0;
  // torch warns of every kernel that takes the place of another.
  Silence silence;
  c10::WarningUtils::WarningHandlerGuard guard(&silence);
  host::choose_fused_attention();
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    // torch itself has the attention of other backends, with a kernel that only raises.
    if (!op || is_view(*op)) continue;
    if (!has_kernel(*op, DispatchKey::PrivateUse1) && !host::attention_kernel(name.name)) continue;
    const bool is_computing = name.name.rfind("aten::", 0) == 0 && kNeverOverridden.count(name.name) == 0;
    if (listed.count(name.name) != 0 || (all && is_computing)) override_operator(*op);
  }
  return 0;
}
