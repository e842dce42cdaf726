"""Bridges to other libraries: PyTorch."""
