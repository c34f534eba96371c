#include "coordinator/fd_set.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <stdexcept>

namespace cts {

FdSet FdSet::of(pid_t pid) {
  const std::string directory = "/proc/" + std::to_string(pid) + "/fd";
  std::unique_ptr<DIR, int (*)(DIR*)> listing(::opendir(directory.c_str()), ::closedir);
  if (!listing) throw std::runtime_error("cannot read " + directory + ": " + std::strerror(errno));
  FdSet set;
  while (const dirent* entry = ::readdir(listing.get())) {
    if (entry->d_name[0] == '.') continue;
    const int number = std::atoi(entry->d_name);
    if (pid == ::getpid() && number == ::dirfd(listing.get())) continue;
    const std::string path = directory + "/" + entry->d_name;
    std::array<char, PATH_MAX> target{};
    if (::readlink(path.c_str(), target.data(), target.size() - 1) < 0) continue;  // closed since
    OpenFile file{target.data()};
    struct stat status{};
    if (::stat(path.c_str(), &status) == 0) {
      file.device = status.st_dev;
      file.inode = status.st_ino;
    }
    set.files_.emplace(number, std::move(file));
  }
  return set;
}

std::vector<int> FdSet::numbers() const {
  std::vector<int> result;
  for (const auto& [number, file] : files_) result.push_back(number);
  return result;
}

std::size_t FdSet::count_of(const std::string& target) const {
  return std::count_if(files_.begin(), files_.end(),
                       [&](const auto& entry) { return entry.second.target == target; });
}

std::vector<int> FdSet::added_since(const FdSet& before) const {
  std::vector<int> added;
  for (const auto& [number, file] : files_) {
    const auto old = before.files_.find(number);
    if (old == before.files_.end() || old->second != file) added.push_back(number);
  }
  return added;
}

std::string FdSet::changes_since(const FdSet& before) const {
  std::string text;
  const auto list = [&](char sign, const FdSet& from, const FdSet& other) {
    for (const int number : from.added_since(other)) {
      if (!text.empty()) text += ", ";
      text += sign + std::to_string(number) + " " + from.files_.at(number).target;
    }
  };
  list('+', *this, before);
  list('-', before, *this);
  return text;
}

bool is_close_on_exec(pid_t pid, int fd) {
  const std::string path = "/proc/" + std::to_string(pid) + "/fdinfo/" + std::to_string(fd);
  std::ifstream info(path);
  for (std::string word; info >> word;) {
    unsigned flags = 0;
    if (word == "flags:" && info >> std::oct >> flags) return (flags & O_CLOEXEC) != 0;
  }
  throw std::runtime_error(path + " does not tell the flags");
}

bool same_open_file(int a, int b) {
  const int flags = ::fcntl(a, F_GETFL);
  const int other = ::fcntl(b, F_GETFL);
  if (flags < 0 || other < 0) throw std::runtime_error("same_open_file: not an open descriptor");
  if ((flags & O_NONBLOCK) != (other & O_NONBLOCK)) return false;
  if (::fcntl(a, F_SETFL, flags ^ O_NONBLOCK) != 0) {
    throw std::runtime_error(std::string("same_open_file: fcntl: ") + std::strerror(errno));
  }
  const bool same = (::fcntl(b, F_GETFL) ^ other) & O_NONBLOCK;
  ::fcntl(a, F_SETFL, flags);
  return same;
}

}  // namespace cts
