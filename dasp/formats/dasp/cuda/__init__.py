"""The format of the paper on a GPU."""
