#include "walk_system.hpp"

#include "shares.hpp"

namespace cts::walk {
namespace {

// The driver calls of an answer, queries aside.
template <class T>
Reply with_calls(Reply reply, const Answer<T>& answer) {
  for (const tap::Call& call : answer.calls) {
    if (!tap::is_query(call.name)) reply.calls.emplace_back(call.name);
  }
  return reply;
}

Reply refused(const Error& error) {
  Reply reply;
  reply.ok = false;
  reply.kind = error.kind;
  reply.message = error.message;
  return reply;
}

template <class T>
Reply done(const Answer<T>& answer) {
  return answer.ok() ? Reply{} : refused(answer.error());
}

std::string listed(const std::vector<int>& numbers) {
  std::string text;
  for (const int number : numbers) text += (text.empty() ? "" : ", ") + std::to_string(number);
  return text;
}

}  // namespace

WorkerSystem::WorkerSystem(Session& session, int processes) : session_(session) {
  for (int i = 0; i < processes; ++i) processes_.push_back(start());
  granule_ = cts::granule(processes_.front().worker(), processes_.front().resource);
}

WorkerSystem::~WorkerSystem() {
  for (Process& process : processes_) {
    if (!process.killed()) session_.end(std::move(process.pooled));
  }
}

WorkerSystem::Process WorkerSystem::start() {
  Process process{session_.acquire()};
  process.resource = process.worker().resource().value();
  process.at_start = process.worker().fds();
  return process;
}

WorkerSystem::Process& WorkerSystem::alive(int process) {
  Process& found = processes_.at(process);
  if (found.killed()) found = start();
  return found;
}

Reply WorkerSystem::apply(const Action& action) {
  try {
    return answer(action);
  } catch (const WorkerLost& lost) {
    throw Lost(to_string(action.step) + ": " + lost.what(), std::current_exception());
  } catch (const UnexpectedAnswer& unexpected) {
    return refused({"unexpected answer", unexpected.what()});
  }
}

Reply WorkerSystem::answer(const Action& action) {
  const Step& step = action.step;
  if (step.op == Op::lose) {
    parcels_.erase(step.object);
    return {};
  }
  Process& process = alive(step.process);
  Worker& worker = process.worker();
  switch (step.op) {
    case Op::allocate:
      return make_buffer(step, worker.allocate(process.resource, action.bytes));
    case Op::alias:
    case Op::grow:
      return make_buffer(
          step, worker.modify(process.resource, buffers_.at(step.object), action.bytes));
    case Op::fill:
    case Op::verify: return fill_or_verify(action);
    case Op::exporting:
      return make_descriptor(step, worker.export_descriptor(buffers_.at(step.object)));
    case Op::send: return send(step);
    case Op::lose: break;
    case Op::receive: return receive(step);
    case Op::from_fds: return from_fds(action);
    case Op::importing:
      return make_buffer(step, worker.import(process.resource, descriptors_.at(step.object)));
    case Op::close:
    case Op::drop: return close(step);
    case Op::kill: return kill(step);
  }
  return {};
}

Reply WorkerSystem::make_buffer(const Step& step, const Answer<cts::Buffer>& answer) {
  if (!answer.ok()) return with_calls(refused(answer.error()), answer);
  const cts::Buffer& made = answer.value();
  buffers_[step.out] = made;
  Reply reply;
  reply.pointer = made.pointer;
  reply.size = made.size;
  reply.is_mapped = made.is_mapped;
  return with_calls(reply, answer);
}

Reply WorkerSystem::make_descriptor(const Step& step, const Answer<Descriptor>& answer) {
  if (!answer.ok()) return with_calls(refused(answer.error()), answer);
  const Descriptor& made = answer.value();
  descriptors_[step.out] = made;
  processes_.at(step.process).told.insert(made.fds.begin(), made.fds.end());
  Reply reply;
  reply.size = made.size;
  reply.sizes = made.sizes;
  return reply;
}

Reply WorkerSystem::fill_or_verify(const Action& action) {
  Worker& worker = processes_.at(action.step.process).worker();
  const int buffer = buffers_.at(action.step.object).id;
  for (const Window& window : action.windows) {
    const auto answer = worker.call(action.step.op == Op::fill ? "fill" : "verify",
                                    {{"buffer", buffer},
                                     {"offset", window.offset},
                                     {"size", window.size},
                                     {"seed", window.seed}});
    if (!answer.ok()) return refused(answer.error());
    if (action.step.op == Op::fill) continue;
    Reply reply;
    reply.mismatch = answer.value().at("mismatch");
    if (reply.mismatch >= 0) return reply;
  }
  return {};
}

Reply WorkerSystem::send(const Step& step) {
  parcels_[step.out] =
      processes_.at(step.process).worker().send_fds(descriptors_.at(step.object).fds);
  return {};
}

Reply WorkerSystem::receive(const Step& step) {
  Process& process = processes_.at(step.process);
  const auto parcel = parcels_.extract(step.object);
  const ReceivedFds received = process.worker().receive_fds(parcel.mapped());
  process.told.insert(received.fds.begin(), received.fds.end());
  raw_[step.out] = received.fds;
  if (received.fds.size() == parcel.mapped().size()) return {};
  return refused({"truncated", "received " + listed(received.fds)});
}

Reply WorkerSystem::from_fds(const Action& action) {
  const std::vector<int>& raw = raw_.at(action.step.object);
  std::vector<int> fds;
  for (const int index : action.step.order) fds.push_back(raw.at(index));
  return make_descriptor(action.step,
                         processes_.at(action.step.process)
                             .worker()
                             .from_fds(fds, action.sizes,
                                       {{"handle_type", "posix_fd"}, {"size", action.size}}));
}

Reply WorkerSystem::close(const Step& step) {
  Process& process = processes_.at(step.process);
  if (const auto raw = raw_.extract(step.object)) {
    Reply reply;
    for (const int fd : raw.mapped()) {
      const auto closed = process.worker().call("close_fd", {{"fd", fd}});
      if (!closed.ok()) reply = refused(closed.error());
      process.told.erase(fd);
    }
    return reply;
  }
  const auto buffer = buffers_.find(step.object);
  const int id = buffer != buffers_.end() ? buffer->second.id : descriptors_.at(step.object).id;
  const auto answer = step.op == Op::drop ? process.worker().drop(id) : process.worker().close(id);
  if (buffer == buffers_.end()) {
    // A closed descriptor's numbers may be anybody's by now.
    Descriptor& descriptor = descriptors_.at(step.object);
    for (const int fd : descriptor.fds) process.told.erase(fd);
    descriptor.fds.clear();
  }
  return done(answer);
}

Reply WorkerSystem::kill(const Step& step) {
  Process& process = processes_.at(step.process);
  process.worker().kill();
  session_.end(std::move(process.pooled));
  process = {};
  return {};
}

OpenFds WorkerSystem::fds(int process) {
  Process& of = processes_.at(process);
  if (of.killed()) return {};
  const FdSet now = of.worker().fds();
  const std::vector<int> added = now.added_since(of.at_start);
  OpenFds open{added.size(), now.changes_since(of.at_start), ""};
  if (const auto lost = of.at_start.added_since(now); !lost.empty()) {
    open.wrong = "not what they were: " + listed(lost);
  } else if (added != std::vector<int>(of.told.begin(), of.told.end())) {
    open.wrong = "told were " + listed({of.told.begin(), of.told.end()});
  }
  return open;
}

std::uint64_t WorkerSystem::held() {
  // In whole granules: the little that a driver keeps for itself after a death is no allocation, and
  // many deaths do not add up to one.
  const std::uint64_t due = session_.idle_free_memory(0) - kept_by_driver_;
  const std::uint64_t free = session_.free_memory(0);
  const std::uint64_t held =
      static_cast<std::uint64_t>(session_.granules_missing(due, free)) * session_.granule();
  kept_by_driver_ += due - free - held;
  return held;
}

std::string WorkerSystem::finish() {
  parcels_.clear();
  std::string left;
  for (std::size_t i = 0; i < processes_.size(); ++i) {
    if (processes_[i].killed()) continue;
    try {
      const Leftovers of_one = session_.give_back(std::move(processes_[i].pooled));
      const std::string name(1, static_cast<char>('A' + i));
      if (!of_one.fds.empty()) left += name + ": " + of_one.fds + " ";
      for (const tap::Finding& finding : of_one.calls) {
        if (finding.rule != tap::Rule::order) left += name + ": " + finding.text + " ";
      }
    } catch (const WorkerLost& lost) {
      throw Lost(std::string("dropping everything: ") + lost.what(), std::current_exception());
    }
  }
  processes_.clear();
  return left;
}

}  // namespace cts::walk
