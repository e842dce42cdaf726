"""A CPU: threads, compilation, and the operands of products."""
