"""The `dasp` command and the modules of its sub-commands."""
