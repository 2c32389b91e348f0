"""Corpora that come with the library or are read from their own formats."""
