"""Asking a trained model: marginals, surprisals, parses, posteriors, samples."""
