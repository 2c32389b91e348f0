"""The folder of the English model of pushdown-lm, which finds it by name."""

from pathlib import Path

english = Path(__file__).parent / "english"
