"""Products of dense floating-point matrices, by a ladder of kernels for each device."""
