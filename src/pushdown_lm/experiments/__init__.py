"""The experiments, end to end: data, training, evaluation, tables and plots."""
