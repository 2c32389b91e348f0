"""The explorer: a local page on which models read sentences, token by token."""
