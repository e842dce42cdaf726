"""Sub-commands of `dasp` that belong to no other part: info, solve, config."""
