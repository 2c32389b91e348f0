"""WikiTrees: WikiText-103 parsed, and a dataset of windows, as the paper trains on.

The paper parses Wikipedia (WikiText-103, 100 million tokens) and trains on windows of 512 tokens.
Here each split is streamed from the Hub and parsed into a corpus of its own. All become one
dataset, in windows that start at sentence boundaries; a sentence longer than a window is left out.
Both steps resume where they left off.

    OUT/train, OUT/valid, OUT/test    corpora, as `pushdown corpus build` makes them
    OUT/data                          the dataset, as `pushdown data build` makes it
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pushdown_lm.corpora.build import SHARDS, CorpusOptions, build_corpus
from pushdown_lm.data.build import DataOptions, build_data
from pushdown_lm.data.dataset import Data
from pushdown_lm.errors import PushdownError

WIKITEXT = "hf:Salesforce/wikitext:wikitext-103-raw-v1"
TEXTS = {
    "train": f"{WIKITEXT}:train",
    "valid": f"{WIKITEXT}:validation",
    "test": f"{WIKITEXT}:test",
}
WINDOW = 512


def build_wikitrees(
    out: str | os.PathLike[str],
    options: CorpusOptions,
    *,
    texts: Mapping[str, str] = TEXTS,
    tokenizer: str = "bpe:32000",
    window: int = WINDOW,
    **engine: Any,
) -> Data:
    """Parse the text of each split, and make the dataset.

    Args:
        texts: the source of `train`, and of `valid` and `test` where they are wanted.
        tokenizer: as `pushdown data build` takes it; GPT-2's folder for the paper's models.
        engine: the other arguments of :func:`pushdown_lm.corpora.build.build_corpus`.
    """
    if "train" not in texts or not texts.keys() <= TEXTS.keys():
        raise PushdownError(f"texts: expected train, and valid and test, got {', '.join(texts)}")
    folder = Path(out)
    for split, text in texts.items():
        build_corpus([text], folder / split, options, **engine)
    return build_data(
        {split: str(folder / split / SHARDS) for split in texts},
        folder / "data",
        DataOptions(tokenizer=tokenizer, window=window, errors="skip"),
        processes=engine.get("workers", 1),
        overwrite=engine.get("overwrite", False),
    )
