#include "shares.hpp"

namespace cts {

std::string to_string(const Layout& layout) {
  std::string sizes;
  for (const int granules : layout) {
    sizes += (sizes.empty() ? "" : "+") + std::to_string(granules);
    if (sizes.size() > 20) {
      sizes += "...";
      break;
    }
  }
  return std::to_string(layout.size()) + " allocations of " + sizes + " granules";
}

std::uint64_t granule(Worker& worker, const Resource& resource) {
  const Buffer smallest = worker.allocate(resource, 1).value();
  worker.drop(smallest.id).value();
  return smallest.size;
}

Buffer allocate_chunks(Worker& worker, const Resource& resource, const Layout& layout) {
  const std::uint64_t unit = granule(worker, resource);
  Buffer buffer = worker.allocate(resource, layout.at(0) * unit).value();
  for (std::size_t i = 1; i < layout.size(); ++i) {
    const Buffer grown = worker.modify(resource, buffer, buffer.size + layout[i] * unit).value();
    worker.drop(buffer.id).value();
    buffer = grown;
  }
  return buffer;
}

Descriptor rebuild(const std::vector<UniqueFd>& fds, const Descriptor& like, Worker& to) {
  const ReceivedFds received = to.receive_fds(fds);
  const Descriptor rebuilt =
      to.from_fds(received.fds, like.sizes,
                  {{"handle_type", like.handle_type}, {"size", like.size}})
          .value();
  for (const int fd : received.fds) to.call("close_fd", {{"fd", fd}}).value();
  return rebuilt;
}

Descriptor forward(Worker& from, const Descriptor& descriptor, Worker& to) {
  return rebuild(from.send_fds(descriptor.fds), descriptor, to);
}

Buffer share(Worker& from, const Buffer& buffer, Worker& to, const Resource& into) {
  const Descriptor exported = from.export_descriptor(buffer).value();
  const Descriptor rebuilt = forward(from, exported, to);
  from.drop(exported.id).value();
  const Buffer imported = to.import(into, rebuilt).value();
  to.drop(rebuilt.id).value();
  return imported;
}

std::string to_string(GrowPath path) {
  return path == GrowPath::moved ? "moved" : "in place";
}

Buffer grow_moved(Worker& worker, const Resource& resource, const Buffer& buffer) {
  const Buffer first = worker.modify(resource, buffer, buffer.size + 1).value();
  if (first.pointer != buffer.pointer) return first;
  // The first result stands where the input would grow to, so the second one has to move.
  const Buffer second = worker.modify(resource, buffer, buffer.size + 1).value();
  worker.drop(first.id).value();
  return second;
}

Grown grow_along(Worker& worker, const Resource& resource, GrowPath path,
                 const std::function<Buffer()>& make) {
  constexpr int kTries = 50;
  std::vector<Buffer> spent;
  for (int i = 0; i < kTries; ++i) {
    const Buffer input = make();
    const Buffer result = path == GrowPath::moved
                              ? grow_moved(worker, resource, input)
                              : worker.modify(resource, input, input.size + 1).value();
    const bool moved = result.pointer != input.pointer;
    if (moved == (path == GrowPath::moved)) {
      for (const Buffer& other : spent) worker.drop(other.id).value();
      return {input, result};
    }
    worker.drop(result.id).value();
    spent.push_back(input);
  }
  throw NotExercised("no grow " + std::string(path == GrowPath::moved ? "moved" : "stayed in place"));
}

std::vector<tap::Call> only(const std::vector<tap::Call>& calls, std::string_view name) {
  std::vector<tap::Call> matching;
  for (const tap::Call& call : calls) {
    if (call.name == name) matching.push_back(call);
  }
  return matching;
}

}  // namespace cts
