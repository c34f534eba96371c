// Raw file descriptors: from_fds, os.dup and SCM_RIGHTS round trips.
#include <algorithm>

#include "shares.hpp"

using namespace cts;

namespace {

// Something that from_fds has to refuse, with `good` as what it would take.
struct BadCall {
  std::string name;
  std::string clause;
  std::string kind;
  Json fds, sizes, more;
};

std::vector<BadCall> bad_calls(const std::vector<int>& fds, const std::vector<std::uint64_t>& sizes) {
  const Json good_fds = fds;
  const Json good_sizes = sizes;
  Json fewer = good_sizes;
  fewer.erase(0);
  std::uint64_t sum = 0;
  for (const std::uint64_t size : sizes) sum += size;
  std::vector<BadCall> calls{
      {"fewer sizes than fds", "RAW-05", "ValueError", good_fds, fewer, {}},
      {"no fds", "RAW-05", "ValueError", Json::array(), good_sizes, {}},
      {"a size above the sum", "RAW-07", "ValueError", good_fds, good_sizes, {{"size", sum + 1}}},
      {"a negative size", "RAW-07", "ValueError", good_fds, good_sizes, {{"size", -1}}},
  };
  for (const char* type : {"none", "win32", "fabric", "unknown"}) {
    calls.push_back({std::string("handle type ") + type, "RAW-08", "ValueError", good_fds,
                     good_sizes, {{"handle_type", type}}});
  }
  for (std::size_t at = 0; at < sizes.size(); ++at) {
    const std::string where = " at " + std::to_string(at);
    for (const std::int64_t wrong : {std::int64_t{0}, std::int64_t{-1}}) {
      Json changed = good_sizes;
      changed[at] = wrong;
      calls.push_back({"size " + std::to_string(wrong) + where, "RAW-06", "ValueError", good_fds,
                       changed, {}});
    }
    for (const int wrong : {-1, 1 << 20}) {
      Json changed = good_fds;
      changed[at] = wrong;
      calls.push_back({"fd " + std::to_string(wrong) + where, "RAW-10", "OSError", changed,
                       good_sizes, {}});
    }
  }
  return calls;
}

}  // namespace

VMMCTS_SCENARIO("rawfd", "raw fds: a dup of each fd rebuilds the descriptor after it is dropped",
                "[RAW-01][RAW-04][RAW-12][RAW-16][PIN-08]") {
  Worker& exporter = s.worker("exporter");
  const Resource resource = exporter.resource().value();
  const FdSet before = exporter.fds();
  for (const Layout& layout : std::vector<Layout>{{1}, {1, 2, 3}}) {
    const auto in_case = s.in_case(to_string(layout));
    const Buffer buffer = allocate_chunks(exporter, resource, layout);
    exporter.fill(buffer, 51);
    const Descriptor exported = exporter.export_descriptor(buffer).value();
    std::vector<int> dups;
    for (const int fd : exported.fds) {
      dups.push_back(exporter.call("dup", {{"fd", fd}}).value().at("fd"));
    }
    exporter.drop(exported.id).value();
    exporter.close(buffer.id).value();
    const auto rebuilt = exporter.from_fds(dups, exported.sizes).value();
    s.check_equal("RAW-04", "default handle type", rebuilt.handle_type, std::string("posix_fd"));
    s.check_equal("RAW-04", "default size", rebuilt.size, buffer.size);
    s.check_equal("RAW-16", "sizes", rebuilt.sizes, exported.sizes);
    for (const int fd : rebuilt.fds) {
      s.check("RAW-01", std::find(dups.begin(), dups.end(), fd) == dups.end(),
              "from_fds takes duplicates of integers");
    }
    // The caller's own go first; the descriptor's duplicates pin the memory.
    for (const int fd : dups) exporter.call("close_fd", {{"fd", fd}}).value();
    const Buffer imported = exporter.import(resource, rebuilt).value();
    s.check_bytes("RAW-12 PIN-08", exporter, imported, 51, "imported from the dups");
    exporter.fill(imported, 52);
    const Buffer again = exporter.import(resource, rebuilt).value();
    s.check_bytes("RAW-12", exporter, again, 52, "written through the other import");
    exporter.drop(imported.id).value();
    exporter.drop(again.id).value();
    exporter.drop(rebuilt.id).value();
    s.check_fds("RAW-12", exporter, before, "after the round trip");
  }
}

