"""Compressed sparse rows, from which every format is packed: sort and transpose them on both devices."""
