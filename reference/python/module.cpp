// The native half of vmmref: the reference library's objects, with errors as Python exceptions. The
// public classes and the pickling are in Python.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "driver.hpp"
#include "resource.hpp"

namespace nb = nanobind;

namespace {

// A shared object as Python holds it. What its end costs, driver calls or closes, is paid without
// the GIL; at interpreter shutdown there is no GIL to give back, and none is needed.
template <class Handle>
struct Held {
  Handle object;

  explicit Held(Handle held) : object(std::move(held)) {}
  Held(Held&&) = default;
  ~Held() {
    if (!object) return;
    if (nb::is_alive() && PyGILState_Check()) {
      nb::gil_scoped_release release;
      object.reset();
    }
  }
};

using Resource = Held<vmm::ResourceHandle>;
using Buffer = Held<vmm::BufferHandle>;
using Descriptor = Held<vmm::DescriptorHandle>;
using Handle = Held<vmm::IPCHandle>;

// Raises `error` as the exception of its kind; all carry cuda_result, an OSError also errno.
[[noreturn]] void raise(const vmm::Error& error) {
  nb::object type = nb::borrow(error.kind == vmm::ErrorKind::kValue  ? PyExc_ValueError
                               : error.kind == vmm::ErrorKind::kType ? PyExc_TypeError
                               : error.kind == vmm::ErrorKind::kOs   ? PyExc_OSError
                                                                     : PyExc_RuntimeError);
  nb::object exception = error.kind == vmm::ErrorKind::kOs
                             ? type(error.system_errno, error.message())
                             : type(error.message());
  exception.attr("cuda_result") = static_cast<int>(error.cuda_result);
  PyErr_SetObject(type.ptr(), exception.ptr());
  throw nb::python_error();
}

// Runs `call` without the GIL and unwraps its result.
template <class Call>
auto without_gil(Call&& call) {
  auto result = [&] {
    nb::gil_scoped_release release;
    return call();
  }();
  if (!result) raise(result.error());
  return std::move(*result);
}

vmm::VirtualMemoryResourceOptions options(int handle_type, int location_type, int self_access,
                                          int peer_access, std::vector<int> peers) {
  return {static_cast<CUmemAllocationHandleType>(handle_type),
          static_cast<CUmemLocationType>(location_type),
          static_cast<CUmemAccess_flags>(self_access), static_cast<CUmemAccess_flags>(peer_access),
          std::move(peers)};
}

std::vector<Handle> hold(std::vector<vmm::IPCHandle> handles) {
  std::vector<Handle> held;
  for (auto& handle : handles) held.emplace_back(std::move(handle));
  return held;
}

// The buffer's bytes as a DLPack capsule, which keeps the memory [MP-21].
nb::object dlpack(const Buffer& buffer) {
  using Shared = std::shared_ptr<const vmm::Range>;
  auto range = buffer.object->range();
  if (!range) raise(range.error());
  auto* kept = new Shared(*range);
  nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<Shared*>(p); });
  nb::ndarray<std::uint8_t, nb::ndim<1>, nb::device::cuda> array(
      reinterpret_cast<void*>((*kept)->pointer()), {buffer.object->size()}, owner, {},
      nb::dtype<std::uint8_t>(), nb::device::cuda::value, buffer.object->resource()->device());
  return nb::cast(array);
}

}  // namespace

