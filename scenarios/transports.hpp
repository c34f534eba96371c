// Steps over the transports of Python's multiprocessing.
#pragma once

#include <string>

#include "coordinator/scenario.hpp"

namespace cts {

// A Queue of the start method's context in a worker; maxsize 0 is unbounded. Returns its number.
int make_queue(Worker& worker, const std::string& method, int maxsize = 0);

// The next item of a queue, which has to be a buffer or a descriptor.
Answer<Buffer> get(Worker& worker, int queue);
Answer<Descriptor> get_descriptor(Worker& worker, int queue);

}  // namespace cts
