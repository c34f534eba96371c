#include "coordinator/worker.hpp"

#include <csignal>
#include <fstream>
#include <iterator>

namespace cts {
namespace {

Error error_from(const Json& json) {
  return {json.at("kind"), json.at("message"), json.value("cuda", 0), json.value("errno", 0)};
}

Buffer buffer_from(int id, const Json& json) {
  return {id, json.at("pointer"), json.at("size"), json.at("is_mapped")};
}

Descriptor descriptor_from(int id, const Json& json) {
  return {id, json.at("handle_type"), json.at("size"), json.at("sizes"), json.at("fds_open")};
}

Json with(Json base, const Json& more) {
  base.update(more);
  return base;
}

}  // namespace

std::string Error::to_string() const {
  std::string text = kind + ": " + message;
  if (cuda != 0) text += " [CUresult " + std::to_string(cuda) + "]";
  if (error_number != 0) text += " [errno " + std::to_string(error_number) + "]";
  return text;
}

Worker::Worker(std::string name, Process process, std::unique_ptr<tap::CallLog> calls,
               std::chrono::milliseconds deadline)
    : name_(std::move(name)),
      process_(std::move(process)),
      own_calls_(std::move(calls)),
      calls_(own_calls_.get()),
      channel_(process_->take_socket(), process_->pidfd()),
      pid_(process_->pid()),
      deadline_(deadline) {
  say_hello();
}

Worker::Worker(std::string name, UniqueFd socket, pid_t pid, tap::CallLog* calls,
               std::chrono::milliseconds deadline)
    : name_(std::move(name)),
      calls_(calls),
      channel_(std::move(socket)),
      pid_(pid),
      deadline_(deadline) {
  say_hello();
}

void Worker::say_hello() {
  hello_ = call("hello").value();
  if (hello_.value("protocol", 0) != kProtocolVersion) {
    lost(ChannelError(ChannelError::Reason::malformed,
                      "speaks protocol " + hello_.value("protocol", Json()).dump()),
         "hello");
  }
}

Answer<Json> Worker::call(const std::string& operation, Json arguments,
                          std::span<const int> fds) {
  return finish(begin(operation, std::move(arguments), fds));
}

Worker::Pending Worker::begin(const std::string& operation, Json arguments,
                              std::span<const int> fds) {
  if (!alive_) throw UnexpectedAnswer(operation + ": " + name_ + " has ended");
  Pending pending{operation, call_position(), Deadline::in(deadline_)};
  arguments["id"] = ++requests_;
  arguments["op"] = operation;
  try {
    channel_.send(std::move(arguments), fds, pending.deadline);
  } catch (const ChannelError& error) {
    lost(error, operation);
  }
  return pending;
}

Answer<Json> Worker::finish(const Pending& pending) {
  const std::string& operation = pending.operation;
  const std::uint64_t position = pending.position;
  try {
    Message reply = channel_.receive(pending.deadline);
    const Json& body = reply.body;
    const bool ok = body.at("ok");
    if (body.at("id") != requests_) {
      throw ChannelError(ChannelError::Reason::malformed, "a reply to another request");
    }
    if (ok && body.value("attached", std::size_t{0}) == 0) {
      return {operation, body.at("result"), calls_since(position)};
    }
    if (!ok) {
      Error error = error_from(body.at("error"));
      if (error.kind == "Protocol") {
        throw ChannelError(ChannelError::Reason::malformed, "refused: " + error.message);
      }
      return {operation, std::move(error), calls_since(position)};
    }
    throw ChannelError(ChannelError::Reason::malformed, "descriptors that nobody asked for");
  } catch (const ChannelError& error) {
    lost(error, operation);
  } catch (const Json::exception& error) {
    lost(ChannelError(ChannelError::Reason::malformed, error.what()), operation);
  }
}

void Worker::lost(const ChannelError& error, const std::string& operation) {
  const std::string during = name_ + " (pid " + std::to_string(pid_) + ") during " + operation;
  if (error.reason == ChannelError::Reason::closed) {
    const ExitStatus status = ended();
    throw WorkerLost(WorkerLost::Outcome::crash, during + ": " + status.to_string());
  }
  kill_group();
  if (error.reason == ChannelError::Reason::timed_out) {
    throw WorkerLost(WorkerLost::Outcome::hang, during + ": " + error.what());
  }
  throw WorkerLost(WorkerLost::Outcome::protocol, during + ": " + error.what());
}

// The worker has closed its end: gives it the deadline to be gone, then takes the group down.
ExitStatus Worker::ended() {
  if (process_) process_->wait(Deadline::in(deadline_));
  return kill_group();
}

ExitStatus Worker::kill_group() {
  alive_ = false;
  channel_.close();
  if (process_) return process_->kill_group();
  ::kill(pid_, SIGKILL);
  return {SIGKILL};
}

ExitStatus Worker::exit(const std::string& how) {
  try {
    channel_.send({{"id", ++requests_}, {"op", "exit"}, {"how", how}}, {}, Deadline::in(deadline_));
    channel_.receive(Deadline::in(deadline_));
  } catch (const ChannelError& error) {
    if (error.reason == ChannelError::Reason::closed) return ended();
    lost(error, "exit");
  }
  lost(ChannelError(ChannelError::Reason::malformed, "answered a request to exit"), "exit");
}

ExitStatus Worker::kill() {
  signal(SIGKILL);
  return ended();
}

std::string Worker::log() const {
  if (!process_) return {};
  std::ifstream file(process_->log_path());
  return {std::istreambuf_iterator<char>(file), {}};
}

void Worker::disconnect() {
  alive_ = false;
  channel_.close();
}

void Worker::signal(int number) { ::kill(pid_, number); }

std::vector<tap::Call> Worker::calls_since(std::uint64_t position) const {
  if (calls_ == nullptr) return {};
  if (calls_->overflowed()) throw std::runtime_error(name_ + " made more calls than its log holds");
  return calls_->calls_since(position);
}

Answer<Resource> Worker::resource(Json options) {
  const int id = new_object();
  options["out"] = id;
  return call("resource", std::move(options)).map([&](const Json& json) {
    return Resource{id, json.at("is_ipc_enabled")};
  });
}

Answer<Buffer> Worker::allocate(const Resource& resource, std::uint64_t size) {
  const int id = new_object();
  return call("allocate", {{"resource", resource.id}, {"size", size}, {"out", id}})
      .map([&](const Json& json) { return buffer_from(id, json); });
}

Answer<Buffer> Worker::modify(const Resource& resource, const Buffer& buffer, std::uint64_t size,
                              std::optional<Json> config) {
  const int id = new_object();
  Json arguments = {
      {"resource", resource.id}, {"buffer", buffer.id}, {"size", size}, {"out", id}};
  if (config) arguments["config"] = *config;
  return call("modify", std::move(arguments)).map([&](const Json& json) {
    return buffer_from(id, json);
  });
}

Answer<Buffer> Worker::info(const Buffer& buffer) {
  return call("info", {{"buffer", buffer.id}}).map([&](const Json& json) {
    return buffer_from(buffer.id, json);
  });
}

Answer<Descriptor> Worker::export_descriptor(const Buffer& buffer) {
  const int id = new_object();
  return call("export", {{"buffer", buffer.id}, {"out", id}}).map([&](const Json& json) {
    return descriptor_from(id, json);
  });
}

Answer<Buffer> Worker::import(const Resource& resource, const Descriptor& descriptor) {
  const int id = new_object();
  return call("import", {{"resource", resource.id}, {"descriptor", descriptor.id}, {"out", id}})
      .map([&](const Json& json) { return buffer_from(id, json); });
}

Answer<Descriptor> Worker::descriptor(const Descriptor& descriptor) {
  return call("descriptor", {{"descriptor", descriptor.id}}).map([&](const Json& json) {
    return descriptor_from(descriptor.id, json);
  });
}

Answer<Descriptor> Worker::from_fds(Json fds, Json sizes, Json more) {
  const int id = new_object();
  return call("from_fds", with({{"fds", std::move(fds)}, {"sizes", std::move(sizes)}, {"out", id}},
                               more))
      .map([&](const Json& json) { return descriptor_from(id, json); });
}

Answer<Handle> Worker::handle(const Descriptor& descriptor, std::size_t index) {
  const int id = new_object();
  return call("handle", {{"descriptor", descriptor.id}, {"index", index}, {"out", id}})
      .map([&](const Json& json) { return Handle{id, json.at("fd")}; });
}

Answer<Json> Worker::close(int object) { return call("close", {{"object", object}}); }

Answer<Json> Worker::drop(int object) { return call("drop", {{"object", object}}); }

void Worker::fill(const Buffer& buffer, std::uint64_t seed) { fill(buffer, seed, 0, buffer.size); }

void Worker::fill(const Buffer& buffer, std::uint64_t seed, std::uint64_t offset,
                  std::uint64_t size) {
  call("fill", {{"buffer", buffer.id}, {"offset", offset}, {"size", size}, {"seed", seed}}).value();
}

void Worker::copy(const Buffer& from, const Buffer& to) {
  call("copy", {{"from", from.id}, {"to", to.id}, {"size", from.size}}).value();
}

std::int64_t Worker::mismatch(const Buffer& buffer, std::uint64_t seed) {
  return mismatch(buffer, seed, 0, buffer.size);
}

std::int64_t Worker::mismatch(const Buffer& buffer, std::uint64_t seed, std::uint64_t offset,
                              std::uint64_t size) {
  return call("verify", {{"buffer", buffer.id}, {"offset", offset}, {"size", size}, {"seed", seed}})
      .value()
      .at("mismatch");
}

std::vector<UniqueFd> Worker::send_fds(const std::vector<int>& numbers) {
  const Deadline deadline = Deadline::in(deadline_);
  try {
    channel_.send({{"id", ++requests_}, {"op", "send_fds"}, {"fds", numbers}}, {}, deadline);
    Message reply = channel_.receive(deadline);
    if (!reply.body.value("ok", false)) {
      throw UnexpectedAnswer("send_fds failed: " + reply.body.dump());
    }
    if (reply.fds.size() != numbers.size()) {
      throw UnexpectedAnswer("send_fds: " + std::to_string(reply.fds.size()) + " of " +
                             std::to_string(numbers.size()) + " descriptors arrived");
    }
    return std::move(reply.fds);
  } catch (const ChannelError& error) {
    lost(error, "send_fds");
  }
}

ReceivedFds Worker::receive_fds(const std::vector<UniqueFd>& fds) {
  std::vector<int> numbers;
  for (const UniqueFd& fd : fds) numbers.push_back(fd.get());
  const Json got = call("receive_fds", Json::object(), numbers).value();
  return {got.at("received"), got.at("truncated")};
}

void Worker::reset() { call("reset").value(); }

}  // namespace cts
