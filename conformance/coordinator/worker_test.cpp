// A worker that dies, hangs or talks nonsense is an outcome of its own, and nothing is left of it.
#include "coordinator/worker.hpp"

#include <catch2_compat.hpp>
#include <csignal>
#include <cstdlib>
#include <filesystem>

#include "coordinator/process.hpp"

namespace {

using cts::Json;
using cts::Worker;
using cts::WorkerLost;

// A fake worker with the given behaviour.
struct Fake {
  explicit Fake(const std::string& behaviour)
      : worker("fake",
               cts::Process::start({{FAKE_WORKER, behaviour}, {}, "/dev/null", {}}), nullptr,
               std::chrono::milliseconds(behaviour == "hang" ? 300 : 10000)) {}
  Worker worker;
};

WorkerLost lost(Worker& worker, Json arguments = Json::object()) {
  try {
    worker.call("misbehave", std::move(arguments));
  } catch (const WorkerLost& error) {
    return error;
  }
  FAIL("the worker was not lost");
  throw std::logic_error("unreachable");
}

bool group_gone(pid_t leader) { return ::kill(-leader, 0) != 0; }

}  // namespace

TEST_CASE("a worker answers and reports errors") {
  Fake fake("error");
  const auto answer = fake.worker.call("misbehave");
  REQUIRE(!answer.ok());
  CHECK(answer.error().kind == "ValueError");
  CHECK(answer.error().message == "as asked");
  CHECK(answer.error().cuda == 1);
  CHECK(answer.error().error_number == 2);
  CHECK_THROWS_AS(answer.value(), cts::UnexpectedAnswer);
  CHECK_THROWS_AS(fake.worker.call("reset").error(), cts::UnexpectedAnswer);
}

TEST_CASE("a crash names the signal and the step") {
  Fake fake("crash");
  const WorkerLost error = lost(fake.worker);
  CHECK(error.outcome == WorkerLost::Outcome::crash);
  CHECK(std::string(error.what()).find("signal 11") != std::string::npos);
  CHECK(std::string(error.what()).find("misbehave") != std::string::npos);
  CHECK(!fake.worker.alive());
}

TEST_CASE("an exit in the middle of a request is a crash with its status") {
  Fake fake("exit");
  const WorkerLost error = lost(fake.worker);
  CHECK(error.outcome == WorkerLost::Outcome::crash);
  CHECK(std::string(error.what()).find("exit status 5") != std::string::npos);
}

TEST_CASE("a hang ends at the deadline and takes its children along") {
  cts::become_subreaper();
  Fake fake("hang");
  const pid_t pid = fake.worker.pid();
  CHECK(lost(fake.worker).outcome == WorkerLost::Outcome::hang);
  CHECK(group_gone(pid));
}

TEST_CASE("the children of a crashed worker are killed") {
  cts::become_subreaper();
  Fake fake("crash with a child");
  const pid_t pid = fake.worker.pid();
  CHECK(lost(fake.worker).outcome == WorkerLost::Outcome::crash);
  CHECK(group_gone(pid));
}

TEST_CASE("nonsense is a protocol error") {
  for (const char* behaviour : {"nonsense", "other reply"}) {
    Fake fake(behaviour);
    CHECK(lost(fake.worker).outcome == WorkerLost::Outcome::protocol);
    CHECK(group_gone(fake.worker.pid()));
  }
}

TEST_CASE("half a line and an exit are a crash") {
  Fake fake("half a line");
  CHECK(lost(fake.worker).outcome == WorkerLost::Outcome::crash);
}

TEST_CASE("descriptors that nobody asked for are a protocol error") {
  Fake fake("unasked descriptor");
  const int fd = fake.worker.call("open_fd", {{"kind", "null"}}).value().at("fd");
  CHECK(lost(fake.worker, {{"fd", fd}}).outcome == WorkerLost::Outcome::protocol);
}

TEST_CASE("a worker of another protocol or without an answer is lost at hello") {
  CHECK_THROWS_AS(Fake("other protocol"), WorkerLost);
  CHECK_THROWS_AS(Fake("exit at once"), WorkerLost);
}

TEST_CASE("an unknown operation is a protocol error") {
  Fake fake("ok");
  CHECK_THROWS_AS(fake.worker.call("no such operation"), WorkerLost);
}

TEST_CASE("a command that does not exist is said in one line") {
  CHECK_THROWS_WITH(cts::Process::start({{"/no/such/command"}, {}, "/dev/null", {}}),
                    "cannot start /no/such/command: exec: No such file or directory");
}

TEST_CASE("descriptors travel in both directions, more than 253 of them in batches") {
  Fake fake("ok");
  const cts::FdSet before = fake.worker.fds();
  const int fd = fake.worker.call("open_fd", {{"kind", "memfd"}}).value().at("fd");
  const auto ours = fake.worker.send_fds(std::vector<int>(600, fd));
  CHECK(ours.size() == 600);
  const cts::ReceivedFds theirs = fake.worker.receive_fds(ours);
  CHECK(theirs.fds.size() == 600);
  CHECK(!theirs.truncated);
  CHECK(fake.worker.fds().added_since(before).size() == 601);
  CHECK(cts::same_open_file(ours.front().get(), ours.back().get()));
  fake.worker.reset();
  CHECK(fake.worker.fds() == before);
}

TEST_CASE("a receiver without room says how many arrived") {
  Fake fake("ok");
  const int fd = fake.worker.call("open_fd", {{"kind", "memfd"}}).value().at("fd");
  const auto ours = fake.worker.send_fds(std::vector<int>(5, fd));
  fake.worker.leave_free_fds(2);
  const cts::ReceivedFds theirs = fake.worker.receive_fds(ours);
  CHECK(theirs.fds.size() == 2);
  CHECK(theirs.truncated);
}

TEST_CASE("a lowered limit leaves exactly the slots asked for") {
  for (const int slots : {0, 1, 3}) {
    Fake fake("ok");
    const cts::FdSet before = fake.worker.fds();
    fake.worker.leave_free_fds(slots);
    int opened = 0;
    while (fake.worker.call("open_fd", {{"kind", "null"}}).ok()) ++opened;
    CHECK(opened == slots);
    fake.worker.reset();
    CHECK(fake.worker.fds() == before);
  }
}

TEST_CASE("the fd set tells a reused number and a leak") {
  Fake fake("ok");
  const int fd = fake.worker.call("open_fd", {{"kind", "memfd"}}).value().at("fd");
  const cts::FdSet before = fake.worker.fds();
  fake.worker.call("close_fd", {{"fd", fd}}).value();
  CHECK(fake.worker.fds().changes_since(before).find("-") == 0);
  REQUIRE(fake.worker.call("open_fd", {{"kind", "pipe"}}).value().at("fd") == fd);
  CHECK(fake.worker.fds().size() == before.size());
  CHECK(fake.worker.fds() != before);
  CHECK(fake.worker.fds().added_since(before) == std::vector<int>{fd});
  CHECK(cts::is_close_on_exec(fake.worker.pid(), fd));
  CHECK(!cts::is_close_on_exec(fake.worker.pid(), 0));
}
