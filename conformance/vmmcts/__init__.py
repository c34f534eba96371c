"""The command line of the conformance suite, and what its Python workers are made of."""
