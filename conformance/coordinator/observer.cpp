#include "coordinator/observer.hpp"

#include <stdexcept>

namespace cts {
namespace {

ProcessOptions observer_options(const Plan& plan) {
  ProcessOptions options{plan.observer, plan.environment, plan.work_dir + "/observer.log", {}};
  options.command.push_back(plan.driver);
  return options;
}

}  // namespace

Observer::Observer(const Plan& plan)
    : deadline_(plan.deadline),
      process_(Process::start(observer_options(plan))),
      channel_(process_.take_socket()) {
  call({{"op", "hello"}});
}

std::uint64_t Observer::free_memory(int device) {
  return call({{"op", "meminfo"}, {"device", device}}).at("free");
}

Json Observer::call(Json request) {
  const std::string operation = request.at("op");
  try {
    channel_.send(std::move(request), {}, Deadline::in(deadline_));
    const Message reply = channel_.receive(Deadline::in(deadline_));
    if (reply.body.value("ok", false)) return reply.body.at("result");
    throw std::runtime_error("the observer failed at " + operation + ": " + reply.body.dump());
  } catch (const ChannelError& error) {
    throw std::runtime_error("the observer failed at " + operation + ": " + error.what());
  }
}

}  // namespace cts
