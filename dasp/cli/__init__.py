"""The `dasp` command: a module a sub-command."""
