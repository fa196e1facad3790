// A CUDA device that does nothing, so that autograd can run over fake CUDA tensors on a machine without a GPU.
//
// PyTorch's autograd engine asks the device of every tensor for a stream and starts a thread per device. Without a GPU
// there is nobody to answer: no device guard is registered for CUDA and the accelerator hooks say "none available".
// This file answers both. No memory is ever allocated and no kernel is ever run: the tensors are fake.

#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <cstring>

namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::DeviceType;
using c10::Stream;

struct IdleGuard final : public c10::impl::DeviceGuardImplInterface {
  static Device device() { return Device(DeviceType::CUDA, 0); }
  static Stream stream() { return Stream(Stream::DEFAULT, device()); }

  DeviceType type() const override { return DeviceType::CUDA; }
  Device exchangeDevice(Device) const override { return device(); }
  Device getDevice() const override { return device(); }
  void setDevice(Device) const override {}
  void uncheckedSetDevice(Device) const noexcept override {}
  Stream getStream(Device) const override { return stream(); }
  Stream getDefaultStream(Device) const override { return stream(); }
  Stream getNewStream(Device, int) const override { return stream(); }
  Stream exchangeStream(Stream) const override { return stream(); }
  DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void**, const Stream&, const DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const DeviceIndex) const noexcept override {}
  bool queryStream(const Stream&) const override { return true; }
  void synchronizeStream(const Stream&) const override {}
};

struct IdleHooks final : public at::CUDAHooksInterface {
  explicit IdleHooks(at::CUDAHooksArgs /*unused*/) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return false; }
  DeviceIndex deviceCount() const override { return 1; }
  int getNumGPUs() const override { return 1; }
  DeviceIndex current_device() const override { return 0; }
  DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(DeviceIndex) const override {}
  DeviceIndex exchangeDevice(DeviceIndex) const override { return 0; }
  DeviceIndex maybeExchangeDevice(DeviceIndex) const override { return 0; }
};

IdleGuard guard;
IdleHooks hooks{at::CUDAHooksArgs{}};

struct Install {
  Install() {
    // Stored directly, not through C10_REGISTER_GUARD_IMPL: a CUDA build without a GPU has a guard already, and its
    // device count of zero is what stops the engine there.
    c10::impl::device_guard_impl_registry[static_cast<size_t>(DeviceType::CUDA)].store(&guard);
    // `import torch` has already made the one hooks object, and PyTorch has no way to replace it, so it is given our
    // virtual table. Both classes have no data members: the table pointer is the whole object.
    const at::CUDAHooksInterface& live = at::detail::getCUDAHooks();
    if (!live.hasCUDA()) {
      std::memcpy(const_cast<void*>(static_cast<const void*>(&live)), static_cast<const void*>(&hooks), sizeof(void*));
    }
  }
} install;

static_assert(sizeof(IdleHooks) == sizeof(void*) && sizeof(at::CUDAHooksInterface) == sizeof(void*));

}  // namespace
