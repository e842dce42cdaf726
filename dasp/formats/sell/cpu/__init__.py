"""Slices on a CPU."""
