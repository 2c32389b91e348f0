"""Benchmarks: what `pushdown bench` measures."""
