// Lets torch carry tensors that say they are on one GPU: autograd and indexing ask these two for it. Loaded after
// those of a torch that has CUDA, they take their place.
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace at {
struct CUDAHooks : public CUDAHooksInterface { // torch looks for it by this name
  CUDAHooks(CUDAHooksArgs) {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return 1; }
  // Asked when attention is chosen, where CUDA is compiled in; older versions of torch lack the second.
  long versionCuDNN() const override { return 0; }
  long versionRuntimeCuDNN() const { return 0; }
  DeviceIndex getCurrentDevice() const override { return 0; }
};
C10_REGISTER_CLASS_WITH_PRIORITY(CUDAHooksRegistry, CUDAHooks, c10::REGISTRY_PREFERRED, CUDAHooks)
} // namespace at

namespace c10::impl {
struct OneDevice : public NoOpDeviceGuardImpl<DeviceType::CUDA> {
  Device exchangeDevice(Device) const override { return getDevice(); }
  Device getDevice() const override { return Device(DeviceType::CUDA, 0); }
  Stream getStream(Device) const noexcept override { return Stream(Stream::DEFAULT, Device(DeviceType::CUDA, 0)); }
  Stream exchangeStream(Stream) const noexcept override { return getStream(getDevice()); }
};
C10_REGISTER_GUARD_IMPL(CUDA, OneDevice);
} // namespace c10::impl
