"""Benchmarks: ratios within one run on one machine, published in docs/benchmarks.md. No test asserts a speed."""
