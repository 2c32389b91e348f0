"""Trees to batches: tokenization, encoding, datasets on disk, padding and sampling."""
