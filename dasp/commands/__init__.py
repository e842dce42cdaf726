"""Sub-commands of `dasp`, a module each."""
