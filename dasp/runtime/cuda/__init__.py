"""A GPU: memory, streams, the sources of kernels, launches and graphs."""
