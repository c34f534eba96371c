// Fds: export, import, two processes, what pins memory, limits, fork, pools.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "pair_worker.hpp"
#include "situations.hpp"

namespace truth {
namespace {

void export_group() {
  start();
  int before = open_fds();
  Memory m = make(unit());
  int with_memory = open_fds();
  note("fd.create_map_cost", {{"delta", with_memory - before}});
  int one = -1, two = -1;
  CUresult r = cuMemExportToShareableHandle(&one, m.handle, kFdType, 0);
  tell("ok", r, {{"fd_delta", open_fds() - with_memory}});
  note("fd_props", fd_facts(one));
  int with_one = open_fds();
  r = cuMemExportToShareableHandle(&two, m.handle, kFdType, 0);
  tell("second", r, {{"fd_delta", open_fds() - with_one}, {"distinct", one != two}});
  long order = syscall(SYS_kcmp, getpid(), getpid(), 0, one, two);
  note("kcmp_two_exports", {{"r", order}, {"errno", order < 0 ? errno : 0}});
  char bytes[8];
  ssize_t n = read(one, bytes, sizeof bytes);
  note("read_fd", {{"r", n}, {"errno", n < 0 ? errno : 0}});
  void* window = mmap(nullptr, unit(), PROT_READ, MAP_SHARED, one, 0);
  note("mmap_fd", {{"ok", window != MAP_FAILED}, {"errno", window == MAP_FAILED ? errno : 0}});
  close(one);
  close(two);
  note("fd.after_close", {{"delta", open_fds() - with_memory}});
  auto attempt = [&](void* out, CUmemGenericAllocationHandle handle, int type, int flags) {
    return cuMemExportToShareableHandle(out, handle, static_cast<CUmemAllocationHandleType>(type),
                                        static_cast<unsigned long long>(flags));
  };
  char fabric[64];
  tell("flags1", attempt(&one, m.handle, 1, 1));
  tell("out_null", attempt(nullptr, m.handle, 1, 0));
  tell("type0", attempt(&one, m.handle, 0, 0));
  tell("type_win32", attempt(&one, m.handle, 2, 0));
  tell("type_fabric", attempt(fabric, m.handle, 8, 0));
  tell("type_3", attempt(&one, m.handle, 3, 0));
  tell("handle0", attempt(&one, 0, 1, 0));
  Memory closed = make(unit(), 0);
  one = -7;
  r = attempt(&one, closed.handle, 1, 0);
  tell("not_exportable", r, {{"fd", one}});
  drop(&closed);
  note("fd.end", {{"delta", open_fds() - with_memory}});
  drop(&m);
  note("fd.end_unmapped", {{"delta", open_fds() - before}});
}

void import_strangers(int closed_fd) {
  CUmemGenericAllocationHandle handle = 0;
  tell("out_null", import_fd(nullptr, 0));
  tell("fd_minus1", import_fd(&handle, -1));
  tell("fd_closed", import_fd(&handle, closed_fd));
  tell("fd_99999", import_fd(&handle, 99999));
  tell("fd_devnull", import_fd(&handle, open("/dev/null", O_RDWR)));
  int ends[2] = {-1, -1};
  if (pipe(ends) == 0) tell("fd_pipe", import_fd(&handle, ends[0]));
  socketpair(AF_UNIX, SOCK_STREAM, 0, ends);
  tell("fd_socket", import_fd(&handle, ends[0]));
  int memory = memfd_create("stranger", 0);
  if (ftruncate(memory, static_cast<off_t>(unit())) == 0) {
    tell("fd_memfd", import_fd(&handle, memory));
  }
  tell("fd_regular", import_fd(&handle, open("/tmp", O_TMPFILE | O_RDWR, 0600)));
}

void import_group() {
  start();
  size_t g = unit();
  Memory m = make(g);
  cuMemsetD8(m.base, 0x5a, g);
  int fd = export_fd(m.handle);
  int before = open_fds();
  CUmemGenericAllocationHandle one = 0, two = 0;
  CUresult r = import_fd(&one, fd);
  tell("ok_same_process", r,
       {{"same_handle", one == m.handle}, {"fd_delta", open_fds() - before}});
  r = import_fd(&two, fd);
  tell("again_same_fd", r, {{"same_handle", one == two}, {"fd_delta", open_fds() - before}});
  note("fd_still_open", {{"value", fcntl(fd, F_GETFD) >= 0}});
  int none = -1;
  tell("reexport_imported_same_process", cuMemExportToShareableHandle(&none, one, kFdType, 0));
  tell("release1", cuMemRelease(one));
  tell("release2", cuMemRelease(two));
  int copy = dup(fd);
  tell("dup_fd", import_fd(&one, copy));
  close(copy);
  cuMemRelease(one);
  import_fd(&one, fd);
  close(fd);
  CUdeviceptr a = reserve(2 * g);
  CUmemAccessDesc rw = access_to_device();
  tell("map_wrong_size_large", cuMemMap(a, 2 * g, 0, one, 0));
  tell("map_ok_after_fd_close", cuMemMap(a, g, 0, one, 0));
  tell("access", cuMemSetAccess(a, g, &rw, 1));
  note("value", {{"v", read_byte(a)}});
  cuMemsetD8(a, 0x21, g);
  note("value_via_original", {{"v", read_byte(m.base)}});
  r = cuMemRetainAllocationHandle(&two, reinterpret_cast<void*>(a));
  tell("retain_imported", r, {{"same", two == one}, {"same_as_original", two == m.handle}});
  cuMemRelease(two);
  tell("release_imported_mapped", cuMemRelease(one));
  tell("unmap", cuMemUnmap(a, g));
  import_strangers(fd);
  fd = export_fd(m.handle);
  auto as_type = [&](void* os_handle, CUmemAllocationHandleType type) {
    return cuMemImportFromShareableHandle(&one, os_handle, type);
  };
  char fabric[64] = {};
  void* os_handle = reinterpret_cast<void*>(static_cast<uintptr_t>(fd));
  tell("type0", as_type(os_handle, CU_MEM_HANDLE_TYPE_NONE));
  tell("type_win32", as_type(os_handle, CU_MEM_HANDLE_TYPE_WIN32));
  tell("type_fabric_zero", as_type(fabric, CU_MEM_HANDLE_TYPE_FABRIC));
}

// One byte over a socket, with or without an fd: a step of the two-process situation.
void send_step(int socket, int fd = -1) { send_message(socket, "s", 1, fd); }
int wait_step(int socket) {
  char byte;
  int fd = -1;
  receive_message(socket, &byte, 1, &fd);
  return fd;
}

[[noreturn]] void exporter(int socket) {
  set_group("xproc.exporter");
  start();
  size_t g = unit();
  Memory m = make(2 * g);
  cuMemsetD8(m.base, 0x77, 2 * g);
  int before = open_fds();
  int fd = export_fd(m.handle);
  send_step(socket, fd);
  close(fd);
  note("fd.after_send_close", {{"delta", open_fds() - before}});
  wait_step(socket);
  note("value_after_import_write", {{"v", read_byte(m.base)}});
  long held = free_bytes();
  drop(&m);
  long released = free_bytes();
  note("freed_while_importer_holds", {{"delta", released - held}});
  send_step(socket);
  wait_step(socket);
  note("freed_after_importer_release", {{"delta", free_bytes() - released}});
  Memory last = make(g);
  cuMemsetD8(last.base, 0x66, g);
  send_step(socket, export_fd(last.handle));
  _exit(0);
}

void xproc_group() {
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0) return;
  pid_t child = fork();
  if (child == 0) exporter(sockets[1]);
  set_group("xproc.importer");
  start();
  size_t g = unit();
  int fd = wait_step(sockets[0]);
  note("fd_props", fd_facts(fd));
  int before = open_fds();
  CUmemGenericAllocationHandle handle = 0, again = 0;
  CUresult r = import_fd(&handle, fd);
  tell("import", r, {{"fd_delta", open_fds() - before}});
  close(fd);
  Json facts = properties_of(handle, &r);
  facts["device"] = facts["id"];
  tell("props", r, facts);
  CUdeviceptr a = reserve(2 * g);
  CUmemAccessDesc rw = access_to_device();
  CUmemLocation here = device_location();
  unsigned long long flags = 99;
  tell("map_small", cuMemMap(a, g, 0, handle, 0));
  tell("map_offset_half", cuMemMap(a, g, g, handle, 0));
  tell("map", cuMemMap(a, 2 * g, 0, handle, 0));
  r = cuMemGetAccess(&flags, &here, a);
  tell("getaccess_before_set", r, {{"flags", flags}});
  tell("access", cuMemSetAccess(a, 2 * g, &rw, 1));
  note("value", {{"v", read_byte(a)}});
  cuMemsetD8(a, 0x78, 2 * g);
  int none = -1;
  tell("reexport_imported", cuMemExportToShareableHandle(&none, handle, kFdType, 0));
  cuMemRetainAllocationHandle(&again, reinterpret_cast<void*>(a));
  tell("reexport_retained_imported", cuMemExportToShareableHandle(&none, again, kFdType, 0));
  cuMemRelease(again);
  unsigned long long types = 99;
  r = cuPointerGetAttribute(&types, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, a);
  tell("attr.allowed_handle_types", r, {{"v", types}});
  send_step(sockets[0]);
  wait_step(sockets[0]);
  note("value_after_exporter_release", {{"v", read_byte(a)}});
  cuMemUnmap(a, 2 * g);
  cuMemRelease(handle);
  send_step(sockets[0]);
  fd = wait_step(sockets[0]);
  waitpid(child, nullptr, 0);
  tell("import_after_exporter_exit", import_fd(&handle, fd));
  a = reserve(g);
  tell("map_after_exporter_exit", cuMemMap(a, g, 0, handle, 0));
  tell("access_after_exporter_exit", cuMemSetAccess(a, g, &rw, 1));
  note("value_after_exporter_exit", {{"v", read_byte(a)}});
}

void pin_group() {
  start();
  size_t size = 128 * unit();
  long before = free_bytes();
  auto held = [&] { return before - free_bytes(); };
  Json facts = {{"N", size}};
  Memory m = make(size);
  facts["after_create"] = held();
  int fd = export_fd(m.handle);
  facts["after_export"] = held();
  drop(&m);
  facts["after_unmap_release_fd_open"] = held();
  CUmemGenericAllocationHandle handle = 0;
  CUresult r = import_fd(&handle, fd);
  facts["after_import"] = held();
  close(fd);
  facts["after_close_fd"] = held();
  cuMemRelease(handle);
  facts["after_release_import"] = held();
  note("accounting", facts);
  tell("import_from_fd_only", r);
  m = make(size);
  facts = {{"alloc", held()}};
  int one = export_fd(m.handle);
  int two = dup(one);
  drop(&m);
  facts["released_two_fds"] = held();
  close(one);
  facts["one_fd"] = held();
  close(two);
  facts["no_fd"] = held();
  note("dup_pins", facts);
}

// Limits the process to `slots` free fds and counts how many exports that allows.
void exports_with_slots(CUmemGenericAllocationHandle handle, int slots, const rlimit& old) {
  int before = open_fds();
  rlimit low = old;
  low.rlim_cur = 200;
  setrlimit(RLIMIT_NOFILE, &low);
  std::vector<int> fillers, exports;
  for (int fd; (fd = dup(STDOUT_FILENO)) >= 0;) fillers.push_back(fd);
  for (int i = 0; i < slots; i++) {
    close(fillers.back());
    fillers.pop_back();
  }
  int fd = -7;
  CUresult r;
  while ((r = cuMemExportToShareableHandle(&fd, handle, kFdType, 0)) == CUDA_SUCCESS) {
    exports.push_back(fd);
  }
  for (int open : exports) close(open);
  for (int open : fillers) close(open);
  setrlimit(RLIMIT_NOFILE, &old);
  tell("slots_" + std::to_string(slots), r,
       {{"exports_ok", exports.size()}, {"fd_leak", open_fds() - before}});
}

void rlimit_group() {
  start();
  size_t g = unit();
  Memory m = make(g);
  int before = open_fds();
  rlimit old{};
  getrlimit(RLIMIT_NOFILE, &old);
  rlimit low = old;
  low.rlim_cur = 3;
  auto at_limit = [&](auto call) {
    setrlimit(RLIMIT_NOFILE, &low);
    CUresult r = call();
    setrlimit(RLIMIT_NOFILE, &old);
    return r;
  };
  int fd = -7;
  auto do_export = [&] { return cuMemExportToShareableHandle(&fd, m.handle, kFdType, 0); };
  CUresult r = at_limit(do_export);
  tell("export_at_limit", r, {{"fd", fd}, {"fd_delta", open_fds() - before}});
  tell("export_after_restore", do_export());
  CUmemGenericAllocationHandle handle = 0;
  r = at_limit([&] { return import_fd(&handle, fd); });
  tell("import_at_limit", r, {{"fd_delta", open_fds() - before}});
  CUmemAllocationProp prop = properties();
  tell("create_at_limit", at_limit([&] { return cuMemCreate(&handle, g, &prop, 0); }));
  CUdeviceptr a = 0;
  tell("reserve_at_limit", at_limit([&] { return cuMemAddressReserve(&a, g, 0, 0, 0); }));
  close(fd);
  for (int slots : {1, 2, 3}) exports_with_slots(m.handle, slots, old);
}

void fork_group() {
  start();
  size_t g = unit();
  Memory m = make(g);
  cuMemsetD8(m.base, 4, g);
  int fd = export_fd(m.handle);
  pid_t child = fork();
  if (child == 0) {
    set_group("fork.child");
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = properties();
    CUresult r;
    int number;
    tell("create", cuMemCreate(&handle, 2 << 20, &prop, 0));
    tell("cuInit", cuInit(0));
    tell("import", import_fd(&handle, fd));
    read_byte(m.base, &r);
    tell("dtoh", r);
    tell("release", cuMemRelease(m.handle));
    tell("getcount", cuDeviceGetCount(&number));
    tell("export", cuMemExportToShareableHandle(&number, m.handle, kFdType, 0));
    _exit(0);
  }
  waitpid(child, nullptr, 0);
  note("parent_after_child", {{"v", read_byte(m.base)}});
}

void mempool_group() {
  start();
  CUmemPoolProps props{};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.handleTypes = kFdType;
  props.location = device_location();
  CUmemoryPool pool = nullptr, imported = nullptr;
  tell("create", cuMemPoolCreate(&pool, &props));
  int fd = -1;
  tell("export", cuMemPoolExportToShareableHandle(&fd, pool, kFdType, 0));
  note("fd_props", fd_facts(fd));
  CUmemGenericAllocationHandle handle;
  tell("vmm_import_of_pool_fd", import_fd(&handle, fd));
  auto import_pool = [&](int from) {
    void* os_handle = reinterpret_cast<void*>(static_cast<uintptr_t>(from));
    return cuMemPoolImportFromShareableHandle(&imported, os_handle, kFdType, 0);
  };
  tell("pool_import_of_vmm_fd", import_pool(export_fd(make(unit()).handle)));
  CUdeviceptr a = 0;
  tell("alloc", cuMemAllocFromPoolAsync(&a, 1024, pool, nullptr));
  tell("retain_on_pool_ptr", cuMemRetainAllocationHandle(&handle, reinterpret_cast<void*>(a)));
  tell("pool_import_same_process", import_pool(fd));
}

void dmabuf_group() {
  start();
  Memory m = make(unit());
  int fd = -1;
  tell("dmabuf_of_vmm", cuMemGetHandleForAddressRange(&fd, m.base, unit(),
                                                      CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
  if (fd < 0) return;
  note("fd_props", fd_facts(fd));
  CUmemGenericAllocationHandle handle;
  tell("vmm_import_of_dmabuf", import_fd(&handle, fd));
}

}  // namespace

std::vector<Group> sharing_groups() {
  return {{"export", export_group},   {"import", import_group},   {"xproc", xproc_group},
          {"pin", pin_group},         {"rlimit", rlimit_group},   {"fork", fork_group},
          {"mempool", mempool_group}, {"dmabuf", dmabuf_group}};
}

}  // namespace truth