VMMCTS_SCENARIO("rawfd", "raw fds: SCM_RIGHTS carries bytes both ways and leaves both sides clean",
                "[RAW-13][RAW-16]") {
  Worker& exporter = s.worker("exporter");
  Worker& importer = s.worker("importer");
  const Resource source = exporter.resource().value();
  const Resource into = importer.resource().value();
  const FdSet exporter_before = exporter.fds();
  const FdSet importer_before = importer.fds();
  for (const Layout& layout : std::vector<Layout>{{1}, {2, 1}, {1, 2, 3}}) {
    const auto in_case = s.in_case(to_string(layout));
    const Buffer buffer = allocate_chunks(exporter, source, layout);
    exporter.fill(buffer, 53);
    const Descriptor exported = exporter.export_descriptor(buffer).value();
    const Descriptor received = forward(exporter, exported, importer);
    s.check_equal("RAW-16", "sizes", received.sizes, exported.sizes);
    s.check_equal("RAW-16", "size", received.size, exported.size);
    const Buffer imported = importer.import(into, received).value();
    s.check_bytes("RAW-13", importer, imported, 53, "that the exporter wrote");
    importer.fill(imported, 54);
    s.check_bytes("RAW-13", exporter, buffer, 54, "that the importer wrote");
    for (const int id : {imported.id, received.id}) importer.drop(id).value();
    for (const int id : {buffer.id, exported.id}) exporter.drop(id).value();
    s.check_fds("RAW-13", exporter, exporter_before, "after the round trip");
    s.check_fds("RAW-13", importer, importer_before, "after the round trip");
  }
}

VMMCTS_SCENARIO("rawfd", "raw fds: a socket between two workers pins what is in flight",
                "[RAW-13][PIN-07]") {
  Worker& exporter = s.worker("exporter");
  Worker& importer = s.worker("importer");
  const Resource source = exporter.resource().value();
  const Resource into = importer.resource().value();
  const std::uint64_t free = s.free_memory();
  const Buffer buffer = exporter.allocate(source, 1).value();
  exporter.fill(buffer, 55);
  const auto ends = exporter.call("socketpair").value().at("fds").get<std::vector<int>>();
  auto far_end = exporter.send_fds({ends[1]});
  const int socket = importer.receive_fds(far_end).fds.at(0);
  far_end.clear();
  exporter.call("close_fd", {{"fd", ends[1]}}).value();
  const Descriptor exported = exporter.export_descriptor(buffer).value();
  exporter.call("sendmsg", {{"socket", ends[0]}, {"fds", exported.fds}}).value();
  // Nobody but the socket holds the memory now.
  exporter.reset();
  s.check_free_memory("PIN-07", free - buffer.size, "with the fd in flight");
  const Json arrived = importer.call("recvmsg", {{"socket", socket}}).value();
  const Descriptor received = importer.from_fds(arrived.at("received"), exported.sizes).value();
  const Buffer imported = importer.import(into, received).value();
  s.check_bytes("PIN-07 RAW-13", importer, imported, 55, "that came through the socket");
}

VMMCTS_SCENARIO("rawfd", "raw fds: an in-flight fd outlives the sender's death", "[PIN-07][PIN-10]") {
  Worker& exporter = s.worker("exporter");
  Worker& importer = s.worker("importer");
  const Resource into = importer.resource().value();
  const std::uint64_t unit = granule(importer, into);
  const Resource source = exporter.resource().value();
  const Buffer buffer = exporter.allocate(source, unit).value();
  exporter.fill(buffer, 56);
  const Descriptor exported = exporter.export_descriptor(buffer).value();
  const auto in_flight = exporter.send_fds(exported.fds);
  exporter.kill();
  const Descriptor received = rebuild(in_flight, exported, importer);
  const Buffer imported = importer.import(into, received).value();
  s.check_bytes("PIN-07 PIN-10", importer, imported, 56, "after the sender was killed");
  importer.fill(imported, 57);
  s.check_bytes("PIN-10", importer, imported, 57, "written after the sender was killed");
}

