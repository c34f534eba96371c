/* The C table that a shared library exports to be tested by vmmcts.
 *
 *     const vmmcts_implementation* vmmcts_implementation_get(void);
 *
 * Rules for every function of the table:
 *  - It returns VMMCTS_OK, or the kind of the error with *error filled in. Out parameters are
 *    written on success only. Nothing is thrown through the table.
 *  - Objects are opaque and owned by the caller: each `_release` gives up one object and never
 *    fails; releasing NULL is a no-op. A descriptor, a handle and a buffer are independent of one
 *    another and may be released in any order.
 *  - Sizes and offsets are in bytes, pointers are device pointers (CUdeviceptr), fds are file
 *    descriptors of the calling process.
 *  - Every function may be called from any thread, with no CUDA context current. Different objects
 *    may be used at the same time; one buffer may be exported and grown by several threads at once.
 *
 * Clause ids in brackets name the rule that a function serves; conformance/clauses/ has the text.
 */
#ifndef VMMCTS_IMPLEMENTATION_H
#define VMMCTS_IMPLEMENTATION_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Raised when a member of the table changes meaning or place. */
#define VMMCTS_ABI_VERSION 1

typedef enum vmmcts_status {
  VMMCTS_OK = 0,
  VMMCTS_RUNTIME_ERROR = 1, /* RuntimeError: refused or failed operation, driver error included */
  VMMCTS_VALUE_ERROR = 2,   /* ValueError: a bad value in the arguments or in a descriptor */
  VMMCTS_TYPE_ERROR = 3,    /* TypeError: an object of the wrong kind */
  VMMCTS_OS_ERROR = 4       /* OSError: a system call failed; system_errno says how */
} vmmcts_status;

typedef struct vmmcts_error {
  int32_t cuda_result;   /* the CUresult that the driver returned, 0 if none */
  int32_t system_errno;  /* errno of the failed system call, 0 if none */
  char message[1000];    /* one line, UTF-8, NUL terminated */
} vmmcts_error;

/* CUmemAllocationHandleType values; VMMCTS_HANDLE_NONE makes a resource that cannot share. */
enum {
  VMMCTS_HANDLE_NONE = 0,
  VMMCTS_HANDLE_POSIX_FD = 1,
  VMMCTS_HANDLE_WIN32 = 2,
  VMMCTS_HANDLE_WIN32_KMT = 4,
  VMMCTS_HANDLE_FABRIC = 8
};

/* CUmemLocationType values. */
enum { VMMCTS_LOCATION_DEVICE = 1, VMMCTS_LOCATION_HOST = 2, VMMCTS_LOCATION_HOST_NUMA = 3 };

/* CUmemAccess_flags values. */
enum { VMMCTS_ACCESS_NONE = 0, VMMCTS_ACCESS_READ = 1, VMMCTS_ACCESS_READWRITE = 3 };

/* What a resource is made of, and what a per-call configuration of modify may override. */
typedef struct vmmcts_options {
  int32_t device;           /* ordinal of the device that the resource belongs to */
  int32_t handle_type;      /* VMMCTS_HANDLE_*; the one switch for sharing [RES-01] */
  int32_t location_type;    /* VMMCTS_LOCATION_* */
  int32_t self_access;      /* VMMCTS_ACCESS_* of the device itself [IMP-03] */
  int32_t peer_access;      /* VMMCTS_ACCESS_* of the peers */
  const int32_t* peers;     /* device ordinals [IMP-14] */
  size_t peer_count;
} vmmcts_options;

typedef struct vmmcts_resource vmmcts_resource;     /* VirtualMemoryResource */
typedef struct vmmcts_buffer vmmcts_buffer;         /* VirtualMemoryBuffer */
typedef struct vmmcts_descriptor vmmcts_descriptor; /* VirtualMemoryIPCBufferDescriptor */
typedef struct vmmcts_handle vmmcts_handle;         /* IPCAllocationHandle */

typedef struct vmmcts_buffer_info {
  uint64_t pointer;  /* device pointer; 0 for an empty buffer */
  uint64_t size;     /* bytes */
  int32_t is_mapped; /* 1 for an imported buffer, else 0 [IMP-01] */
} vmmcts_buffer_info;

typedef struct vmmcts_descriptor_info {
  int32_t handle_type; /* VMMCTS_HANDLE_* of the exporter */
  uint64_t size;       /* bytes of the buffer, at most the sum of the sizes [DESC-05] */
  size_t count;        /* number of sizes, handles and fds */
} vmmcts_descriptor_info;

/* One element of from_fds: an integer fd, or a handle when `handle` is not NULL. */
typedef struct vmmcts_fd_or_handle {
  int32_t fd;             /* duplicated; the caller keeps its own [RAW-01] */
  vmmcts_handle* handle;  /* shared; closes with its last holder [RAW-02] */
} vmmcts_fd_or_handle;

