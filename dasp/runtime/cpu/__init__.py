"""A CPU: threads, compilation, signals, vector registers."""
