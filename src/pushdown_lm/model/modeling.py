"""Pushdown language models: any decoder of Transformers with a stack tape and an attachment head.

Shapes: B batch, T positions, V vocabulary, C candidate slots, d hidden width, F tape features.

The transformer itself is Transformers' own. A Pushdown model adds to it a
:class:`~pushdown_lm.model.attention.TapeEmbedding` inside some attention layers and one
:class:`~pushdown_lm.model.head.AttachmentHead`. Training is parallel:
:meth:`PushdownForCausalLM.forward` takes the attachments and builds tape and candidates itself.
Decoding goes token by token with a :class:`PushdownCache`, through
:meth:`~PushdownForCausalLM.attachment_scores` (where may this token attach?) and
:meth:`~PushdownForCausalLM.advance` (read it, attached there).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    GenerationMixin,
    PreTrainedModel,
)
from transformers import initialization as init

from pushdown_lm.data.batching import IGNORED
from pushdown_lm.errors import ConfigError
from pushdown_lm.model.attention import TapeEmbedding, tape_features
from pushdown_lm.model.cache import PushdownCache
from pushdown_lm.model.configuration import Implementation, PushdownConfig
from pushdown_lm.model.decoder_model import DecoderModel, check_pluggable
from pushdown_lm.model.forbidden import ForbiddenTokens
from pushdown_lm.model.head import AttachmentHead
from pushdown_lm.model.layers import attention_modules, lower_output, tap_query
from pushdown_lm.model.output import PushdownOutput
from pushdown_lm.model.padding import first_of_row, pads_right
from pushdown_lm.trees.oracle import Candidates, ParseState, Stack, candidates, parse_state


@dataclass(frozen=True, slots=True)
class _Structure:
    """What the parse of a batch means to the model."""

    features: Tensor
    """Rows of the tape embeddings. ``(F, B, T, T)``"""
    candidates: Candidates


class PushdownForCausalLM(DecoderModel, GenerationMixin):
    """A causal language model with Pushdown Layers and an attachment head."""

    config: PushdownConfig
    config_class = PushdownConfig

    def __init__(self, config: PushdownConfig, decoder: PreTrainedModel | None = None) -> None:
        super().__init__(config, decoder)
        never_next = (config.bos_token_id, config.pad_token_id, *(config.forbidden_tokens or ()))
        banned = () if config.as_published else never_next
        self.forbidden = ForbiddenTokens(banned, end=config.eos_token_id)
        self.decoder.register_forward_hook(self.forbidden)
        self._add_tape_embeddings()
        self.head: AttachmentHead | None = None
        if config.attachment_head is not None:
            embeddings: Any = self.get_input_embeddings()
            width, in_context = config.decoder.hidden_size, config.head_input == "lower_layers"
            self.head = AttachmentHead(
                hidden_size=width,
                embedding_size=width if in_context else embeddings.embedding_dim,
                num_depths=config.num_depths if config.head_sees_tape else 0,
                num_distances=config.num_distances if config.head_sees_tape else 0,
                variant=config.attachment_head,  # type: ignore[arg-type]
                dropout=config.head_dropout,
                normalize_next=in_context,
                tape_width=config.head_tape_width or config.decoder_head_width,
            )
        self.post_init()

    # -------------------------------------------------------------- construction

    @classmethod
    def from_pretrained_lm(
        cls,
        name_or_folder: str | Path,
        *,
        pushdown_layers: Iterable[int] | None = None,
        load_options: dict[str, Any] | None = None,
        **options: Any,
    ) -> PushdownForCausalLM:
        """Put Pushdown Layers into a pretrained language model.

        Until it is trained, the model computes what the original does. GGUF files, whose weights
        must be unpacked first, go through :func:`pushdown_lm.model.convert.convert`.

        Args:
            name_or_folder: as for ``AutoModelForCausalLM.from_pretrained``.
            pushdown_layers: indices of layers; all if left out.
            load_options: further arguments of ``from_pretrained``.
            options: further fields of :class:`PushdownConfig`, such as
                ``head_input="lower_layers"``: the head sees the next token in context.
        """
        decoder = AutoModelForCausalLM.from_pretrained(
            str(name_or_folder), **{"trust_remote_code": False, **(load_options or {})}
        )
        return cls.from_lm(decoder, pushdown_layers=pushdown_layers, **options)

    @classmethod
    def from_lm(
        cls,
        decoder: PreTrainedModel,
        *,
        pushdown_layers: Iterable[int] | None = None,
        **options: Any,
    ) -> PushdownForCausalLM:
        """The same for a model in memory, which becomes part of the Pushdown model."""
        check_pluggable(decoder, "Pushdown Layers cannot be put into it")
        layers = None if pushdown_layers is None else list(pushdown_layers)
        config = PushdownConfig(
            decoder_config=decoder.config,
            pushdown_layers=layers,
            dtype=decoder.dtype,
            **{"head_sees_tape": layers != [], **options},
        )
        model = cls(config, decoder)
        if model.head is not None:
            model.head.to(device=decoder.device, dtype=decoder.dtype)
        return model.eval()

    def _add_tape_embeddings(self) -> None:
        config = self.config
        layers = attention_modules(self.decoder)
        for layer in config.pushdown_layers or []:
            if layer not in layers:
                raise ConfigError(
                    f"pushdown_layers: {type(self.decoder).__name__} has no self-attention in "
                    f"layer {layer}"
                )
            module = layers[layer]
            module.tape_embedding = TapeEmbedding(
                head_dim=getattr(module, "head_dim", None) or module.head_size,
                num_depths=config.num_depths,
                num_distances=config.num_distances,
                implementation=config.attention,  # type: ignore[arg-type]
                on_values=config.tape_on_values,
            )
            if config.tape_init_std:
                self._init_weights(module.tape_embedding)
            tap_query(module)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, TapeEmbedding):
            for weight in module.parameters():
                init.normal_(weight, std=self.config.tape_init_std)
        elif isinstance(module, AttachmentHead):
            if module.tape_embedding is not None:
                init.normal_(module.tape_embedding, std=self.config.tape_init_std)
            if module.variant == "published":  # unscaled scores must not start large
                for part in module.modules():
                    if isinstance(part, nn.Linear):
                        init.normal_(part.weight, std=(3 * part.in_features) ** -0.5)
        elif isinstance(module, nn.Linear):
            init.normal_(module.weight, std=module.in_features**-0.5)
            if module.bias is not None:
                init.zeros_(module.bias)

    def set_attention(self, implementation: Implementation) -> None:
        """Change the implementation of all pushdown layers."""
        self.config.attention = implementation
        for module in self.modules():
            if isinstance(module, TapeEmbedding):
                module.implementation = implementation

    # -------------------------------------------------------------- the parallel pass

    def forward(
        self,
        input_ids: Tensor,
        attachments: Tensor | None = None,
        labels: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: PushdownCache | None = None,
        use_cache: bool | None = None,
        output_attentions: bool = False,
        output_hidden_states: bool = False,
        num_items_in_batch: Tensor | int | None = None,
        num_attachments_in_batch: Tensor | int | None = None,
        sample_attachments: bool = False,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> PushdownOutput:
        """Next tokens and attachments of whole sentences, or of the next tokens after a cache.

        Args:
            input_ids: ``(B, T)``; the first token of every row is ROOT.
            attachments: ``(B, T)``, as :mod:`~pushdown_lm.trees.oracle` defines them; padding
                attaches to itself. Left out, the model chooses them as it reads, token by token.
            labels: as ``input_ids``, -100 where no loss is wanted. ROOT and padding never count.
            attention_mask: ``(B, T)``, zero for padding.
            num_items_in_batch: divide the summed language-model loss by this, not by the number of
                labels here (gradient accumulation, several processes);
                ``num_attachments_in_batch`` likewise.
            sample_attachments: when the model chooses attachments, sample them.
        """
        if self.config.uses_tape and (attachments is None or past_key_values is not None):
            if labels is not None:
                raise ValueError("a loss needs attachments and the whole sentence in one call")
            output = self._read(
                input_ids,
                attachments,
                attention_mask,
                position_ids,
                past_key_values,
                sample_attachments,
                output_attentions=output_attentions,
                **kwargs,
            )
            if use_cache is False:
                return PushdownOutput(logits=output.logits, attentions=output.attentions)
            return output

        structure: _Structure | None = None
        if self.config.uses_tape:
            assert attachments is not None
            structure = self._structure(input_ids, attachments, attention_mask)
        visible = None if pads_right(attention_mask) else attention_mask
        decoded = self.decoder(
            input_ids=input_ids,
            attention_mask=visible,
            position_ids=position_ids,
            past_key_values=past_key_values,
            use_cache=bool(use_cache) and not self.config.uses_tape,
            tape=structure.features if structure and self.config.pushdown_layers else None,
            return_weights=output_attentions,
            output_attentions=output_attentions,
            output_hidden_states=True,
            logits_to_keep=logits_to_keep,
            **kwargs,
        )
        output = PushdownOutput(
            logits=decoded.logits,
            past_key_values=decoded.past_key_values,
            hidden_states=decoded.hidden_states if output_hidden_states else None,
            attentions=decoded.attentions if output_attentions else None,
        )
        if self.head is not None and structure is not None:
            self._attach(output, input_ids, decoded.hidden_states, structure)
        if labels is not None:
            labels = self._scored_labels(labels, input_ids, attention_mask)
            output.add_losses(
                labels,
                self.config.attachment_loss_weight,
                num_tokens=num_items_in_batch,
                num_attachments=num_attachments_in_batch,
            )
        return output

    def _structure(
        self, input_ids: Tensor, attachments: Tensor, attention_mask: Tensor | None
    ) -> _Structure:
        config = self.config
        roots, words = self._roots_and_words(input_ids, attention_mask)
        position = torch.arange(input_ids.shape[1], device=input_ids.device)
        separators = roots & (attachments != position) if config.shared_boundary else None
        state = parse_state(attachments, separators)
        features = self._features(state.tape, state)
        options = candidates(
            attachments,
            state,
            roots,
            words,
            legality=config.legality,  # type: ignore[arg-type]
            every_position=config.as_published,
        )
        return _Structure(features, options)

    def _roots_and_words(
        self, input_ids: Tensor, attention_mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Which tokens begin a sentence, and which the head decides: neither ROOT, EOS, padding."""
        roots = self._is_root(input_ids)
        roots[:, 0] = True
        words = ~(roots | self._is_end(input_ids))
        if attention_mask is not None:
            words &= attention_mask.bool()
        return roots, words

    def count_targets(
        self,
        input_ids: Tensor,
        labels: Tensor,
        attention_mask: Tensor | None = None,
        attachments: Tensor | None = None,
        **_: Any,
    ) -> Tensor:
        """How many tokens and how many attachments of a batch the losses are means over: ``(2,)``.

        The head decides about every word but the first of a sentence, which can only shift. Where
        only open tokens are legal, it decides where one is open, which the parse tells.
        """
        scored = self._scored_labels(labels, input_ids, attention_mask)[:, 1:] != IGNORED
        if self.config.as_published:
            decided = self._roots_and_words(input_ids, attention_mask)[1][:, 1:]
        elif self.config.legality == "open_tokens" and attachments is not None:
            structure = self._structure(input_ids, attachments, attention_mask)
            decided = structure.candidates.decided
        else:
            roots, words = self._roots_and_words(input_ids, attention_mask)
            decided = words[:, 1:] & ~roots[:, :-1]
        return torch.stack([scored.sum(), decided.sum()])

    def _is_root(self, tokens: Tensor) -> Tensor:
        return torch.eq(tokens, self.config.bos_token_id)  # type: ignore[arg-type]

    def _is_end(self, tokens: Tensor) -> Tensor:
        return torch.eq(tokens, self.config.eos_token_id)  # type: ignore[arg-type]

    def _features(self, depth: Tensor, parse: ParseState | Stack) -> Tensor:
        config, distance = self.config, None
        if config.num_distances:
            counts_open = config.distance_counts == "open_tokens"
            distance = parse.open_distance if counts_open else parse.distance
        return tape_features(depth, distance, config.num_depths, config.num_distances)

    def _attach(
        self,
        output: PushdownOutput,
        input_ids: Tensor,
        hidden_states: tuple[Tensor, ...],
        structure: _Structure,
    ) -> None:
        assert self.head is not None
        options = structure.candidates
        hidden = hidden_states[-1]
        keys = self.head.keys(hidden)
        if self.config.head_input == "lower_layers":
            next_embedding = hidden_states[self.config.num_lower_layers].roll(-1, -2)
        else:
            next_embedding = self.get_input_embeddings()(input_ids.roll(-1, -1))
        target = options.target
        if self.head.variant == "all_positions":
            output.attachment_logits = self.head.score_all_positions(
                hidden, next_embedding, keys, structure.features
            )
            position = options.index.gather(-1, target[..., None])[..., 0]
            target = torch.where(target == 0, hidden.shape[1], position)
        else:
            following = torch.arange(1, hidden.shape[1] + 1, device=hidden.device)[:, None]
            output.attachment_logits = self.head(
                hidden,
                next_embedding,
                keys,
                options.index,
                options.scored,
                structure.features,
                following - options.index,
            )
        output.attachment_targets = target.masked_fill(~options.decided, IGNORED)

    def _scored_labels(
        self, labels: Tensor, input_ids: Tensor, attention_mask: Tensor | None
    ) -> Tensor:
        """Labels without padding, and without ROOT but where it is the EOS before it as well."""
        labels = labels.masked_fill(self.forbidden.among(input_ids), IGNORED)
        if attention_mask is not None:
            labels = labels.masked_fill(attention_mask == 0, IGNORED)
            begins = attention_mask[:, :-1] == 0  # after padding on the left
            labels = torch.cat([labels[:, :1], labels[:, 1:].masked_fill(begins, IGNORED)], 1)
        return labels

    # -------------------------------------------------------------- token by token

    def attachment_scores(
        self, cache: PushdownCache, tokens: Tensor, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Log-probabilities of the legal attachments of the next tokens ``(B,)``.

        Args:
            kwargs: what the decoder needs to read the tokens, such as a mask.

        Returns:
            Log-probabilities by candidate slot, -inf where illegal, and the positions that the
            slots stand for, both ``(B, C)``.
        """
        if self.head is None:
            raise ValueError("the model has no attachment head, so it cannot choose attachments")
        if cache.stack is None or cache.last_hidden is None or cache.head_keys is None:
            raise ValueError("nothing has been read yet: advance over ROOT first")
        keys, row = cache.head_keys, torch.arange(len(tokens), device=tokens.device)[:, None]
        following = self._next_in_context(cache, tokens, **kwargs)[:, 0]
        scores, index, _ = self.score_candidates(
            cache.stack, cache.last_hidden, following, lambda position: keys[row, position]
        )
        return scores, index

    def score_candidates(
        self,
        stack: Stack,
        hidden: Tensor,
        following: Tensor,
        keys: Callable[[Tensor], Tensor],
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities of the next tokens' candidates, -inf where illegal, the positions of
        the candidates, and which are legal: three tensors ``(B, C)``.

        Args:
            hidden: ``(B, d)``, the last hidden states.
            following: ``(B, e)``, what the head sees of the next tokens.
            keys: gives the head's keys ``(B, C, d)`` at positions ``(B, C)``.
        """
        assert self.head is not None
        index, legal = stack.candidates(
            legality=self.config.legality,  # type: ignore[arg-type]
            every_position=self.config.as_published,
        )
        position = index.clamp(max=len(stack) - 1)
        tape = self.tape_row(stack)  # (F, B, 1, L)
        scores = self.head(
            hidden[:, None],
            following[:, None],
            keys(position),
            torch.arange(index.shape[1], device=index.device).expand_as(index)[:, None],
            (legal | self.config.as_published)[:, None],
            tape.gather(-1, position[:, None].expand(len(tape), -1, -1, -1)),
            (len(stack) - index)[:, None],
        )
        log_probs: Tensor = scores[:, 0].log_softmax(-1)
        return log_probs.masked_fill(~legal, -torch.inf), index, legal

    def _next_in_context(self, cache: PushdownCache, tokens: Tensor, **kwargs: Any) -> Tensor:
        """What the head sees of the next tokens ``(B,)``, which are not read: ``(B, 1, e)``."""
        if self.config.head_input == "embedding":
            return self.get_input_embeddings()(tokens)[:, None]
        count = self.config.num_lower_layers
        output = lower_output(
            self.decoder,
            count,
            input_ids=tokens[:, None],
            past_key_values=cache,
            use_cache=True,
            **kwargs,
        )
        layers: list[Any] = cache.layers[:count]
        for layer in layers:
            layer.crop(-1)
        return output

    def advance(
        self, cache: PushdownCache, tokens: Tensor, attachments: Tensor, **kwargs: Any
    ) -> Tensor:
        """Read the tokens ``(B,)`` with their attachments ``(B,)``; logits ``(B, V)`` of the next.

        ROOT, EOS and separators take their places by their ids, whatever their attachment is.
        """
        self._push(cache, tokens, attachments)
        return self._decode(cache, tokens[:, None], **kwargs).logits[:, -1]

    def tape_row(self, stack: Stack) -> Tensor:
        """The tape features of the newest token: ``(F, B, 1, L)``."""
        return self._features(stack.depth, stack)[:, :, None]

    def _push(
        self,
        cache: PushdownCache,
        tokens: Tensor,
        attachments: Tensor,
        first: Tensor | None = None,
    ) -> None:
        """Step the stack over one token a row; ``first`` marks rows whose sentence begins here."""
        if cache.stack is None:
            cache.stack = Stack.start(tokens.shape[0], tokens.device)
            return
        stack, config = cache.stack, self.config
        begins = self._is_root(tokens)
        attachments = torch.where(self._is_end(tokens), stack.root, attachments)
        if not config.shared_boundary:
            attachments = torch.where(begins, len(stack), attachments)
        if first is not None:
            attachments = torch.where(first, len(stack), attachments)
            begins = begins | first
        cache.stack = stack.step(attachments, separator=begins)

    def _decode(
        self, cache: PushdownCache, tokens: Tensor, tape: Tensor | None = None, **kwargs: Any
    ) -> Any:
        """Run the decoder over new tokens ``(B, t)`` whose stack steps are done."""
        if tape is None:
            assert cache.stack is not None
            tape = self.tape_row(cache.stack)
        decoded = self.decoder(
            input_ids=tokens,
            past_key_values=cache,
            use_cache=True,
            tape=tape if self.config.pushdown_layers else None,
            output_hidden_states=True,
            **kwargs,
        )
        hidden = decoded.hidden_states[-1]
        cache.last_hidden = hidden[:, -1]
        if self.head is not None:
            keys = self.head.keys(hidden)
            earlier = cache.head_keys
            cache.head_keys = keys if earlier is None else torch.cat([earlier, keys], 1)
        return decoded

    def _read(
        self,
        input_ids: Tensor,
        attachments: Tensor | None,
        attention_mask: Tensor | None,
        position_ids: Tensor | None,
        cache: PushdownCache | None,
        sample: bool,
        output_attentions: bool = False,
        **kwargs: Any,
    ) -> PushdownOutput:
        """Read a chunk after the cache, choosing attachments where none are given."""
        cache = PushdownCache(config=self.config.decoder) if cache is None else cache
        past = cache.get_seq_length()
        size, total = input_ids.shape[1], past + input_ids.shape[1]
        first = first_of_row(attention_mask, past, total)
        if attachments is not None:
            rows = []
            for column in range(size):
                beginning = None if first is None else first[:, column]
                self._push(cache, input_ids[:, column], attachments[:, column], beginning)
                assert cache.stack is not None
                row = self.tape_row(cache.stack)
                rows.append(nn.functional.pad(row, (0, total - row.shape[-1])))
            decoded = self._decode(
                cache,
                input_ids,
                tape=torch.cat(rows, 2),
                attention_mask=attention_mask,
                position_ids=position_ids,
                return_weights=output_attentions,
                output_attentions=output_attentions,
                **kwargs,
            )
            return PushdownOutput(
                logits=decoded.logits, past_key_values=cache, attentions=decoded.attentions
            )

        logits = []
        for column in range(size):
            tokens = input_ids[:, column]
            place = {
                "attention_mask": None
                if attention_mask is None
                else attention_mask[:, : past + column + 1],
                "position_ids": None if position_ids is None else position_ids[:, column, None],
            }
            choice = tokens.new_full(tokens.shape, past + column)
            if cache.stack is not None:
                scores, index = self.attachment_scores(cache, tokens, **place)
                slot = torch.multinomial(scores.exp(), 1) if sample else scores.argmax(-1)[:, None]
                choice = index.gather(-1, slot)[:, 0]
            beginning = None if first is None else first[:, column]
            self._push(cache, tokens, choice, beginning)
            decoded = self._decode(cache, tokens[:, None], **place, **kwargs)
            logits.append(decoded.logits)
        return PushdownOutput(logits=torch.cat(logits, 1), past_key_values=cache)

    def prepare_inputs_for_generation(self, input_ids: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        cache = kwargs.get("past_key_values")
        if self.config.uses_tape and not isinstance(cache, PushdownCache):
            cache = PushdownCache(config=self.config.decoder)
            kwargs["past_key_values"] = cache
        return super().prepare_inputs_for_generation(input_ids, **kwargs)  # type: ignore[misc]


AutoModelForCausalLM.register(PushdownConfig, PushdownForCausalLM)
