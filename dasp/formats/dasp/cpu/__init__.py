"""The format of the paper on a CPU."""
