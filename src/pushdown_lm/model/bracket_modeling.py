"""Language models of bracketed sentences: PLM, PLM-mask and Transformer Grammars.

Shapes: B sentences, T symbols, V vocabulary, H heads.

Where a Pushdown model keeps the parse beside the tokens, these put it into the stream of tokens:
they predict the symbols of ``(S (NP The dog NP) (VP is happy VP) S)`` one after another, so

    p(x, y) = prod_t p(symbol_t | symbols before)

is the joint probability of a sentence and its labeled tree. The transformer is any decoder of
Transformers; what differs between the three is which earlier symbols a position attends to
(:mod:`pushdown_lm.model.bracket_structure`):

    plm         all of them (Choe and Charniak, 2016)
    plm-mask    the same, but for two heads of every layer (Qian et al. 2021)
    tg          the stack, or the constituent that is composed; positions are depths (Sartran et al.
                2022), which in a rotary decoder makes relative positions differences of depths

Illegal symbols have probability 0, in training too, so the probabilities of all sentences with all
their trees add up to one. (The papers normalize over all symbols.)
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from pushdown_lm.data.batching import IGNORED
from pushdown_lm.errors import ConfigError
from pushdown_lm.model.bracket_configuration import BracketConfig
from pushdown_lm.model.bracket_structure import (
    BracketStructure,
    bracket_structure,
    symbol_classes,
)
from pushdown_lm.model.cross_entropy import mean_cross_entropy
from pushdown_lm.model.decoder_model import DecoderModel, check_pluggable
from pushdown_lm.model.forbidden import ForbiddenTokens
from pushdown_lm.model.layers import attention_modules
from pushdown_lm.model.output import PushdownOutput, next_tokens


class BracketForCausalLM(DecoderModel):
    """A causal language model of bracketed sentences."""

    config: BracketConfig
    config_class = BracketConfig

    def __init__(self, config: BracketConfig, decoder: PreTrainedModel | None = None) -> None:
        super().__init__(config, decoder)
        self.forbidden = ForbiddenTokens(
            (config.bos_token_id, config.pad_token_id), end=config.eos_token_id
        )
        self._check_decoder()
        self.post_init()

    def _check_decoder(self) -> None:
        check_pluggable(self.decoder, "its attention cannot be masked")
        layers = attention_modules(self.decoder).values()
        if self.config.kind == "tg" and not all(map(_rotates, layers)):
            raise ConfigError(
                f"kind: tg needs a decoder with rotary positions in all layers, whose differences "
                f"are those of depths, got {type(self.decoder).__name__}"
            )
        heads = self.config.decoder.num_attention_heads
        if self.config.kind == "plm-mask" and heads < 2:
            raise ConfigError(f"kind: plm-mask constrains two heads, the decoder has {heads}")

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """The decoder initializes its own weights, and there are no others."""

    def forward(
        self,
        input_ids: Tensor,
        labels: Tensor | None = None,
        attention_mask: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        output_attentions: bool = False,
        **_: Any,
    ) -> PushdownOutput:
        """The next symbols of whole sentences.

        Args:
            input_ids: ``(B, T)`` symbols, BOS first.
            labels: as ``input_ids``, -100 where no loss is wanted. BOS, padding and second copies
                of closers never count.
            attention_mask: ``(B, T)``, zero for padding, which is on the right.
            num_items_in_batch: divide the summed loss by this, not by the number of labels here.
        """
        structure = bracket_structure(input_ids, self.config.nonterminals)
        logits, attentions = self.read(
            input_ids,
            self.positions(structure),
            self.mask(structure),
            output_attentions=output_attentions,
        )
        illegal = ~structure.legal(self.num_closers)[..., self.symbol_classes(logits)]
        output = PushdownOutput(
            logits=logits.masked_fill(illegal, -torch.inf), attentions=attentions
        )
        if labels is not None:
            assert output.logits is not None
            scored = self._scored_labels(labels, structure, attention_mask)
            output.lm_loss = mean_cross_entropy(
                output.logits, next_tokens(scored), num_items_in_batch
            )
            output.loss = output.lm_loss
        return output

    def read(
        self,
        input_ids: Tensor,
        position_ids: Tensor | None,
        mask: Tensor | None,
        output_attentions: bool = False,
        **options: Any,
    ) -> tuple[Tensor, Any]:
        """The decoder's logits, of illegal symbols too, and its attention weights if wanted.

        Args:
            mask: bool, ``(B, 1 or H, T, S)``, true where seen; the earlier positions if left out.
            options: a cache, for symbol by symbol decoding.
        """
        decoded = self.decoder(
            input_ids=input_ids,
            attention_mask=mask,
            position_ids=position_ids,
            return_weights=output_attentions,
            output_attentions=output_attentions,
            **{"use_cache": False, **options},
        )
        return decoded.logits, decoded.attentions if output_attentions else None

    def mask(self, structure: BracketStructure) -> Tensor | None:
        """What each position sees, as for :meth:`read`."""
        if self.config.kind == "tg":
            return structure.tg_mask()[:, None]
        if self.config.kind == "plm-mask":
            return self.head_mask(structure.plm_mask())
        return None

    def head_mask(self, constrained: Tensor) -> Tensor:
        """The mask of all heads ``(B, H, T, S)`` from that of the constrained ones, which come
        first and see between them all that a position may see."""
        heads = self.config.decoder.num_attention_heads
        others = constrained.any(1, keepdim=True)
        return torch.cat([constrained, others.expand(-1, heads - constrained.shape[1], -1, -1)], 1)

    def positions(self, structure: BracketStructure) -> Tensor | None:
        """Depths for TG; the decoder's own positions otherwise."""
        return structure.depth_positions() if self.config.kind == "tg" else None

    def count_targets(
        self, input_ids: Tensor, labels: Tensor, attention_mask: Tensor | None = None, **_: Any
    ) -> Tensor:
        """How many symbols of a batch the loss is a mean over, and 0 attachments: ``(2,)``."""
        structure = bracket_structure(input_ids, self.config.nonterminals)
        scored = self._scored_labels(labels, structure, attention_mask)[:, 1:] != IGNORED
        return torch.stack([scored.sum(), torch.zeros_like(scored.sum())])

    def _scored_labels(
        self, labels: Tensor, structure: BracketStructure, attention_mask: Tensor | None
    ) -> Tensor:
        labels = labels.masked_fill(structure.repeats, IGNORED)
        return (
            labels if attention_mask is None else labels.masked_fill(attention_mask == 0, IGNORED)
        )

    @property
    def num_closers(self) -> int:
        """1, or one for each label."""
        nonterminals = self.config.nonterminals
        return nonterminals.end - nonterminals.first_closer

    def symbol_classes(self, logits: Tensor) -> Tensor:
        """The class of each symbol ``(V,)``, as :func:`legal_classes` has them."""
        assert self.config.eos_token_id is not None
        classes = symbol_classes(
            logits.shape[-1],
            self.config.nonterminals,
            self.config.eos_token_id,
            self.forbidden.ids,
        )
        return classes.to(logits.device)


def _rotates(attention: nn.Module) -> bool:
    """Whether a layer of a decoder has rotary positions."""
    takes = "position_embeddings" in inspect.signature(attention.forward).parameters
    return takes and bool(getattr(attention, "use_rope", True))


AutoModelForCausalLM.register(BracketConfig, BracketForCausalLM)
