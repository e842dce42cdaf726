"""Compressed sparse rows: sort and transpose them on either device."""
