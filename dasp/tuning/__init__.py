"""Timers, and the searches that fill a policy or a table of tile sizes with what they measured."""
