"""Verify, then time: the subjects of `python -m benchmarks.bench`, and what they share.

A subject (`sparse`, `gemm`, `gf256`, `solvers`) says what its cases are, verifies and times one, and draws
its rows. `session` runs the cases on a `device` and keeps their rows in a CSV file (`results`); `report` and
`table` write what rows say for a terminal, for a document and as JSON; `figures` draws it. Verification,
tables and what times one matrix are those of `dasp bench`, in `dasp.cli`.
"""
