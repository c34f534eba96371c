#include "transports.hpp"

namespace cts {

int make_queue(Worker& worker, const std::string& method, int maxsize) {
  const int queue = worker.new_object();
  worker.call("queue", {{"out", queue}, {"method", method}, {"maxsize", maxsize}}).value();
  return queue;
}

Answer<Buffer> get(Worker& worker, int queue) {
  const int id = worker.new_object();
  return worker.call("get", {{"queue", queue}, {"out", id}}).map([&](const Json& json) {
    if (json.at("type") != "buffer") throw UnexpectedAnswer("what arrived is no buffer: " + json.dump());
    return Buffer{id, json.at("pointer"), json.at("size"), json.at("is_mapped")};
  });
}

Answer<Descriptor> get_descriptor(Worker& worker, int queue) {
  const int id = worker.new_object();
  return worker.call("get", {{"queue", queue}, {"out", id}}).map([&](const Json& json) {
    if (json.at("type") != "descriptor") {
      throw UnexpectedAnswer("what arrived is no descriptor: " + json.dump());
    }
    return Descriptor{id, json.at("handle_type"), json.at("size"), json.at("sizes"),
                      json.at("fds_open")};
  });
}

}  // namespace cts
