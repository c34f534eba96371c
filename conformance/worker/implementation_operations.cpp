#include "worker/implementation_operations.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "worker/concurrent.hpp"
#include "worker/options_json.hpp"
#include "protocol/pattern.hpp"

namespace cts {
namespace {

constexpr std::uint64_t kCopyBytes = std::uint64_t{2} << 20;  // host memory for one copy

// Calls a function of the table and throws what it reports.
template <class Function, class... Arguments>
void call(Function function, Arguments... arguments) {
  vmmcts_error error{};
  const vmmcts_status status = function(arguments..., &error);
  if (status == VMMCTS_OK) return;
  static constexpr std::array kKinds{"", "RuntimeError", "ValueError", "TypeError", "OSError"};
  error.message[sizeof(error.message) - 1] = '\0';
  const bool known = status > 0 && static_cast<std::size_t>(status) < kKinds.size();
  throw OperationError(known ? kKinds[status] : "status " + std::to_string(status), error.message,
                       error.cuda_result, error.system_errno);
}

template <class Map>
auto* get(const Map& objects, const Json& name) {
  const auto found = objects.find(name.get<int>());
  if (found == objects.end()) throw OperationError("Protocol", "no such object " + name.dump());
  return found->second.get();
}

}  // namespace

Json ImplementationOperations::buffer_json(vmmcts_buffer* buffer) {
  vmmcts_buffer_info info{};
  call(table_.buffer_info, buffer, &info);
  return {{"pointer", info.pointer}, {"size", info.size}, {"is_mapped", info.is_mapped != 0}};
}

Json ImplementationOperations::keep_buffer(vmmcts_buffer* buffer, int name) {
  buffers_.insert_or_assign(name, std::unique_ptr<vmmcts_buffer, void (*)(vmmcts_buffer*)>(
                                      buffer, table_.buffer_release));
  return buffer_json(buffer);
}

Json ImplementationOperations::descriptor_json(vmmcts_descriptor* descriptor) {
  vmmcts_descriptor_info info{};
  call(table_.descriptor_info, descriptor, &info);
  std::vector<std::uint64_t> sizes(info.count);
  std::vector<std::int32_t> fds(info.count);
  call(table_.descriptor_sizes, descriptor, sizes.data(), sizes.size());
  call(table_.descriptor_fds, descriptor, fds.data(), fds.size());
  return {{"handle_type", handle_type_name(info.handle_type)},
          {"size", info.size},
          {"sizes", sizes},
          {"fds_open", fds}};
}

Reply ImplementationOperations::resource(const Json& request) {
  const Options options(request);
  vmmcts_resource* made = nullptr;
  call(table_.resource_create, &options.value, &made);
  resources_.insert_or_assign(
      request.at("out").get<int>(),
      std::unique_ptr<vmmcts_resource, void (*)(vmmcts_resource*)>(made, table_.resource_release));
  return {{{"is_ipc_enabled", table_.resource_is_ipc_enabled(made) != 0}}};
}

Reply ImplementationOperations::allocate(const Json& request) {
  vmmcts_buffer* made = nullptr;
  call(table_.buffer_allocate, get(resources_, request.at("resource")),
       request.at("size").get<std::uint64_t>(), &made);
  return {keep_buffer(made, request.at("out"))};
}

Reply ImplementationOperations::modify(const Json& request) {
  vmmcts_buffer* made = nullptr;
  const auto config = request.find("config");
  const std::unique_ptr<Options> options =
      config == request.end() ? nullptr : std::make_unique<Options>(*config);
  call(table_.buffer_modify, get(resources_, request.at("resource")),
       get(buffers_, request.at("buffer")), request.at("size").get<std::uint64_t>(),
       options ? &options->value : nullptr, &made);
  return {keep_buffer(made, request.at("out"))};
}

Reply ImplementationOperations::fill(const Json& request) {
  vmmcts_buffer* buffer = get(buffers_, request.at("buffer"));
  const std::uint64_t begin = request.at("offset");
  const std::uint64_t end = begin + request.at("size").get<std::uint64_t>();
  std::vector<std::uint8_t> bytes;
  for (std::uint64_t at = begin; at < end; at += bytes.size()) {
    bytes.resize(std::min(kCopyBytes, end - at));
    write_pattern(bytes, request.at("seed"), at);
    call(table_.buffer_write, buffer, at, static_cast<const void*>(bytes.data()),
         static_cast<std::uint64_t>(bytes.size()));
  }
  return {};
}

Reply ImplementationOperations::verify(const Json& request) {
  vmmcts_buffer* buffer = get(buffers_, request.at("buffer"));
  const std::uint64_t begin = request.at("offset");
  const std::uint64_t end = begin + request.at("size").get<std::uint64_t>();
  std::vector<std::uint8_t> bytes;
  for (std::uint64_t at = begin; at < end; at += bytes.size()) {
    bytes.resize(std::min(kCopyBytes, end - at));
    call(table_.buffer_read, buffer, at, static_cast<void*>(bytes.data()),
         static_cast<std::uint64_t>(bytes.size()));
    const std::int64_t wrong = find_mismatch(bytes, request.at("seed"), at);
    if (wrong >= 0) return {{{"mismatch", wrong}}};
  }
  return {{{"mismatch", -1}}};
}

Reply ImplementationOperations::read(const Json& request) {
  std::vector<std::uint8_t> bytes(request.at("size").get<std::size_t>());
  call(table_.buffer_read, get(buffers_, request.at("buffer")),
       request.at("offset").get<std::uint64_t>(), static_cast<void*>(bytes.data()),
       static_cast<std::uint64_t>(bytes.size()));
  std::string hex;
  for (const std::uint8_t byte : bytes) {
    hex += "0123456789abcdef"[byte >> 4];
    hex += "0123456789abcdef"[byte & 15];
  }
  return {{{"hex", hex}}};
}

Reply ImplementationOperations::copy(const Json& request) {
  vmmcts_buffer* from = get(buffers_, request.at("from"));
  vmmcts_buffer* to = get(buffers_, request.at("to"));
  const std::uint64_t end = request.at("size");
  std::vector<std::uint8_t> bytes;
  for (std::uint64_t at = 0; at < end; at += bytes.size()) {
    bytes.resize(std::min(kCopyBytes, end - at));
    const auto size = static_cast<std::uint64_t>(bytes.size());
    call(table_.buffer_read, from, at, static_cast<void*>(bytes.data()), size);
    call(table_.buffer_write, to, at, static_cast<const void*>(bytes.data()), size);
  }
  return {};
}

Reply ImplementationOperations::export_descriptor(const Json& request) {
  vmmcts_descriptor* made = nullptr;
  call(table_.buffer_export, get(buffers_, request.at("buffer")), &made);
  descriptors_.insert_or_assign(request.at("out").get<int>(),
                                std::unique_ptr<vmmcts_descriptor, void (*)(vmmcts_descriptor*)>(
                                    made, table_.descriptor_release));
  return {descriptor_json(made)};
}

Reply ImplementationOperations::import(const Json& request) {
  vmmcts_buffer* made = nullptr;
  call(table_.buffer_import, get(resources_, request.at("resource")),
       get(descriptors_, request.at("descriptor")), &made);
  return {keep_buffer(made, request.at("out"))};
}

Reply ImplementationOperations::from_fds(const Json& request) {
  std::vector<vmmcts_fd_or_handle> fds;
  for (const Json& entry : request.at("fds")) {
    if (entry.is_object()) {
      fds.push_back({-1, get(handles_, entry.at("handle"))});
    } else {
      fds.push_back({entry.get<std::int32_t>(), nullptr});
    }
  }
  const auto sizes = request.at("sizes").get<std::vector<std::int64_t>>();
  const std::string type = request.value("handle_type", "posix_fd");
  const std::int64_t size = request.value("size", std::int64_t{0});
  vmmcts_descriptor* made = nullptr;
  call(table_.descriptor_from_fds, static_cast<const vmmcts_fd_or_handle*>(fds.data()), fds.size(),
       sizes.data(), sizes.size(),
       type == "unknown" ? std::int32_t{1024} : handle_type_from(type),
       request.contains("size") ? &size : nullptr, &made);
  descriptors_.insert_or_assign(request.at("out").get<int>(),
                                std::unique_ptr<vmmcts_descriptor, void (*)(vmmcts_descriptor*)>(
                                    made, table_.descriptor_release));
  return {descriptor_json(made)};
}

Reply ImplementationOperations::handle(const Json& request) {
  vmmcts_handle* made = nullptr;
  call(table_.descriptor_handle, get(descriptors_, request.at("descriptor")),
       request.at("index").get<std::size_t>(), &made);
  handles_.insert_or_assign(
      request.at("out").get<int>(),
      std::unique_ptr<vmmcts_handle, void (*)(vmmcts_handle*)>(made, table_.handle_release));
  std::int32_t fd = -1;
  call(table_.handle_fd, made, &fd);
  return {{{"fd", fd}}};
}

Reply ImplementationOperations::close(const Json& request) {
  const int name = request.at("object");
  if (const auto b = buffers_.find(name); b != buffers_.end()) {
    call(table_.buffer_close, b->second.get());
  } else if (const auto d = descriptors_.find(name); d != descriptors_.end()) {
    table_.descriptor_close(d->second.get());
  } else {
    table_.handle_close(get(handles_, request.at("object")));
  }
  return {};
}

Reply ImplementationOperations::drop(const Json& request) {
  const int name = request.at("object");
  const auto dropped =
      buffers_.erase(name) + descriptors_.erase(name) + handles_.erase(name) + resources_.erase(name);
  if (dropped == 0) throw OperationError("Protocol", "no such object " + std::to_string(name));
  return {};
}

Reply ImplementationOperations::concurrent(const Json& request) {
  return {run_concurrently(table_, get(resources_, request.at("resource")),
                           request.at("threads"), request.at("rounds"))};
}

Reply ImplementationOperations::import_rounds(const Json& request) {
  vmmcts_resource* resource = get(resources_, request.at("resource"));
  vmmcts_descriptor* descriptor = get(descriptors_, request.at("descriptor"));
  const int rounds = request.at("rounds");
  int wrong_bytes = 0;
  for (int round = 0; round < rounds; ++round) {
    vmmcts_buffer* made = nullptr;
    call(table_.buffer_import, resource, descriptor, &made);
    const std::unique_ptr<vmmcts_buffer, void (*)(vmmcts_buffer*)> imported(made,
                                                                            table_.buffer_release);
    std::array<std::uint8_t, 256> bytes{};
    call(table_.buffer_read, made, std::uint64_t{0}, static_cast<void*>(bytes.data()),
         std::uint64_t{bytes.size()});
    wrong_bytes += find_mismatch(bytes, request.at("seed"), 0) >= 0;
  }
  return {{{"wrong_bytes", wrong_bytes}}};
}

void ImplementationOperations::reset() {
  buffers_.clear();
  descriptors_.clear();
  handles_.clear();
  resources_.clear();
}

void ImplementationOperations::add_to(Server& server) {
  using Method = Reply (ImplementationOperations::*)(const Json&);
  const std::pair<const char*, Method> operations[] = {
      {"resource", &ImplementationOperations::resource},
      {"allocate", &ImplementationOperations::allocate},
      {"modify", &ImplementationOperations::modify},
      {"fill", &ImplementationOperations::fill},
      {"verify", &ImplementationOperations::verify},
      {"read", &ImplementationOperations::read},
      {"copy", &ImplementationOperations::copy},
      {"export", &ImplementationOperations::export_descriptor},
      {"import", &ImplementationOperations::import},
      {"from_fds", &ImplementationOperations::from_fds},
      {"handle", &ImplementationOperations::handle},
      {"close", &ImplementationOperations::close},
      {"drop", &ImplementationOperations::drop},
      {"concurrent", &ImplementationOperations::concurrent},
      {"import_rounds", &ImplementationOperations::import_rounds},
  };
  for (const auto& [name, method] : operations) {
    server.add(name, [this, method = method](Message& m) { return (this->*method)(m.body); });
  }
  server.add("info", [this](Message& m) {
    return Reply{buffer_json(get(buffers_, m.body.at("buffer")))};
  });
  server.add("descriptor", [this](Message& m) {
    return Reply{descriptor_json(get(descriptors_, m.body.at("descriptor")))};
  });
}

}  // namespace cts
