"""`python -m pushdown_lm` is the `pushdown` command."""

from pushdown_lm.cli.app import main

main()
