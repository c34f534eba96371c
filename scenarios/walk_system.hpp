// The real workers, as a system that walks are played on.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "coordinator/session.hpp"
#include "walk_runner.hpp"

namespace cts::walk {

// Takes clean workers of the session, and gives them back when a walk finishes. Whatever ends it
// otherwise, the workers end too: nobody uses one again that a walk went wrong in.
class WorkerSystem : public System {
 public:
  // Throws WorkerLost or UnexpectedAnswer when there is no start to be made.
  WorkerSystem(Session& session, int processes);
  ~WorkerSystem() override;

  std::uint64_t granule() override { return granule_; }
  Reply apply(const Action& action) override;
  OpenFds fds(int process) override;
  std::uint64_t held() override;
  std::string finish() override;

 private:
  // A worker with what the walk has in it.
  struct Process {
    PooledWorker pooled;
    Resource resource = {};
    FdSet at_start = {};
    std::set<int> told = {};  // numbers of descriptors that answers told
    Worker& worker() { return *pooled.worker; }
    bool killed() const { return pooled.worker == nullptr; }
  };
  Process start();
  // The process, started anew if it was killed.
  Process& alive(int process);

  Reply answer(const Action& action);
  Reply make_buffer(const Step& step, const Answer<cts::Buffer>& answer);
  Reply make_descriptor(const Step& step, const Answer<Descriptor>& answer);
  Reply fill_or_verify(const Action& action);
  Reply from_fds(const Action& action);
  Reply send(const Step& step);
  Reply receive(const Step& step);
  Reply close(const Step& step);
  Reply kill(const Step& step);

  Session& session_;
  std::vector<Process> processes_;
  std::uint64_t granule_ = 0;
  std::uint64_t kept_by_driver_ = 0;  // bytes that are gone and no allocation
  // By the walk's numbers.
  std::map<int, cts::Buffer> buffers_;
  std::map<int, Descriptor> descriptors_;
  std::map<int, std::vector<int>> raw_;
  std::map<int, std::vector<UniqueFd>> parcels_;
};

}  // namespace cts::walk
