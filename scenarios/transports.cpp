#include "transports.hpp"

namespace cts {
namespace {

constexpr int kSourceInChild = 900;

Json next(const std::string& operation, int source, int out) {
  return {{operation == "get" ? "queue" : "connection", source}, {"out", out}};
}

void require_type(const Json& arrived, const std::string& type) {
  if (arrived.at("type") != type) {
    throw UnexpectedAnswer("what arrived is no " + type + ": " + arrived.dump());
  }
}

}  // namespace

int make_queue(Worker& worker, const std::string& method, int maxsize) {
  const int queue = worker.new_object();
  worker.call("queue", {{"out", queue}, {"method", method}, {"maxsize", maxsize}}).value();
  return queue;
}

std::pair<int, int> make_pipe(Worker& worker, const std::string& method) {
  const int first = worker.new_object();
  const int second = worker.new_object();
  worker.call("pipe", {{"out", {first, second}}, {"method", method}}).value();
  return {first, second};
}

Answer<Buffer> next_buffer(Worker& worker, const std::string& operation, int source) {
  const int id = worker.new_object();
  return worker.call(operation, next(operation, source, id)).map([&](const Json& json) {
    require_type(json, "buffer");
    return Buffer{id, json.at("pointer"), json.at("size"), json.at("is_mapped")};
  });
}

Answer<Descriptor> next_descriptor(Worker& worker, const std::string& operation, int source) {
  const int id = worker.new_object();
  return worker.call(operation, next(operation, source, id)).map([&](const Json& json) {
    require_type(json, "descriptor");
    return Descriptor{id, json.at("handle_type"), json.at("size"), json.at("sizes"),
                      json.at("fds_open")};
  });
}

std::string to_string(Carrier carrier) { return carrier == Carrier::queue ? "queue" : "pipe"; }

Link open_link(Scenario& s, Carrier carrier, Worker& sender, const std::string& method,
               Worker*& receiver) {
  if (carrier == Carrier::queue) {
    const int queue = make_queue(sender, method);
    receiver = &s.start_child("receiver", sender, method, {{kSourceInChild, queue}});
    return {"get", kSourceInChild, [&sender, queue](int object) {
              return sender.call("put", {{"queue", queue}, {"object", object}});
            }};
  }
  const auto [here, there] = make_pipe(sender, method);
  receiver = &s.start_child("receiver", sender, method, {{kSourceInChild, there}});
  return {"recv", kSourceInChild, [&sender, here = here](int object) {
            return sender.call("send", {{"connection", here}, {"object", object}});
          }};
}

}  // namespace cts