typedef struct vmmcts_implementation {
  uint32_t abi_version; /* VMMCTS_ABI_VERSION */
  uint32_t table_size;  /* sizeof(vmmcts_implementation) */
  const char* name;     /* short, for reports */
  const char* version;
  const char* profiles; /* space-separated, of: core rawfd. What is named here is tested. */

  /* VirtualMemoryResource. Construction initializes the driver if need be. */
  vmmcts_status (*resource_create)(const vmmcts_options* options, vmmcts_resource** out,
                                   vmmcts_error* error);
  int32_t (*resource_is_ipc_enabled)(const vmmcts_resource* resource);
  void (*resource_release)(vmmcts_resource* resource);

  /* Buffers. `close` gives the memory up and may be repeated [ALLOC-08]; `release` closes and frees
   * the object. `config` may be NULL: the options of the resource. modify always makes a new
   * buffer [GROW-01]. */
  vmmcts_status (*buffer_allocate)(vmmcts_resource* resource, uint64_t size, vmmcts_buffer** out,
                                   vmmcts_error* error);
  vmmcts_status (*buffer_modify)(vmmcts_resource* resource, vmmcts_buffer* buffer, uint64_t size,
                                 const vmmcts_options* config, vmmcts_buffer** out,
                                 vmmcts_error* error);
  vmmcts_status (*buffer_info)(vmmcts_buffer* buffer, vmmcts_buffer_info* out,
                               vmmcts_error* error);
  vmmcts_status (*buffer_close)(vmmcts_buffer* buffer, vmmcts_error* error);
  void (*buffer_release)(vmmcts_buffer* buffer);

  /* Copies between the buffer and host memory; complete when they return. */
  vmmcts_status (*buffer_write)(vmmcts_buffer* buffer, uint64_t offset, const void* data,
                                uint64_t size, vmmcts_error* error);
  vmmcts_status (*buffer_read)(vmmcts_buffer* buffer, uint64_t offset, void* data, uint64_t size,
                               vmmcts_error* error);

  /* ipc_descriptor: exports on every call; the descriptor owns its fds [DESC-01..04]. */
  vmmcts_status (*buffer_export)(vmmcts_buffer* buffer, vmmcts_descriptor** out,
                                 vmmcts_error* error);
  /* from_ipc_descriptor: neither consumes nor keeps the descriptor [IMP-04]. */
  vmmcts_status (*buffer_import)(vmmcts_resource* resource, vmmcts_descriptor* descriptor,
                                 vmmcts_buffer** out, vmmcts_error* error);

  /* Descriptors. `close` releases the fds and may be repeated [DESC-10]; `release` closes and frees
   * the object. from_fds: the counts may differ (an error to report [RAW-05]); `size` NULL means
   * the sum. `sizes` are signed so that a caller's mistake can be expressed. */
  vmmcts_status (*descriptor_from_fds)(const vmmcts_fd_or_handle* fds, size_t fd_count,
                                       const int64_t* sizes, size_t size_count,
                                       int32_t handle_type, const int64_t* size,
                                       vmmcts_descriptor** out, vmmcts_error* error);
  vmmcts_status (*descriptor_info)(vmmcts_descriptor* descriptor, vmmcts_descriptor_info* out,
                                   vmmcts_error* error);
  vmmcts_status (*descriptor_sizes)(vmmcts_descriptor* descriptor, uint64_t* out, size_t capacity,
                                    vmmcts_error* error);
  vmmcts_status (*descriptor_fds)(vmmcts_descriptor* descriptor, int32_t* out, size_t capacity,
                                  vmmcts_error* error);
  vmmcts_status (*descriptor_handle)(vmmcts_descriptor* descriptor, size_t index,
                                     vmmcts_handle** out, vmmcts_error* error);
  void (*descriptor_close)(vmmcts_descriptor* descriptor);
  void (*descriptor_release)(vmmcts_descriptor* descriptor);

  /* IPCAllocationHandle: a shared owner of one fd. `close` closes the fd for all holders;
   * `release` gives up this holder, and the last one closes the fd [RAW-02]. */
  vmmcts_status (*handle_fd)(vmmcts_handle* handle, int32_t* out, vmmcts_error* error);
  void (*handle_close)(vmmcts_handle* handle);
  void (*handle_release)(vmmcts_handle* handle);
} vmmcts_implementation;

/* The one symbol that the library exports. The table is static; the caller does not free it. */
#define VMMCTS_ENTRY_POINT "vmmcts_implementation_get"
typedef const vmmcts_implementation* (*vmmcts_implementation_get_fn)(void);

#ifdef __cplusplus
}
#endif

#endif
