"""The model's own parses of sentences, found by beam search once and kept on disk.

A cache is one JSON Lines file: every line names the model (a hash of its weights and of the search
options), the sentence (its token ids) and the attachments of its most probable history. So one file
may serve several models, and a parse is never found twice, nor taken from another model.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from pushdown_lm.console import progress
from pushdown_lm.files import read_appended
from pushdown_lm.model.modeling import PushdownForCausalLM
from pushdown_lm.search.beam import DEFAULT_BATCH_CELLS, search_batches
from pushdown_lm.search.scorer import weights_fingerprint

Tokens: TypeAlias = tuple[int, ...]

CPU_BATCH_CELLS = 16_384
"""Enough to keep a CPU busy, and little to lose when the search is interrupted."""


class ParseCache:
    """Parses sentences with one model, from a file where it has them.

    Args:
        path: the file, made when first needed.
        beam, threshold: as for :func:`pushdown_lm.search.beam.search`.
    """

    def __init__(
        self,
        path: str | Path,
        model: PushdownForCausalLM,
        *,
        beam: int,
        threshold: float | None = None,
    ) -> None:
        self.path = Path(path)
        self.model, self.beam, self.threshold = model, beam, threshold
        described = (
            f"{weights_fingerprint(model)} {model.config.pushdown_layers} {beam} {threshold}"
        )
        self._model_key = hashlib.blake2b(described.encode(), digest_size=8).hexdigest()
        self._known: dict[Tokens, list[int]] = {}
        if self.path.exists():
            fields = ("model", "tokens", "attachments")
            for key, tokens, history in read_appended(self.path, "a parse", fields):
                if key == self._model_key:
                    self._known[tuple(tokens)] = history

    def __len__(self) -> int:
        """How many parses of this model are known."""
        return len(self._known)

    def parse(self, sentences: Sequence[Sequence[int]]) -> list[list[int]]:
        """Attachments ``[0, r_1, ..., r_n, 0]`` of sentences of token ids without BOS and EOS."""
        wanted = [tuple(sentence) for sentence in sentences]
        missing = [tokens for tokens in dict.fromkeys(wanted) if tokens not in self._known]
        if missing:
            self._search(missing)
        return [[0, *self._known[tokens], 0] for tokens in wanted]

    def _search(self, sentences: list[Tokens]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        on_cpu = self.model.device.type == "cpu"
        batches = search_batches(
            self.model,
            sentences,
            beam=self.beam,
            threshold=self.threshold,
            batch_cells=CPU_BATCH_CELLS if on_cpu else DEFAULT_BATCH_CELLS,
        )
        with (
            self.path.open("a", encoding="utf-8") as file,
            progress("Parsing", len(sentences), "sentences") as advance,
        ):
            for batch in batches:
                for number, result in batch.items():
                    history = result.histories[0].tolist()
                    self._known[sentences[number]] = history
                    record = {
                        "model": self._model_key,
                        "tokens": sentences[number],
                        "attachments": history,
                    }
                    file.write(json.dumps(record) + "\n")
                file.flush()
                advance(len(batch))
