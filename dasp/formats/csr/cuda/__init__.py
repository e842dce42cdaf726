"""Compressed sparse rows on a GPU."""
