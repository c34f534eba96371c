"""Shares a buffer of a cuda.core memory pool with a spawned process, both ways."""

import ctypes
import multiprocessing

from cuda.bindings import driver
from cuda.core import Device, DeviceMemoryResource, DeviceMemoryResourceOptions

SIZE = 4096


def first_bytes(buffer) -> list[int]:
    host = (ctypes.c_ubyte * 4)()
    (result,) = driver.cuMemcpyDtoH(ctypes.addressof(host), int(buffer.handle), 4)
    assert result == driver.CUresult.CUDA_SUCCESS, result
    return list(host)


def child(buffers, answers) -> None:
    Device(0).set_current()
    buffer = buffers.get(timeout=60)
    answers.put((buffer.is_mapped, buffer.size, first_bytes(buffer)))
    driver.cuMemsetD8(int(buffer.handle), 9, SIZE)
    buffer.close()
    answers.put("closed")


if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    device = Device(0)
    device.set_current()
    options = DeviceMemoryResourceOptions(max_size=1 << 24, ipc_enabled=True)
    resource = DeviceMemoryResource(device, options=options)
    stream = device.create_stream()
    shared = resource.allocate(SIZE, stream=stream)
    stream.sync()
    driver.cuMemsetD8(int(shared.handle), 7, SIZE)
    queue, replies = context.Queue(), context.Queue()
    process = context.Process(target=child, args=(queue, replies))
    process.start()
    queue.put(shared)
    print("child", *replies.get(timeout=60))
    print(replies.get(timeout=60))
    process.join()
    print("exit", process.exitcode, "parent", first_bytes(shared))
    shared.close()
