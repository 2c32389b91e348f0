"""Pushdown models inside the field's own evaluation packages, each an optional extra."""
