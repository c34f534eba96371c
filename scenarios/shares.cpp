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

Buffer grow_along(Worker& worker, const Resource& resource, const Buffer& buffer, GrowPath path) {
  constexpr int kTries = 50;
  const std::uint64_t unit = granule(worker, resource);
  // Neighbours take the addresses after the buffer, or are given up to free them.
  std::vector<Buffer> neighbours;
  for (int i = 0; i < kTries; ++i) {
    const Buffer grown = worker.modify(resource, buffer, buffer.size + unit).value();
    const bool moved = grown.pointer != buffer.pointer;
    if (moved == (path == GrowPath::moved)) {
      for (const Buffer& neighbour : neighbours) worker.drop(neighbour.id).value();
      return grown;
    }
    worker.drop(grown.id).value();
    if (path == GrowPath::in_place) break;  // what stands in the way is not ours to remove
    neighbours.push_back(worker.allocate(resource, unit).value());
  }
  throw NotExercised(path == GrowPath::moved ? "no grow moved" : "no grow stayed in place");
}

std::vector<tap::Call> only(const std::vector<tap::Call>& calls, std::string_view name) {
  std::vector<tap::Call> matching;
  for (const tap::Call& call : calls) {
    if (call.name == name) matching.push_back(call);
  }
  return matching;
}

}  // namespace cts
