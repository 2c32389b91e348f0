"""A model that reads brackets (PLM, PLM-mask, Transformer Grammar) behind the same questions.

    scorer = BracketScorer.from_pretrained(folder)
    scorer.log_prob("The dog is happy.")
    print(to_brackets(scorer.parse("The dog is happy.")))

Sentences become tokens, and answers have their form, as with :class:`PushdownScorer`. Probabilities
are sums over the bracketings that word-synchronous search keeps
(:mod:`pushdown_lm.search.word_beam`). Trees have labels and constituents of any number of children;
where the :class:`~pushdown_lm.search.scorer.Scorer` protocol asks for binary trees, they are
binarized to the right.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, overload

import torch
from transformers import PreTrainedTokenizerFast

from pushdown_lm.data.tokenization import WordEncoder, load_tokenizer
from pushdown_lm.model.bracket_configuration import BracketConfig
from pushdown_lm.model.bracket_modeling import BracketForCausalLM
from pushdown_lm.model.loading import load_weights
from pushdown_lm.search.beam import SearchError
from pushdown_lm.search.defaults import DEFAULT_BEAM
from pushdown_lm.search.packaged import find_model
from pushdown_lm.search.pushdown_scorer import (
    Analysis,
    Encoded,
    PushdownScorer,
    Sentence,
    _check_folder,
)
from pushdown_lm.search.word_beam import (
    DEFAULT_BATCH_ENTRIES,
    BracketResult,
    WordBeam,
    word_search_batches,
)
from pushdown_lm.trees import Tree, binarize
from pushdown_lm.trees.linearization import TOKEN, actions_from_tree

"""Stern et al.'s action beam."""


class BracketScorer(PushdownScorer):
    """Answers questions about sentences with a model that reads brackets.

    Args:
        beam: entries while brackets are read; a tenth of them is kept at each word, and a twentieth
            may read the word after each bracket (:meth:`WordBeam.of`).
        threshold: entries further than this below the best, in nats, are dropped.
        batch_entries: about how many entries are decoded at once.
        allow_unknown: as for :class:`PushdownScorer`.
    """

    model: BracketForCausalLM

    def __init__(
        self,
        model: BracketForCausalLM,
        tokenizer: PreTrainedTokenizerFast,
        *,
        name: str | None = None,
        beam: int = DEFAULT_BEAM,
        threshold: float | None = None,
        batch_entries: int = DEFAULT_BATCH_ENTRIES,
        allow_unknown: bool = False,
    ) -> None:
        super().__init__(
            model,  # type: ignore[arg-type]
            tokenizer,
            name=name,
            beam=beam,
            threshold=threshold,
            allow_unknown=allow_unknown,
        )
        self.word_beam = WordBeam.of(beam)
        self.batch_entries = batch_entries
        table = model.config.nonterminals
        settings = self._encode_words.settings
        reserved = settings.reserved_ids | set(range(table.first, table.end))
        self._encode_words = WordEncoder(replace(settings, reserved_ids=reserved))

    @classmethod
    def from_pretrained(cls, folder: str | Path, **options: Any) -> BracketScorer:
        """The model and the tokenizer saved together in a folder, or an installed model by name."""
        name, folder = str(folder), find_model(folder)
        _check_folder(folder, BracketConfig.model_type, "a model that reads brackets")
        model = load_weights(BracketForCausalLM, folder, dtype=torch.float32)
        return cls(model, load_tokenizer(folder), **{"name": name, **options})

    def describe(self) -> dict[str, Any]:
        beam = self.word_beam
        return {
            **super().describe(),
            "kind": self.model.config.kind,
            "beam": f"{beam.actions}/{beam.words}/{beam.fast}",
        }

    @property
    def parses(self) -> bool:
        return True

    def analyse_batches(self, encoded: Sequence[Encoded]) -> Iterator[dict[int, Analysis]]:
        for batch in word_search_batches(
            self.model,
            [sentence.ids for sentence in encoded],
            beam=self.word_beam,
            threshold=self.threshold,
            batch_entries=self.batch_entries,
        ):
            yield {
                number: Analysis(encoded[number], result, self.tokenizer.eos_token)
                for number, result in batch.items()
            }

    @overload
    def parse(self, sentences: str) -> Tree: ...  # type: ignore[overload-overlap]
    @overload
    def parse(self, sentences: Sequence[Sentence]) -> list[Tree | None]: ...
    def parse(self, sentences: Sequence[Sentence]) -> Tree | list[Tree | None]:
        """The most probable labeled tree of a text, or of each sentence, these made binary."""
        if isinstance(sentences, str):
            return super().parse(sentences)
        trees = super().parse(sentences)
        return [None if tree is None else binarize(tree) for tree in trees]

    def symbols(self, sentence: Sequence[int], actions: Sequence[int]) -> list[int]:
        """BOS, the tokens of a sentence among their brackets, and EOS."""
        config = self.model.config
        tokens = [config.bos_token_id or 0, *sentence, config.eos_token_id or 0]
        return config.nonterminals.linearize(tokens, [TOKEN, *actions, TOKEN])

    @torch.inference_mode()
    def log_joint(self, tree: Tree) -> float:
        """log p(x, y) of a sentence and its labeled tree; constituents without a label are X."""
        encoded = self.encode(tree.words)
        labels = self.model.config.nonterminals.labels

        def number(label: str) -> int:
            if label not in labels:
                raise SearchError(
                    f"expected labels that the model was trained on, found {label!r}; it knows "
                    f"{', '.join(labels)}"
                )
            return labels.index(label)

        actions = actions_from_tree(tree, number, encoded.leaf_counts)
        symbols = torch.tensor([self.symbols(encoded.ids, actions)], device=self.model.device)
        output = self.model(symbols, labels=symbols, num_items_in_batch=1)
        assert output.loss is not None
        return -float(output.loss)

    @torch.inference_mode()
    def is_likeliest(self, analysis: Analysis) -> list[bool]:
        """Whether each token is the likeliest of all tokens where it stands, EOS included, under
        the most probable bracketing."""
        assert isinstance(analysis.result, BracketResult)
        actions = analysis.result.actions(0)
        symbols = torch.tensor(self.symbols(analysis.sentence.ids, actions))
        logits = self.model(symbols[None].to(self.model.device)).logits[0]
        first = self.model.config.nonterminals.first
        reads = (symbols[1:] < first).nonzero()[:, 0]
        likeliest = logits[reads, :first].argmax(-1).cpu()
        return (likeliest == symbols[1:][reads]).tolist()
