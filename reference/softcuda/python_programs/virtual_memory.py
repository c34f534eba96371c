"""Allocates virtual memory with cuda.core, grows it and copies through it.

virtual_memory.py FIRST GROWN   sizes in bytes
"""

import sys

import numpy as np
from cuda.bindings import driver
from cuda.core import Device, VirtualMemoryResource


def checked(result):
    assert result[0] == driver.CUresult.CUDA_SUCCESS, result[0]
    return result[1] if len(result) == 2 else result[1:]


def free_bytes() -> int:
    return checked(driver.cuMemGetInfo())[0]


first, grown = int(sys.argv[1]), int(sys.argv[2])
device = Device(0)
device.set_current()
before = free_bytes()
resource = VirtualMemoryResource(device)
buffer = resource.allocate(first)
print(f"size {buffer.size} used {before - free_bytes()}")
data = np.arange(first, dtype=np.uint8)
checked(driver.cuMemcpyHtoD(int(buffer.handle), data.ctypes.data, data.nbytes))
buffer = resource.modify_allocation(buffer, grown)
print(f"grown {buffer.size} used {before - free_bytes()}")
back = np.zeros_like(data)
checked(driver.cuMemcpyDtoH(back.ctypes.data, int(buffer.handle), back.nbytes))
print(f"equal {bool((back == data).all())}")
buffer.close()
print(f"leaked {before - free_bytes()}")
