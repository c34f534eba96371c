"""The Python worker: one Python implementation behind the protocol of PROTOCOL.md."""
