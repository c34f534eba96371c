#include "tap/call_log.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "tap/log_layout.hpp"

namespace tap {
namespace {

[[noreturn]] void fail(const std::string& path, const std::string& why) {
  throw std::runtime_error("call log " + path + ": " + why);
}

const CallKind& kind_of(std::string_view name) {
  const auto* found = std::find_if(std::begin(kCallKinds), std::end(kCallKinds),
                                   [&](const CallKind& kind) { return name == kind.name; });
  if (found == std::end(kCallKinds)) {
    throw std::invalid_argument("the tap does not trace " + std::string(name));
  }
  return *found;
}

std::vector<std::string> argument_names(std::string_view call) {
  std::istringstream words(kind_of(call).arguments);
  std::vector<std::string> names;
  for (std::string word; words >> word;) names.push_back(word);
  return names;
}

Call call_from(const Record& record, std::uint64_t sequence) {
  Call call;
  call.sequence = sequence;
  call.name = record.call < kCallIds ? kCallKinds[record.call].name : "unknown";
  call.result = record.result.load(std::memory_order_acquire);
  call.injected = record.injected != 0;
  std::copy(std::begin(record.arguments), std::end(record.arguments), call.arguments.begin());
  call.fd_in = record.fd_in;
  call.fd_out = record.fd_out;
  call.pid = record.pid;
  call.tid = record.tid;
  call.start_ns = record.start_ns;
  call.duration_ns = record.duration_ns;
  return call;
}

}  // namespace

LogHeader* map_log(const std::string& path, std::size_t capacity, std::size_t& bytes) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) fail(path, std::strerror(errno));
  // The first to come makes the log, under a lock. The mapping keeps the open file, so the lock has
  // to be given up by itself.
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  ::fcntl(fd, F_OFD_SETLKW, &lock);
  struct stat status {};
  ::fstat(fd, &status);
  const bool fresh = status.st_size == 0;
  bytes = fresh ? kHeaderBytes + capacity * sizeof(Record) : static_cast<std::size_t>(status.st_size);
  void* mapped = MAP_FAILED;
  if (!fresh || ::ftruncate(fd, static_cast<off_t>(bytes)) == 0) {
    mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  const int error = errno;
  auto* header = static_cast<LogHeader*>(mapped);
  if (mapped != MAP_FAILED && fresh) {
    header->capacity = capacity;
    header->magic = kLogMagic;
  }
  lock.l_type = F_UNLCK;
  ::fcntl(fd, F_OFD_SETLK, &lock);
  ::close(fd);
  if (mapped == MAP_FAILED) fail(path, std::strerror(error));
  if (header->magic != kLogMagic ||
      bytes < kHeaderBytes + header->capacity * sizeof(Record)) {
    ::munmap(mapped, bytes);
    fail(path, "not a call log of this version; remove the file");
  }
  return header;
}

CallLog CallLog::create(const std::string& path, std::size_t capacity) {
  ::unlink(path.c_str());
  std::size_t bytes = 0;
  LogHeader* header = map_log(path, capacity, bytes);
  return {header, bytes};
}

CallLog CallLog::open(const std::string& path) {
  if (::access(path.c_str(), F_OK) != 0) fail(path, std::strerror(errno));
  std::size_t bytes = 0;
  LogHeader* header = map_log(path, 0, bytes);
  return {header, bytes};
}

CallLog::CallLog(CallLog&& other) noexcept
    : header_(std::exchange(other.header_, nullptr)), bytes_(other.bytes_) {}

CallLog::~CallLog() {
  if (header_ != nullptr) ::munmap(header_, bytes_);
}

std::uint64_t CallLog::position() const { return header_->next.load(std::memory_order_acquire); }

std::size_t CallLog::capacity() const { return header_->capacity; }

std::vector<Call> CallLog::calls_since(std::uint64_t position) const {
  std::vector<Call> calls;
  const std::uint64_t end = std::min(this->position(), header_->capacity);
  for (std::uint64_t i = position; i < end; ++i) {
    const Record& record = header_->records()[i];
    const std::uint64_t sequence = record.sequence.load(std::memory_order_acquire);
    if (sequence != 0) calls.push_back(call_from(record, sequence));
  }
  return calls;
}

void CallLog::inject(const Injection& injection) {
  const std::uint32_t at = header_->injections.load(std::memory_order_acquire);
  if (at == kInjections) {
    throw std::length_error("more than " + std::to_string(kInjections) + " injections at once");
  }
  InjectionSlot& slot = header_->slots[at];
  slot.target = injection.call == "*"
                    ? kAnyCall
                    : static_cast<std::uint32_t>(&kind_of(injection.call) - kCallKinds);
  slot.action = injection.action;
  slot.code = injection.code;
  slot.delay_ns = injection.delay_ns;
  slot.remaining.store(static_cast<std::int64_t>(injection.nth), std::memory_order_release);
  header_->injections.store(at + 1, std::memory_order_release);
}

void CallLog::clear_injections() {
  header_->injections.store(0, std::memory_order_release);
  for (InjectionSlot& slot : header_->slots) slot.remaining.store(0, std::memory_order_release);
  header_->fired.store(0, std::memory_order_release);
}

std::uint64_t CallLog::injections_fired() const {
  return header_->fired.load(std::memory_order_acquire);
}

std::uint64_t Call::argument(std::string_view argument_name) const {
  const auto names = argument_names(name);
  const auto found = std::find(names.begin(), names.end(), argument_name);
  if (found == names.end()) {
    throw std::out_of_range(std::string(name) + " has no argument " + std::string(argument_name));
  }
  return arguments.at(static_cast<std::size_t>(found - names.begin()));
}

std::vector<std::pair<std::string, std::uint64_t>> Call::named_arguments() const {
  std::vector<std::pair<std::string, std::uint64_t>> named;
  for (std::string& argument_name : argument_names(name)) {
    const std::uint64_t value = arguments[named.size()];
    named.emplace_back(std::move(argument_name), value);
  }
  return named;
}

std::string Call::to_string() const {
  std::ostringstream text;
  text << name << '(';
  const char* separator = "";
  for (const auto& [argument_name, value] : named_arguments()) {
    text << separator << argument_name << '=';
    if (argument_name == "fd") {
      text << (fd_out >= 0 ? fd_out : fd_in);
    } else if (argument_name == "size" || argument_name == "count" || argument_name == "flags" ||
               argument_name == "type" || argument_name == "offset") {
      text << std::dec << value;
    } else {
      text << "0x" << std::hex << value << std::dec;
    }
    separator = ", ";
  }
  text << ") = ";
  if (result == kUnfinished) {
    text << "unfinished";
  } else {
    text << result;
  }
  if (injected) text << " (injected)";
  return text.str();
}

bool is_query(std::string_view name) { return kind_of(name).query; }

}  // namespace tap
