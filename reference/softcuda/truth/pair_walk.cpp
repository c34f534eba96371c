// Random walks of two processes in lockstep that share memory by fd, and are killed now and then.
// A token starts with the process (a, b); letters as in single_walk.cpp, and M0A0 is map then set
// access, V0:n a byte whose value is known, S send an fd (k: and close one's own), P properties
// (:handle types), !kill SIGKILL and a new process, Z units in use at the end. This process holds
// no CUDA.
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <set>
#include <vector>

#include "pair_worker.hpp"
#include "token_walk.hpp"

namespace {

using truth::Reply;
using truth::Request;

struct Object {
  int units;
  std::set<int> written;  // units whose bytes are known
};

struct KnownHandle {
  bool used = false;
  int references = 0;
  int mappings = 0;
  int object = -1;
};

struct KnownMapping {
  int offset, units, handle, object;
};

struct KnownRange {
  int units = 0;
  std::vector<KnownMapping> mappings;
};

// A process, and what the walk knows of its slots. An fd slot holds the object, -1 for no fd.
struct Process {
  pid_t pid = 0;
  int socket = -1;
  std::array<KnownHandle, 8> handles{};
  std::array<KnownRange, 4> ranges{};
  std::array<int, 8> fds{-1, -1, -1, -1, -1, -1, -1, -1};
};

std::array<Process, 2> g_processes;

void start(int i) {
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0) _exit(2);
  pid_t pid = fork();
  if (pid == 0) {
    close(sockets[0]);
    if (g_processes[1 - i].socket >= 0) close(g_processes[1 - i].socket);
    truth::serve_requests(sockets[1]);
  }
  close(sockets[1]);
  g_processes[i] = Process{};
  g_processes[i].pid = pid;
  g_processes[i].socket = sockets[0];
}

Reply call(int i, Request request, int fd = -1, int* got = nullptr) {
  Reply reply{-1, 0, 0};
  int received = -1;
  if (!truth::send_message(g_processes[i].socket, &request, sizeof request, fd) ||
      !truth::receive_message(g_processes[i].socket, &reply, sizeof reply, &received)) {
    reply.result = -99;
  }
  if (got != nullptr) *got = received;
  else if (received >= 0) close(received);
  return reply;
}

class PairWalk {
 public:
  explicit PairWalk(uint64_t seed) : random_(seed, 1234567890123ull), seed_(seed) {
    free_at_start_ = call(0, {'N', 0, 0, 0, 0}).value;
  }

  std::string run(int steps) {
    std::string line = std::to_string(seed_) + " ";
    for (int i = 0; i < steps; i++) {
      me_ = static_cast<int>(random_.below(2));
      token_.clear();
      step(random_.below(22));
      if (!token_.empty()) line += static_cast<char>('a' + me_) + token_ + " ";
    }
    clean_up();
    return line + "Z" + std::to_string(free_at_start_ - call(0, {'N', 0, 0, 0, 0}).value);
  }

 private:
  Process& mine() { return g_processes[me_]; }
  Process& other() { return g_processes[1 - me_]; }

  void step(uint32_t operation) {
    switch (operation) {
      case 0: case 1: return create();
      case 2: return release();
      case 3: return reserve();
      case 4: return free_range();
      case 5: case 6: case 7: case 8: return map();
      case 9: return unmap();
      case 10: return set_access();
      case 11: case 12: return fill();
      case 13: case 14: return read();
      case 15: return export_handle();
      case 16: case 17: return send();
      case 18: return import_handle();
      case 19: return close_fd();
      case 20: return count_or_properties();
      default:
        if (random_.below(12) == 0) replace_process();
    }
  }

