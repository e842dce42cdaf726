"""Verify, then time: the subjects of `python -m benchmarks.bench`, and what they share.

A subject (`sparse`, `columns`, `gemm`, `gf256`, `solvers`) says what its cases are, verifies and times one,
and draws its rows. `session` runs the cases on a `device` and keeps their rows in a CSV file (`results`);
`report` writes the tables of rows for a terminal and for a document; `figures` draws them. Verification,
tables and the timing of one matrix are those of `dasp bench`, in `dasp.cli`.
"""
