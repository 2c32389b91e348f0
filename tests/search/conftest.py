"""The tiny plain language model of the evaluations, for the scorers too."""

from tests.evals.conftest import model, tiny_scorer, tokenizer

__all__ = ["model", "tiny_scorer", "tokenizer"]
