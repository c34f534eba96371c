// Starting and ending worker processes.
#include "process.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace softcuda_test {

PrivateDirectory::PrivateDirectory() {
  std::string pattern =
      (access("/dev/shm", W_OK) == 0 ? std::string("/dev/shm") : std::string("/tmp")) +
      "/softcuda-test-XXXXXX";
  if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no directory for the test");
  path_ = pattern;
  setenv("SOFTCUDA_DIR", path_.c_str(), 1);
}

PrivateDirectory::~PrivateDirectory() {
  unsetenv("SOFTCUDA_DIR");
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

Worker::Worker(const std::vector<std::string>& arguments) {
  int in[2], out[2];
  if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0) throw std::runtime_error("pipe");
  char error_file[] = "/tmp/softcuda-worker-XXXXXX";
  int error_fd = mkostemp(error_file, O_CLOEXEC);
  error_path_ = error_file;
  std::vector<char*> argv{const_cast<char*>(SOFTCUDA_WORKER)};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  pid_ = fork();
  if (pid_ == 0) {
    dup2(in[0], STDIN_FILENO);
    dup2(out[1], STDOUT_FILENO);
    dup2(error_fd, STDERR_FILENO);
    execv(SOFTCUDA_WORKER, argv.data());
    _exit(127);
  }
  close(in[0]);
  close(out[1]);
  close(error_fd);
  input_ = in[1];
  output_ = out[0];
}

Worker::~Worker() {
  kill_now();
  end_input();
  close(output_);
  unlink(error_path_.c_str());
}

std::string Worker::read_line() {
  std::string line;
  for (char byte; read(output_, &byte, 1) == 1 && byte != '\n';) line += byte;
  return line;
}

void Worker::end_input() {
  if (input_ >= 0) close(input_);
  input_ = -1;
}

void Worker::kill_now() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  wait();
}

int Worker::wait() {
  int status = 0;
  if (pid_ > 0) waitpid(pid_, &status, 0);
  pid_ = -1;
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

std::string Worker::errors() const {
  std::ifstream file(error_path_);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string ask_worker(const std::vector<std::string>& arguments) {
  Worker worker(arguments);
  worker.end_input();
  std::string line = worker.read_line();
  worker.wait();
  return line;
}

size_t free_memory() { return std::stoul(ask_worker({"free"})); }

}  // namespace softcuda_test