NB_MODULE(_vmmref, m) {
  // Objects that live until the interpreter ends are legal [DESC-14]; the process gives all back.
  nb::set_leak_warnings(false);
  using namespace nb::literals;

  nb::class_<vmm::VirtualMemoryResourceOptions>(m, "Options").def(
      "__init__", [](vmm::VirtualMemoryResourceOptions* self, int handle_type, int location_type,
                     int self_access, int peer_access, std::vector<int> peers) {
        new (self) vmm::VirtualMemoryResourceOptions(
            options(handle_type, location_type, self_access, peer_access, std::move(peers)));
      });

  nb::class_<Handle>(m, "Handle")
      .def("__init__", [](Handle* self, int owned) {
        new (self) Handle(std::make_shared<vmm::IPCAllocationHandle>(vmm::UniqueFd(owned)));
      })
      .def("fd", [](const Handle& self) { return without_gil([&] { return self.object->fd(); }); })
      .def("duplicate",
           [](const Handle& self) {
             return Handle(without_gil([&]() -> vmm::Result<vmm::IPCHandle> {
               auto open = self.object->lease();
               if (!open) return self.object->fd().error();
               auto copy = vmm::UniqueFd::duplicate(open->borrow());
               if (!copy) return copy.error();
               return std::make_shared<vmm::IPCAllocationHandle>(std::move(*copy));
             }));
           })
      .def("close", [](Handle& self) { self.object->close(); },
           nb::call_guard<nb::gil_scoped_release>());

  nb::class_<Descriptor>(m, "Descriptor")
      .def("__init__",
           [](Descriptor* self, int handle_type, std::uint64_t size,
              std::vector<std::uint64_t> sizes, nb::list handles) {
             std::vector<vmm::IPCHandle> shared;
             for (nb::handle item : handles) shared.push_back(nb::cast<Handle&>(item).object);
             new (self) Descriptor(std::make_shared<vmm::VirtualMemoryIPCBufferDescriptor>(
                 static_cast<CUmemAllocationHandleType>(handle_type), size, std::move(sizes),
                 std::move(shared)));
           })
      .def_static("from_fds",
                  [](nb::list fds, std::vector<std::int64_t> sizes, int handle_type,
                     std::optional<std::int64_t> size) {
                    std::vector<std::variant<vmm::BorrowedFd, vmm::IPCHandle>> items;
                    for (nb::handle item : fds) {
                      if (nb::isinstance<Handle>(item))
                        items.emplace_back(nb::cast<Handle&>(item).object);
                      else
                        items.emplace_back(vmm::BorrowedFd{nb::cast<int>(item)});
                    }
                    return Descriptor(without_gil([&] {
                      return vmm::VirtualMemoryIPCBufferDescriptor::from_fds(
                          items, sizes, static_cast<CUmemAllocationHandleType>(handle_type), size);
                    }));
                  },
                  "fds"_a, "sizes"_a, "handle_type"_a, "size"_a.none())
      .def_prop_ro("handle_type",
                   [](const Descriptor& self) { return int(self.object->handle_type()); })
      .def_prop_ro("size", [](const Descriptor& self) { return self.object->size(); })
      .def_prop_ro("sizes", [](const Descriptor& self) { return self.object->sizes(); })
      .def("handles",
           [](const Descriptor& self) {
             return hold(without_gil([&] { return self.object->handles(); }));
           })
      .def("fds",
           [](const Descriptor& self) {
             return without_gil([&] { return self.object->fds(); });
           })
      .def("close", [](Descriptor& self) { self.object->close(); },
           nb::call_guard<nb::gil_scoped_release>());

  nb::class_<Buffer>(m, "Buffer")
      .def_prop_ro("pointer",
                   [](const Buffer& self) {
                     return without_gil([&] { return self.object->pointer(); });
                   })
      .def_prop_ro("size",
                   [](const Buffer& self) {
                     without_gil([&] { return self.object->range(); });  // a closed one is an error
                     return self.object->size();
                   })
      .def_prop_ro("is_mapped", [](const Buffer& self) { return self.object->is_mapped(); })
      .def("export_",
           [](const Buffer& self) {
             return Descriptor(without_gil([&] { return self.object->ipc_descriptor(); }));
           })
      .def("write",
           [](const Buffer& self, std::size_t offset, nb::bytes data) {
             without_gil([&] { return self.object->write(offset, data.c_str(), data.size()); });
           })
      .def("read",
           [](const Buffer& self, std::size_t offset, std::size_t size) {
             without_gil([&]() -> vmm::Status {  // bounds before the bytes are allocated
               auto range = self.object->range();
               if (!range) return range.error();
               if (offset > self.object->size() || size > self.object->size() - offset)
                 return vmm::value_error("the bytes are outside the buffer");
               return vmm::Done{};
             });
             auto bytes = nb::steal<nb::bytes>(
                 PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size)));
             if (!bytes.is_valid()) throw nb::python_error();
             char* to = PyBytes_AsString(bytes.ptr());
             without_gil([&] { return self.object->read(offset, to, size); });
             return bytes;
           })
      .def("dlpack", &dlpack)
      .def("close", [](Buffer& self) { self.object->close(); },
           nb::call_guard<nb::gil_scoped_release>());

  nb::class_<Resource>(m, "Resource")
      .def("__init__",
           [](Resource* self, int device, const vmm::VirtualMemoryResourceOptions& chosen) {
             new (self) Resource(
                 without_gil([&] { return vmm::VirtualMemoryResource::create(device, chosen); }));
           })
      .def_prop_ro("is_ipc_enabled",
                   [](const Resource& self) { return self.object->is_ipc_enabled(); })
      .def("allocate",
           [](const Resource& self, std::size_t size) {
             return Buffer(without_gil([&] { return self.object->allocate(size); }));
           })
      .def("modify",
           [](const Resource& self, const Buffer& buffer, std::size_t size,
              const vmm::VirtualMemoryResourceOptions* config) {
             return Buffer(without_gil([&] {
               return self.object->modify_allocation(*buffer.object, size, config);
             }));
           },
           "buffer"_a, "size"_a, "config"_a.none())
      .def("import_", [](const Resource& self, const Descriptor& descriptor) {
        return Buffer(
            without_gil([&] { return self.object->from_ipc_descriptor(*descriptor.object); }));
      });
}
