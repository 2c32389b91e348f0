"""Pictures: trees with their tape and surprisals."""
