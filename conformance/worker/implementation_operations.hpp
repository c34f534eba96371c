// The operations on the implementation under test, over its C table.
#pragma once

#include <map>
#include <memory>

#include "vmmcts/implementation.h"
#include "worker/server.hpp"

namespace cts {

class ImplementationOperations {
 public:
  explicit ImplementationOperations(const vmmcts_implementation& table) : table_(table) {}

  // Adds the operations to the server; *this must outlive it.
  void add_to(Server& server);

  // Releases every object, buffers and descriptors before the resources.
  void reset();

 private:
  template <class T>
  using Objects = std::map<int, std::unique_ptr<T, void (*)(T*)>>;

  Reply resource(const Json& request);
  Reply allocate(const Json& request);
  Reply modify(const Json& request);
  Reply fill(const Json& request);
  Reply verify(const Json& request);
  Reply read(const Json& request);
  Reply copy(const Json& request);
  Reply export_descriptor(const Json& request);
  Reply import(const Json& request);
  Reply from_fds(const Json& request);
  Reply handle(const Json& request);
  Reply close(const Json& request);
  Reply drop(const Json& request);
  Reply concurrent(const Json& request);
  Reply import_rounds(const Json& request);

  Json keep_buffer(vmmcts_buffer* buffer, int name);
  Json buffer_json(vmmcts_buffer* buffer);
  Json descriptor_json(vmmcts_descriptor* descriptor);

  const vmmcts_implementation& table_;
  Objects<vmmcts_resource> resources_;
  Objects<vmmcts_buffer> buffers_;
  Objects<vmmcts_descriptor> descriptors_;
  Objects<vmmcts_handle> handles_;
};

}  // namespace cts
