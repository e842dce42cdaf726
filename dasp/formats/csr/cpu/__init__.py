"""Compressed sparse rows on a CPU."""
