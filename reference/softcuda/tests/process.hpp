// Processes and private device directories for tests.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace softcuda_test {

// A directory that SOFTCUDA_DIR names for as long as the object lives; removed afterwards.
class PrivateDirectory {
 public:
  PrivateDirectory();
  ~PrivateDirectory();
  PrivateDirectory(const PrivateDirectory&) = delete;
  PrivateDirectory& operator=(const PrivateDirectory&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// A running worker (tests/worker.cpp) with pipes to its stdin and from its stdout and stderr.
class Worker {
 public:
  explicit Worker(const std::vector<std::string>& arguments);
  ~Worker();  // kills and reaps it when that has not happened
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  std::string read_line();  // of stdout; empty at its end
  void end_input();
  void kill_now();
  int wait();  // the exit status; -SIGNAL when it was killed
  pid_t pid() const { return pid_; }
  std::string errors() const;  // what it wrote to stderr; call after wait()

 private:
  pid_t pid_ = -1;
  int input_ = -1;
  int output_ = -1;
  std::string error_path_;
};

// Runs a worker to its end; its first line of output.
std::string ask_worker(const std::vector<std::string>& arguments);

// Free memory as a fresh process sees it.
size_t free_memory();

}  // namespace softcuda_test
