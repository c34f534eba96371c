// Each witness is shown something wrong, and has to notice it, in every run.
#include "shares.hpp"

using namespace cts;

VMMCTS_SCENARIO("core", "canary: a planted descriptor turns the fd witness red", "") {
  Worker& worker = s.worker("exporter");
  const FdSet before = worker.fds();
  const int planted = worker.call("open_fd", {{"kind", "pipe"}}).value().at("fd");
  s.must_notice("a leaked descriptor", [&] { s.check_fds("", worker, before, "with a leak"); });
  worker.call("close_fd", {{"fd", planted}}).value();
  const int reused = worker.call("open_fd", {{"kind", "memfd"}}).value().at("fd");
  const FdSet with_memfd = worker.fds();
  worker.call("close_fd", {{"fd", reused}}).value();
  s.check_equal("", "the number that a new pipe gets",
                worker.call("open_fd", {{"kind", "pipe"}}).value().at("fd").get<int>(), reused);
  s.must_notice("a number that refers to another file",
                [&] { s.check_fds("", worker, with_memfd, "with a reused number"); });
}

VMMCTS_SCENARIO("core", "canary: an open of one file is told from a dup", "") {
  Worker& worker = s.worker("exporter");
  const int first = worker.call("open_fd", {{"kind", "null"}}).value().at("fd");
  const int second = worker.call("open_fd", {{"kind", "null"}}).value().at("fd");
  const int copy = worker.call("dup", {{"fd", first}}).value().at("fd");
  const auto fds = worker.send_fds({first, second, copy});
  s.check("", !same_open_file(fds[0].get(), fds[1].get()), "two opens are two files");
  s.check("", same_open_file(fds[0].get(), fds[2].get()), "a dup is the same file");
}

VMMCTS_SCENARIO("core", "canary: memory held back turns the memory witness red", "") {
  Worker& worker = s.worker("exporter");
  const Resource resource = worker.resource().value();
  const std::uint64_t before = s.free_memory();
  worker.allocate(resource, 1).value();
  s.must_notice("a leaked granule", [&] { s.check_free_memory("", before, "with a leak"); });
}

VMMCTS_SCENARIO("core", "canary: wrong bytes turn the byte witness red", "") {
  Worker& worker = s.worker("exporter");
  const Resource resource = worker.resource().value();
  const Buffer buffer = worker.allocate(resource, 1).value();
  worker.fill(buffer, 5);
  worker.fill(buffer, 6, buffer.size - 1, 1);
  s.must_notice("one wrong byte at the end",
                [&] { s.check_bytes("", worker, buffer, 5, "with one wrong byte"); });
  s.check_equal("", "offset of the wrong byte", worker.mismatch(buffer, 5),
                static_cast<std::int64_t>(buffer.size - 1));
}

VMMCTS_SCENARIO("core", "canary: a driver call turns the trace witness red", "") {
  Worker& worker = s.worker("exporter");
  const Resource resource = worker.resource().value();
  const auto allocated = worker.allocate(resource, 1);
  s.must_notice("the calls of an allocation",
                [&] { s.check_no_driver_calls("", allocated); });
}

VMMCTS_SCENARIO("core", "canary: a live buffer turns the witness of driver objects red", "") {
  if (!s.plan().tap) throw NotExercised("the driver calls are not traced (no tap)");
  Worker& worker = s.worker("exporter");
  const Resource resource = worker.resource().value();
  const tap::Held before = s.held(worker);
  const Buffer buffer = worker.allocate(resource, 1).value();
  s.must_notice("a live buffer", [&] { s.check_held("", worker, before, "with a buffer"); });
  worker.drop(buffer.id).value();
  s.check_held("", worker, before, "after it was dropped");
}

VMMCTS_SCENARIO("core", "canary: an answer of another kind turns the error witness red", "") {
  Worker& worker = s.worker("exporter");
  const Resource resource = worker.resource().value();
  s.must_notice("a success where an error is due",
                [&] { s.check_error("", worker.allocate(resource, 1), "RuntimeError"); });
  const auto refused = worker.from_fds({-1}, {1});
  s.must_notice("an error of another kind",
                [&] { s.check_error("", refused, "TypeError"); });
  s.must_notice("a message without its statement",
                [&] { s.check_error("", refused, refused.error().kind, {"no such words"}); });
}
