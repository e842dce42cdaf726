"""Packing into slices on a GPU: kernels/pack/, launched on arrays of a device, one step a module."""
