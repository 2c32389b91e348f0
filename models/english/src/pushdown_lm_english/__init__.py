"""The folders of the English models of pushdown-lm, which finds them by name."""

from pathlib import Path

english = Path(__file__).parent / "english"
english_base = Path(__file__).parent / "english_base"
