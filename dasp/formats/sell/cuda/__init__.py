"""Slices on a GPU."""
