"""The bytes that workers write and look for (PROTOCOL.md, "The pattern of a seed")."""

from __future__ import annotations

_TWICE = bytes(range(256)) * 2


def pattern(seed: int, offset: int, size: int) -> bytes:
    """The bytes of the pattern in [offset, offset + size)."""
    first = offset >> 8
    rows = ((offset + size + 255) >> 8) - first
    whole = b"".join(_row(seed, first + r) for r in range(rows))
    skip = offset & 255
    return whole[skip : skip + size]


def find_mismatch(data: bytes, seed: int, offset: int) -> int:
    """Offset in the buffer of the first byte that differs, -1 if none does."""
    expected = pattern(seed, offset, len(data))
    if data == expected:
        return -1
    return offset + next(i for i, (a, b) in enumerate(zip(data, expected, strict=True)) if a != b)


def _row(seed: int, row: int) -> bytes:
    start = (seed + row * 7 + (row >> 8) * 13 + (row >> 13) * 31) & 255
    return _TWICE[start : start + 256]
