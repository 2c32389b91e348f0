"""A model that reads brackets (PLM, PLM-mask, Transformer Grammar) behind the same questions.

    scorer = BracketScorer.from_pretrained(folder)
    scorer.log_prob("The dog is happy.")
    print(to_brackets(scorer.parse("The dog is happy.")))

Sentences become tokens, and answers have their form, as with :class:`SearchScorer`. Probabilities
are sums over the bracketings that word-synchronous search keeps
(:mod:`pushdown_lm.search.word_beam`). Trees have labels and constituents of any number of children;
where the :class:`~pushdown_lm.search.scorer.Scorer` protocol asks for binary trees, they are
binarized to the right.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast

from pushdown_lm.data.tokenization import WordEncoder
from pushdown_lm.errors import PushdownError
from pushdown_lm.model.bracket_configuration import BracketConfig
from pushdown_lm.model.bracket_modeling import BracketForCausalLM
from pushdown_lm.search.beam import SearchError
from pushdown_lm.search.defaults import DEFAULT_BEAM
from pushdown_lm.search.read_attention import ReadAttention
from pushdown_lm.search.scorer import TreeScore
from pushdown_lm.search.search_scorer import Analysis, Encoded, SearchScorer
from pushdown_lm.search.word_beam import (
    DEFAULT_BATCH_ENTRIES,
    BracketResult,
    WordBeam,
    word_search_batches,
)
from pushdown_lm.trees import Tree, binarize
from pushdown_lm.trees.linearization import TOKEN, actions_from_tree


class BracketScorer(SearchScorer):
    """Answers questions about sentences with a model that reads brackets.

    Its attention is on brackets too, and in a Transformer Grammar on words that are not composed
    yet only, so it has no attention on words to compare with that of other models. Nor are tokens
    predicted apart from the structure: that a token comes next tells that no bracket does.

    Args:
        beam: entries while brackets are read, Stern et al.'s action beam; a tenth of them is kept
            at each word, and a twentieth may read the word after each bracket
            (:meth:`WordBeam.of`).
        batch_entries: about how many entries are decoded at once.
        options: name, threshold and allow_unknown, as for :class:`SearchScorer`.
    """

    model: BracketForCausalLM
    model_class = BracketForCausalLM
    model_type = BracketConfig.model_type
    kind = "a model that reads brackets"

    def __init__(
        self,
        model: BracketForCausalLM,
        tokenizer: PreTrainedTokenizerFast,
        *,
        beam: int = DEFAULT_BEAM,
        batch_entries: int = DEFAULT_BATCH_ENTRIES,
        **options: Any,
    ) -> None:
        super().__init__(model, tokenizer, beam=beam, **options)
        self.word_beam = WordBeam.of(beam)
        self.batch_entries = batch_entries
        table = model.config.nonterminals
        settings = self._encode_words.settings
        reserved = settings.reserved_ids | set(range(table.first, table.end))
        self._encode_words = WordEncoder(replace(settings, reserved_ids=reserved))

    def describe(self) -> dict[str, Any]:
        beam = self.word_beam
        return {
            **super().describe(),
            "kind": self.model.config.kind,
            "beam": f"{beam.actions}/{beam.words}/{beam.fast}",
        }

    @property
    def depends_on_parse(self) -> bool:
        return True

    @property
    def parses(self) -> bool:
        return True

    @property
    def attends(self) -> bool:
        return False

    @property
    def scores_trees(self) -> bool:
        return False

    def analyse_batches(self, encoded: Sequence[Encoded]) -> Iterator[dict[int, Analysis]]:
        for batch in word_search_batches(
            self.model,
            [sentence.ids for sentence in encoded],
            beam=self.word_beam,
            threshold=self.threshold,
            batch_entries=self.batch_entries,
        ):
            yield {
                number: self.analysis(encoded[number], result) for number, result in batch.items()
            }

    def _binary(self, tree: Tree) -> Tree:
        return binarize(tree)

    def symbols(self, sentence: Sequence[int], actions: Sequence[int]) -> list[int]:
        """BOS, the tokens of a sentence among their brackets, and EOS."""
        config = self.model.config
        tokens = [config.bos_id, *sentence, config.eos_id]
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

    def score_trees(self, trees: Sequence[Tree]) -> list[TreeScore]:
        raise self._refusal("whose tokens are predicted apart from the structure")

    def read_attention(self, text: str) -> ReadAttention:
        raise self._refusal("whose attention is on words")

    def _refusal(self, expected: str) -> PushdownError:
        return PushdownError(f"{self.name}: expected a model {expected}, found {self.kind}")

    @torch.inference_mode()
    def is_likeliest(self, analysis: Analysis) -> list[bool]:
        assert isinstance(analysis.result, BracketResult)
        actions = analysis.result.actions(0)
        symbols = torch.tensor(self.symbols(analysis.sentence.ids, actions))
        logits = self.model(symbols[None].to(self.model.device)).logits[0]
        first = self.model.config.nonterminals.first
        reads = (symbols[1:] < first).nonzero()[:, 0]
        likeliest = logits[reads, :first].argmax(-1).cpu()
        return (likeliest == symbols[1:][reads]).tolist()
