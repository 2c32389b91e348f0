"""A decoder with sinusoidal relative positions: the transformer of the authors' code.

Shapes: B batch, T queries, S keys (T of them new), H heads, p head width, d = H p hidden width.

    x_0 = sqrt(d) Emb[token]
    x   = LayerNorm(x + Attention(x))                 post-norm, no biases in attention
    x   = LayerNorm(x + W_2 relu(W_1 x + b_1) + b_2)
    logits = x Emb^T + b

    score(i, j) = (q_i . k_j + q_i . P R[j - i]) / sqrt(p)

R[r] is the sinusoid of the relative position r (:func:`sinusoids`), P a matrix of the layer whose
output is cut into heads. The positional term is Transformers' ``position_bias``; everything else is
the attention interface's, so that Pushdown Layers, caches and search find a decoder like any other.

Nothing depends on where a sequence starts: padding on the left changes nothing, there is no longest
input, and ``position_ids`` are accepted but not needed.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, DynamicCache, GenerationMixin, PreTrainedModel
from transformers import initialization as init
from transformers.cache_utils import Cache
from transformers.masking_utils import create_causal_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, slice_logits_to_keep
from transformers.utils.generic import can_return_tuple, merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from pushdown_lm.model.relative_configuration import RelativeConfig
from pushdown_lm.model.sinusoids import sinusoids


def eager_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    position_bias: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """Attention in plain operations, what ``attn_implementation="eager"`` means."""
    scores = query @ key.transpose(-1, -2) * scaling
    for term in (position_bias, attention_mask):
        scores = scores if term is None else scores + term
    weights = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32))
    weights = nn.functional.dropout(weights.to(query.dtype), dropout, module.training)
    return (weights @ value).transpose(1, 2), weights


class RelativeAttention(nn.Module):
    """Self-attention whose scores depend on relative positions."""

    def __init__(self, config: RelativeConfig, layer_idx: int) -> None:
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.is_causal = True
        self.num_heads = config.num_attention_heads
        self.head_dim = config.hidden_size // config.num_attention_heads
        self.scaling = self.head_dim**-0.5
        self.q_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.r_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.o_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        relative: Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """The output ``(B, T, d)`` and, where they are given, the attention weights.

        Args:
            relative: ``(S, d)``, the sinusoids of the relative positions ``1 - S .. 0``.
        """
        shape = hidden_states.shape[:-1]
        projections = (self.q_proj, self.k_proj, self.v_proj)
        query, key, value = (
            project(hidden_states).view(*shape, self.num_heads, self.head_dim).transpose(1, 2)
            for project in projections
        )
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, self.layer_idx)
        assert relative is not None
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(
            str(self.config._attn_implementation), eager_attention
        )
        output, weights = attend(
            self,
            query,
            key,
            value,
            attention_mask,
            scaling=self.scaling,
            dropout=self.config.attention_dropout if self.training else 0.0,
            position_bias=self.position_bias(query, relative),
            **kwargs,
        )
        return self.o_proj(output.reshape(*shape, -1)), weights

    def position_bias(self, query: Tensor, relative: Tensor) -> Tensor:
        """``q_i . P R[j - i]``, scaled: ``(B, H, T, S)``. Entries with j > i have no meaning.

        The product q P R^T is associative: for few queries, as in decoding, q P comes first.
        """
        batch, heads, length, width = query.shape
        rows = query.transpose(0, 1).reshape(heads, batch * length, width) * self.scaling
        plain = type(self.r_proj) is nn.Linear  # without an adapter around it
        if plain and batch * length < len(relative):
            rows = rows @ self.r_proj.weight.view(heads, width, -1)  # (H, BT, d)
            scores = rows @ relative.T  # (H, BT, S)
        else:
            keys = self.r_proj(relative).view(-1, heads, width).permute(1, 2, 0)  # (H, p, S)
            scores = rows @ keys
        scores = scores.view(heads, batch, length, -1).transpose(0, 1)
        return _by_key(scores) if length > 1 else scores


def _by_key(scores: Tensor) -> Tensor:
    """Scores ``(B, H, T, S)`` by relative position, ``1 - S .. 0``, to scores by key.

    Row t stands at key S - T + t, so it moves left by T - 1 - t. With a column before the first,
    and the rows cut anew at a width that is one less, each row moves by one more than the next.
    """
    batch, heads, queries, keys = scores.shape
    padded = nn.functional.pad(scores, (1, 0)).view(batch, heads, keys + 1, queries)
    return padded[:, :, 1:].reshape(batch, heads, queries, keys)


class RelativeLayer(GradientCheckpointingLayer):
    """Attention and feed-forward layer, each followed by its norm."""

    def __init__(self, config: RelativeConfig, layer_idx: int) -> None:
        super().__init__()
        size, inner = config.hidden_size, config.intermediate_size
        assert inner is not None
        self.self_attn = RelativeAttention(config, layer_idx)
        self.attention_norm = nn.LayerNorm(size, eps=config.layer_norm_eps)
        self.fc_in = nn.Linear(size, inner)
        self.fc_out = nn.Linear(inner, size)
        self.output_norm = nn.LayerNorm(size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout)

    def forward(self, hidden_states: Tensor, **kwargs: Any) -> Tensor:
        attended, _ = self.self_attn(hidden_states, **kwargs)
        hidden_states = self.attention_norm(hidden_states + self.dropout(attended))
        inner = self.dropout(self.fc_in(hidden_states).relu())
        output: Tensor = self.output_norm(hidden_states + self.dropout(self.fc_out(inner)))
        return output


class RelativePreTrainedModel(PreTrainedModel):
    """What both classes below tell Transformers."""

    config: RelativeConfig
    config_class = RelativeConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["RelativeLayer"]  # noqa: RUF012
    _skip_keys_device_placement = ["past_key_values"]  # noqa: RUF012
    _supports_sdpa = True
    _supports_attention_backend = True
    _can_record_outputs = {  # noqa: RUF012
        "hidden_states": RelativeLayer,
        "attentions": RelativeAttention,
    }

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Xavier's, the embeddings too, as in the authors' code."""
        if isinstance(module, nn.Linear | nn.Embedding):
            init.xavier_uniform_(module.weight)
        elif isinstance(module, nn.LayerNorm):
            init.ones_(module.weight)
        if getattr(module, "bias", None) is not None:
            init.zeros_(module.bias)  # type: ignore[arg-type]


