"""Shares a cuMemCreate allocation between two processes with cuda.bindings alone, by SCM_RIGHTS.

vmm_ipc.py          the exporter, which starts the importer
vmm_ipc.py SOCKET   the importer
"""

import array
import ctypes
import os
import socket
import subprocess
import sys

from cuda.bindings import driver as cu

FD = cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
SIZE = 2 << 20


def checked(result):
    assert result[0] == cu.CUresult.CUDA_SUCCESS, result[0]
    return result[1] if len(result) == 2 else result[1:]


def start() -> None:
    checked(cu.cuInit(0))
    checked(cu.cuCtxSetCurrent(checked(cu.cuDevicePrimaryCtxRetain(checked(cu.cuDeviceGet(0))))))


def mapped(handle) -> int:
    base = checked(cu.cuMemAddressReserve(SIZE, 0, 0, 0))
    checked(cu.cuMemMap(base, SIZE, 0, handle, 0))
    access = cu.CUmemAccessDesc()
    access.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    access.location.id = 0
    access.flags = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    checked(cu.cuMemSetAccess(base, SIZE, [access], 1))
    return int(base)


def first_byte(base: int) -> int:
    byte = ctypes.c_ubyte()
    checked(cu.cuMemcpyDtoH(ctypes.addressof(byte), base, 1))
    return byte.value


def importer(channel: socket.socket) -> None:
    start()
    _, control, _, _ = channel.recvmsg(1, socket.CMSG_SPACE(4))
    fd = array.array("i", control[0][2])[0]
    handle = checked(cu.cuMemImportFromShareableHandle(fd, FD))
    os.close(fd)
    base = mapped(handle)
    print("importer reads", first_byte(base), flush=True)
    checked(cu.cuMemsetD8(base, 0x22, SIZE))
    channel.send(b"w")


def exporter() -> None:
    start()
    prop = cu.CUmemAllocationProp()
    prop.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    prop.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    prop.requestedHandleTypes = FD
    handle = checked(cu.cuMemCreate(SIZE, prop, 0))
    base = mapped(handle)
    checked(cu.cuMemsetD8(base, 0x11, SIZE))
    ours, theirs = socket.socketpair()
    child = subprocess.Popen(
        [sys.executable, __file__, str(theirs.fileno())], pass_fds=[theirs.fileno()]
    )
    fd = int(checked(cu.cuMemExportToShareableHandle(handle, FD, 0)))
    ours.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))])
    os.close(fd)
    assert ours.recv(1) == b"w"
    print("exporter reads", first_byte(base), "importer exit", child.wait(timeout=60))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        importer(socket.socket(fileno=int(sys.argv[1])))
    else:
        exporter()
