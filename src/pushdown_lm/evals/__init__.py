"""Evaluations, which see a model only through the `Scorer` protocol."""
