"""Asks for what softcuda does not model, and prints the answers."""

from cuda.bindings import driver

assert driver.cuInit(0)[0] == driver.CUresult.CUDA_SUCCESS
context = driver.cuDevicePrimaryCtxRetain(0)[1]
driver.cuCtxSetCurrent(context)
print(driver.cuModuleLoadData(b"\0")[0].name)
print(driver.cuArrayCreate(driver.CUDA_ARRAY_DESCRIPTOR())[0].name)
