// Steps over the transports of Python's multiprocessing.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "coordinator/scenario.hpp"

namespace cts {

// A Queue of the start method's context in a worker; maxsize 0 is unbounded. Returns its number.
int make_queue(Worker& worker, const std::string& method, int maxsize = 0);

// A Pipe in a worker; the numbers of its two ends.
std::pair<int, int> make_pipe(Worker& worker, const std::string& method);

// The next item of a queue (operation get) or connection (operation recv), which has to be a buffer
// or a descriptor.
Answer<Buffer> next_buffer(Worker& worker, const std::string& operation, int source);
Answer<Descriptor> next_descriptor(Worker& worker, const std::string& operation, int source);
inline Answer<Buffer> get(Worker& worker, int queue) { return next_buffer(worker, "get", queue); }

// A transport with an open end in a child: send puts an object of the sender into it, `receive`
// names what the child takes it out with.
struct Link {
  std::string operation;  // get or recv, in the child
  int source = 0;         // number in the child
  std::function<Answer<Json>(int object)> send;
};

// A queue or a pipe from `sender` to a new child with the role "receiver".
enum class Carrier { queue, pipe };
std::string to_string(Carrier carrier);
Link open_link(Scenario& s, Carrier carrier, Worker& sender, const std::string& method,
               Worker*& receiver);

}  // namespace cts
