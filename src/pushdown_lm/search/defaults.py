"""How wide search is unless told otherwise; of no weight, so that the command line can say it."""

DEFAULT_BEAM = 100
"""Parses of a sentence that are kept; the paper keeps 300."""
DEFAULT_THRESHOLD = 6.0
"""Nats below the best parse at which a parse is dropped: a share of 0.0025 of its probability."""