VMMCTS_SCENARIO("rawfd", "raw fds: more than 253 fds travel in batches", "[RAW-14][GROW-13]") {
  Worker& exporter = s.worker("exporter");
  Worker& importer = s.worker("importer");
  const Resource source = exporter.resource().value();
  const Resource into = importer.resource().value();
  const FdSet before = importer.fds();
  const Buffer buffer = allocate_chunks(exporter, source, Layout(300, 1));
  const std::uint64_t unit = buffer.size / 300;
  for (const std::uint64_t chunk : {0, 252, 253, 299}) {
    exporter.fill(buffer, chunk, chunk * unit, 16);
  }
  const Descriptor exported = exporter.export_descriptor(buffer).value();
  s.check_equal("GROW-13", "allocations", exported.sizes.size(), std::size_t{300});
  const Descriptor received = forward(exporter, exported, importer);
  const Buffer imported = importer.import(into, received).value();
  for (const std::uint64_t chunk : {0, 252, 253, 299}) {
    s.check_equal("RAW-14 GROW-13", "first wrong byte in chunk " + std::to_string(chunk),
                  importer.mismatch(imported, chunk, chunk * unit, 16), std::int64_t{-1});
  }
  importer.drop(imported.id).value();
  importer.drop(received.id).value();
  s.check_fds("RAW-14", importer, before, "after 300 fds");
}

VMMCTS_SCENARIO("rawfd", "raw fds: a truncated message ends in a count error",
                "[RAW-15][RAW-22][RAW-05]") {
  Worker& exporter = s.worker("exporter");
  Worker& importer = s.worker("importer");
  const Resource source = exporter.resource().value();
  const FdSet before = importer.fds();
  const Buffer buffer = allocate_chunks(exporter, source, {1, 1, 1});
  const Descriptor exported = exporter.export_descriptor(buffer).value();
  const auto fds = exporter.send_fds(exported.fds);
  importer.leave_free_fds(1);
  const ReceivedFds received = importer.receive_fds(fds);
  s.check("", received.truncated && received.fds.size() == 1, "the message was truncated to 1 fd");
  importer.restore_fd_limit();
  const auto refused = importer.from_fds(received.fds, exported.sizes);
  s.check_error("RAW-15 RAW-05", refused, "ValueError");
  for (const int fd : received.fds) importer.call("close_fd", {{"fd", fd}}).value();
  s.check_fds("RAW-15", importer, before, "after the refused descriptor");
  // Two descriptors where one was announced, none where one was.
  const ReceivedFds all = importer.receive_fds(fds);
  const Json one_size = Json::array({exported.sizes[0]});
  s.check_error("RAW-22", importer.from_fds({all.fds[0], all.fds[1]}, one_size), "ValueError");
  s.check_error("RAW-22", importer.from_fds(Json::array(), one_size), "ValueError");
  for (const int fd : all.fds) importer.call("close_fd", {{"fd", fd}}).value();
  s.check_fds("RAW-22", importer, before, "after hostile counts");
}

VMMCTS_SCENARIO("rawfd", "raw fds: a bad argument is refused and every fd is accounted for",
                "[RAW-05][RAW-06][RAW-07][RAW-08][RAW-10][RAW-11][RAW-19]") {
  Worker& exporter = s.worker("exporter");
  const Resource resource = exporter.resource().value();
  const Buffer buffer = allocate_chunks(exporter, resource, {1, 2, 1});
  const Descriptor exported = exporter.export_descriptor(buffer).value();
  const FdSet before = exporter.fds();
  for (const BadCall& bad : bad_calls(exported.fds, exported.sizes)) {
    const auto in_case = s.in_case(bad.name);
    const Json more = bad.more.is_null() ? Json::object() : bad.more;
    const auto refused = exporter.from_fds(bad.fds, bad.sizes, more);
    s.check_error(bad.clause, refused, bad.kind);
    if (bad.clause == "RAW-10" && !refused.ok()) {
      s.check_equal("RAW-10", "errno", refused.error().error_number, EBADF);
    }
    s.check_fds("RAW-11", exporter, before, "after the refusal");
    s.check_no_driver_calls("RAW-19", refused);
    if (refused.ok()) exporter.drop(refused.value().id).value();
  }
  const auto good = exporter.from_fds(exported.fds, exported.sizes);
  s.check_no_driver_calls("RAW-19", good);
  s.check("RAW-11", good.ok(), "the same fds and sizes are accepted");
}

