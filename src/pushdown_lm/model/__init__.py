"""Pushdown models: any decoder of Transformers with a stack tape and an attachment head."""
