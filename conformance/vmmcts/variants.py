"""Legal variants of the software driver: what the API leaves open and another driver may do."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Variant:
    """One value of ``SOFTCUDA_VARIANT``."""

    name: str
    text: str


VARIANTS = (
    Variant("granularity-64k", "allocations are multiples of 64 KiB"),
    Variant("granularity-16m", "allocations are multiples of 16 MiB"),
    Variant("hints-never", "a hint for an address is never granted: no grow is in place"),
    Variant("hints-always", "a hint for a free address is always granted"),
    Variant("handles-reused", "the value of a released handle is given out again"),
    Variant("handles-never-reused", "no value of a handle comes twice"),
    Variant("addresses-descending", "each reservation is below the one before"),
    Variant("fds-inherited", "exported descriptors are not close-on-exec"),
    Variant("other-errors", "other codes where only an error is promised"),
    Variant("slow-calls", "each call takes 250 us more"),
)
