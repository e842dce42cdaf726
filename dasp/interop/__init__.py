"""Where dasp meets other libraries: PyTorch today."""
