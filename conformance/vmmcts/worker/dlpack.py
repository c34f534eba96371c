"""Reads a DLPack capsule: device, shape and pointer, without a consumer library."""

from __future__ import annotations

import ctypes
from typing import Any


class _Device(ctypes.Structure):
    _fields_ = (("device_type", ctypes.c_int), ("device_id", ctypes.c_int))


class _DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


def describe(producer: Any) -> dict[str, Any]:
    """What the producer's capsule (unversioned protocol) says."""
    capsule = producer.__dlpack__()
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype = ctypes.c_void_p
    get_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
    tensor = _Tensor.from_address(get_pointer(capsule, b"dltensor"))
    return {
        "device_type": tensor.device.device_type,
        "device_id": tensor.device.device_id,
        "dlpack_device": list(map(int, producer.__dlpack_device__())),
        "pointer": (tensor.data or 0) + tensor.byte_offset,
        "shape": [tensor.shape[i] for i in range(tensor.ndim)],
        "bits": tensor.dtype.bits,
    }