class RelativeModel(RelativePreTrainedModel):
    """Embeddings and layers."""

    def __init__(self, config: RelativeConfig) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.dropout = nn.Dropout(config.hidden_dropout)
        self.layers = nn.ModuleList(
            RelativeLayer(config, index) for index in range(config.num_hidden_layers)
        )
        self.gradient_checkpointing = False
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        """The last hidden states; embeddings given in place of tokens are scaled likewise."""
        if inputs_embeds is None:
            inputs_embeds = self.embed_tokens(input_ids)
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)
        past = 0 if past_key_values is None else past_key_values.get_seq_length()
        mask = create_causal_mask(
            config=self.config,
            inputs_embeds=inputs_embeds,
            attention_mask=attention_mask,
            past_key_values=past_key_values,
            position_ids=position_ids,
        )
        width, total = self.config.hidden_size, past + inputs_embeds.shape[1]
        positions = torch.arange(1 - total, 1, device=inputs_embeds.device)
        relative = sinusoids(positions, width, inputs_embeds.dtype)
        hidden_states = self.dropout(inputs_embeds * math.sqrt(width))
        for layer in self.layers:
            hidden_states = layer(
                hidden_states,
                attention_mask=mask,
                past_key_values=past_key_values,
                relative=relative,
                **kwargs,
            )
        return BaseModelOutputWithPast(
            last_hidden_state=hidden_states, past_key_values=past_key_values
        )


class RelativeForCausalLM(RelativePreTrainedModel, GenerationMixin):
    """The decoder as a language model, its output layer tied to the embeddings, with a bias."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: RelativeConfig) -> None:
        super().__init__(config)
        self.model = RelativeModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        labels: Tensor | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Logits ``(B, T, V)`` of the next tokens, and with labels the loss."""
        outputs = self.model(input_ids=input_ids, **kwargs)
        logits = self.lm_head(slice_logits_to_keep(outputs.last_hidden_state, logits_to_keep))
        loss = None
        if labels is not None:
            loss = self.loss_function(logits, labels, vocab_size=self.config.vocab_size, **kwargs)
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


AutoModelForCausalLM.register(RelativeConfig, RelativeForCausalLM)
