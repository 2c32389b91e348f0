"""The folder of the English Base-LM of pushdown-lm, which finds it by name."""

from pathlib import Path

english_base = Path(__file__).parent / "english_base"