  void say(char letter, int result, const std::string& more = "") {
    token_ += letter + std::to_string(result) + more;
  }
  int any_handle() {
    return random_.pick(8, [&](int i) { return mine().handles[i].used; });
  }
  int free_handle() {
    return truth::first_of(8, [&](int i) { return !mine().handles[i].used; });
  }
  int any_range() {
    return random_.pick(4, [&](int i) { return mine().ranges[i].units != 0; });
  }
  int any_fd() {
    return random_.pick(8, [&](int i) { return mine().fds[i] >= 0; });
  }
  int free_fd(Process& process) {
    return truth::first_of(8, [&](int i) { return process.fds[i] < 0; });
  }
  void forget_if_gone(int i) {
    KnownHandle& h = mine().handles[i];
    if (h.used && h.references == 0 && h.mappings == 0) h = KnownHandle{};
  }
  KnownMapping& any_mapping(int range) {
    auto& mappings = mine().ranges[range].mappings;
    return mappings[random_.below(static_cast<uint32_t>(mappings.size()))];
  }
  bool has_mapping(int range) { return range >= 0 && !mine().ranges[range].mappings.empty(); }

  void create() {
    int slot = free_handle();
    int units = 1 + static_cast<int>(random_.below(3));
    int handle_types = random_.below(6) != 0 ? 1 : 0;
    if (slot < 0) return;
    Reply r = call(me_, {'C', slot, units, handle_types, 0});
    if (r.result == 0) {
      mine().handles[slot] = {true, 1, 0, static_cast<int>(objects_.size())};
      objects_.push_back({units, {}});
    }
    say('C', r.result);
  }

  void release() {
    int i = any_handle();
    if (i < 0) return;
    Reply r = call(me_, {'L', i, 0, 0, 0});
    if (r.result == 0) mine().handles[i].references--;
    say('L', r.result);
    forget_if_gone(i);
  }

  void reserve() {
    int slot = -1;  // the last free one
    for (int i = 0; i < 4; i++) {
      if (mine().ranges[i].units == 0) slot = i;
    }
    int units = 2 + static_cast<int>(random_.below(5));
    if (slot < 0) return;
    Reply r = call(me_, {'R', slot, units, 0, 0});
    if (r.result == 0) mine().ranges[slot] = {units, {}};
    say('R', r.result);
  }

  void free_range() {
    int i = any_range();
    if (i < 0) return;
    Reply r = call(me_, {'F', i, 0, 0, 0});
    if (r.result == 0) mine().ranges[i] = {};
    say('F', r.result);
  }

  void map() {
    int i = any_range();
    int k = any_handle();
    uint32_t place = random_.next();
    uint32_t wrong_size = random_.below(12);
    if (i < 0 || k < 0) return;
    KnownRange& range = mine().ranges[i];
    KnownHandle& handle = mine().handles[k];
    int units = objects_[handle.object].units + (wrong_size == 0 ? 1 : 0);
    if (units > range.units) return;
    int at = static_cast<int>(place % static_cast<uint32_t>(range.units - units + 1));
    Reply r = call(me_, {'M', i, at, units, k});
    say('M', r.result);
    if (r.result != 0) return;
    range.mappings.push_back({at, units, k, handle.object});
    handle.mappings++;
    if (random_.below(5) == 0) return;
    say('A', call(me_, {'A', i, at, units, 3}).result);
  }

  void unmap() {
    int i = any_range();
    if (!has_mapping(i)) return;
    auto& mappings = mine().ranges[i].mappings;
    auto which = random_.below(static_cast<uint32_t>(mappings.size()));
    KnownMapping m = mappings[which];
    Reply r = call(me_, {'U', i, m.offset, m.units, 0});
    say('U', r.result);
    if (r.result != 0) return;
    mappings.erase(mappings.begin() + which);
    mine().handles[m.handle].mappings--;
    forget_if_gone(m.handle);
  }

  void set_access() {
    int i = any_range();
    uint32_t which = random_.below(3);
    if (!has_mapping(i)) return;
    KnownMapping m = any_mapping(i);
    constexpr int kFlags[] = {3, 1, 0};
    say('A', call(me_, {'A', i, m.offset, m.units, kFlags[which]}).result);
  }

  void fill() {
    int i = any_range();
    int value = 1 + static_cast<int>(random_.below(250));
    if (!has_mapping(i)) return;
    KnownMapping m = any_mapping(i);
    Reply r = call(me_, {'W', i, m.offset, m.units, value});
    say('W', r.result);
    for (int unit = 0; r.result == 0 && unit < m.units; unit++) {
      objects_[m.object].written.insert(unit);
    }
  }