VMMCTS_SCENARIO("rawfd", "raw fds: handles are shared and integers are duplicated",
                "[RAW-02][RAW-03][RAW-09][RAW-11][RAW-20]") {
  Worker& exporter = s.worker("exporter");
  const Resource resource = exporter.resource().value();
  const Buffer buffer = allocate_chunks(exporter, resource, {1, 1});
  exporter.fill(buffer, 58);
  const FdSet before = exporter.fds();
  const Descriptor exported = exporter.export_descriptor(buffer).value();
  const FdSet with_descriptor = exporter.fds();
  const Handle first = exporter.handle(exported, 0).value();
  s.check_equal("RAW-20", "the handle's fd", first.fd, exported.fds[0]);
  s.check_fds("RAW-02", exporter, with_descriptor, "with a handle taken");
  const Json mixed = Json::array({Json{{"handle", first.id}}, exported.fds[1]});
  const Descriptor rebuilt = exporter.from_fds(mixed, exported.sizes).value();
  s.check_equal("RAW-02", "the shared fd", rebuilt.fds[0], exported.fds[0]);
  s.check("RAW-03", rebuilt.fds[1] != exported.fds[1], "the integer beside it was duplicated");
  s.check_fds_added("RAW-03", exporter, with_descriptor, 1, "with one handle and one integer");
  exporter.drop(exported.id).value();
  s.check("RAW-02", exporter.fds().contains(rebuilt.fds[0]), "the fd stays with its other holders");
  const Buffer imported = exporter.import(resource, rebuilt).value();
  s.check_bytes("RAW-03", exporter, imported, 58, "imported from a mixed descriptor");
  exporter.drop(rebuilt.id).value();
  s.check("RAW-02", exporter.fds().contains(first.fd), "the last holder still has the fd");
  exporter.drop(imported.id).value();
  exporter.drop(first.id).value();
  s.check_fds("RAW-02 RAW-20", exporter, before, "after the last holder went");

  const Descriptor other = exporter.export_descriptor(buffer).value();
  const Handle closed = exporter.handle(other, 0).value();
  exporter.close(closed.id).value();
  const FdSet with_other = exporter.fds();
  for (const bool closed_first : {true, false}) {
    const auto in_case = s.in_case(closed_first ? "closed handle first" : "closed handle last");
    const Json handle = {{"handle", closed.id}};
    const Json integer = other.fds[1];
    const auto refused =
        exporter.from_fds(closed_first ? Json::array({handle, integer})
                                       : Json::array({integer, handle}),
                          other.sizes);
    s.check_error("RAW-09", refused, "RuntimeError");
    s.check_fds("RAW-11", exporter, with_other, "after the refusal");
  }
}

VMMCTS_SCENARIO("rawfd", "raw fds: pidfd_getfd carries a descriptor", "[RAW-21]") {
  Worker& exporter = s.worker("exporter");
  Worker& importer = s.worker("importer");
  const Resource source = exporter.resource().value();
  const Resource into = importer.resource().value();
  const Buffer buffer = allocate_chunks(exporter, source, {1, 2});
  exporter.fill(buffer, 59);
  const Descriptor exported = exporter.export_descriptor(buffer).value();
  std::vector<int> copies;
  for (const int fd : exported.fds) {
    const auto got = importer.call("pidfd_getfd", {{"pid", exporter.pid()}, {"fd", fd}});
    if (!got.ok()) throw NotExercised("pidfd_getfd: " + got.error().to_string());
    copies.push_back(got.value().at("fd"));
  }
  const Descriptor received = importer.from_fds(copies, exported.sizes).value();
  exporter.drop(exported.id).value();
  const Buffer imported = importer.import(into, received).value();
  s.check_bytes("RAW-21", importer, imported, 59, "carried by pidfd_getfd");
}

VMMCTS_SCENARIO("rawfd", "raw fds: inheritance over exec carries a descriptor", "[RAW-21]") {
  Worker& exporter = s.worker("exporter");
  const Resource source = exporter.resource().value();
  const Buffer buffer = allocate_chunks(exporter, source, {1, 2});
  exporter.fill(buffer, 60);
  const Descriptor exported = exporter.export_descriptor(buffer).value();
  Worker& heir = s.worker_inheriting("heir", exporter.send_fds(exported.fds));
  exporter.drop(exported.id).value();
  const Json inherited = {kFirstInherited, kFirstInherited + 1};
  const Descriptor received = heir.from_fds(inherited, exported.sizes).value();
  const Resource into = heir.resource().value();
  const Buffer imported = heir.import(into, received).value();
  s.check_bytes("RAW-21", heir, imported, 60, "inherited over exec");
  heir.fill(imported, 61);
  s.check_bytes("RAW-21", exporter, buffer, 61, "that the heir wrote");
}
