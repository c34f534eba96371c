"""Python implementations under test: the class to subclass, and the ones that come with vmmcts."""

from vmmcts.adapters.implementation import (
    BufferInfo,
    DescriptorInfo,
    Implementation,
    Options,
)

__all__ = ["BufferInfo", "DescriptorInfo", "Implementation", "Options"]