  void read() {
    int i = any_range();
    uint32_t u = random_.next();
    if (!has_mapping(i)) return;
    KnownMapping m = any_mapping(i);
    int unit = static_cast<int>(u % static_cast<uint32_t>(m.units));
    Reply r = call(me_, {'V', i, m.offset + unit, static_cast<int>(u % 4096), 0});
    bool known = r.result == 0 && objects_[m.object].written.count(unit) != 0;
    say('V', r.result, known ? ":" + std::to_string(r.value) : "");
  }

  void export_handle() {
    int i = any_handle();
    int slot = free_fd(mine());
    if (i < 0 || slot < 0) return;
    Reply r = call(me_, {'X', i, slot, 0, 0});
    if (r.result == 0) mine().fds[slot] = mine().handles[i].object;
    say('X', r.result);
  }

  void send() {
    int from = any_fd();
    int to = free_fd(other());
    if (from < 0 || to < 0) return;
    int fd = -1;
    call(me_, {'S', from, 0, 0, 0}, -1, &fd);
    Reply r = call(1 - me_, {'G', to, 0, 0, 0}, fd);
    close(fd);
    other().fds[to] = mine().fds[from];
    say('S', r.result);
    if (random_.below(2) == 0) return;
    call(me_, {'K', from, 0, 0, 0});
    mine().fds[from] = -1;
    token_ += "k";
  }

  void import_handle() {
    int from = any_fd();
    int slot = free_handle();
    if (from < 0 || slot < 0) return;
    Reply r = call(me_, {'I', from, slot, 0, 0});
    if (r.result == 0) mine().handles[slot] = {true, 1, 0, mine().fds[from]};
    say('I', r.result);
  }

  void close_fd() {
    int i = any_fd();
    if (i < 0) return;
    call(me_, {'K', i, 0, 0, 0});
    mine().fds[i] = -1;
    token_ = "K";
  }

  void count_or_properties() {
    if (random_.below(3) != 0) {
      Reply r = call(me_, {'N', 0, 0, 0, 0});
      say('N', r.result, ":" + std::to_string(free_at_start_ - r.value));
      return;
    }
    int i = any_handle();
    if (i < 0) return;
    Reply r = call(me_, {'P', i, 0, 0, 0});
    say('P', r.result, ":" + std::to_string(r.value));
  }

  void replace_process() {
    kill(mine().pid, SIGKILL);
    waitpid(mine().pid, nullptr, 0);
    close(mine().socket);
    start(me_);
    call(me_, {'N', 0, 0, 0, 0});
    call(1 - me_, {'N', 0, 0, 0, 0});
    token_ = "!kill";
  }

  void clean_up() {
    for (me_ = 0; me_ < 2; me_++) {
      for (int i = 0; i < 4; i++) {
        KnownRange& range = mine().ranges[i];
        if (range.units == 0) continue;
        for (const KnownMapping& m : range.mappings) {
          call(me_, {'U', i, m.offset, m.units, 0});
          mine().handles[m.handle].mappings--;
        }
        call(me_, {'F', i, 0, 0, 0});
        range = {};
      }
      for (int i = 0; i < 8; i++) {
        KnownHandle& handle = mine().handles[i];
        for (; handle.used && handle.references > 0; handle.references--) {
          call(me_, {'L', i, 0, 0, 0});
        }
        handle = {};
      }
      for (int i = 0; i < 8; i++) {
        if (mine().fds[i] < 0) continue;
        call(me_, {'K', i, 0, 0, 0});
        mine().fds[i] = -1;
      }
    }
  }

  truth::Generator random_;
  uint64_t seed_;
  long free_at_start_;
  int me_ = 0;
  std::vector<Object> objects_;
  std::string token_;
};

}  // namespace

int main(int argc, char** argv) {
  truth::WalkOptions options;
  if (!truth::parse_walk_options(argc, argv, &options)) return 2;
  start(0);
  start(1);
  int status = truth::run_walks(
      options, [&](uint64_t seed) { return PairWalk(seed).run(options.steps); });
  for (auto& process : g_processes) {
    kill(process.pid, SIGKILL);
    waitpid(process.pid, nullptr, 0);
  }
  return status;
}
