"""Verify a matrix, then time it: `dasp bench`, its baselines, its roofline and its tables.

The way of the data: `sparse.measure` takes one matrix through a device (`device.HostDevice` or
`device.CudaDevice`), checks every row of every product (`verify`), times our product and the baselines
(`timing`, `timing_cuda`), and returns one row; `results` keeps rows in a CSV file; `table` and `figures`
draw what the rows say. Nothing here is imported by `import dasp`.
"""
