"""Compressed sparse rows, the only format that is computed with: sort and transpose them on both devices."""
