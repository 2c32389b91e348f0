"""What a model is to be, as the `model` section of a recipe says it; plain values, no torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from pushdown_lm.trees.oracle import Legality

MAX_INTEGER = 2**31 - 1
Positive = Annotated[int, Field(gt=0, le=MAX_INTEGER)]


class Section(BaseModel):
    """Keys and values of known names and types: an unknown or ill-typed key is an error."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class DecoderSettings(Section):
    """The transformer itself: a model type of Transformers, and any field of its configuration."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True, allow_inf_nan=False)

    type: str = "gpt2"
    """As in ``AutoConfig.for_model``: gpt2, llama, qwen3, ..."""
    vocab_size: Positive | None = None
    """The tokenizer's if left out; any other number is an error when the model is built."""


class ModelSettings(Section):
    """The model: a new decoder, or a pretrained one, and what is added to it."""

    kind: Literal["pushdown", "plm", "plm-mask", "tg"] = "pushdown"
    """A Pushdown model, or a model that reads brackets
    (:mod:`pushdown_lm.model.bracket_modeling`), to which the keys below about layers, tape and
    attachment head mean nothing."""
    decoder: DecoderSettings = DecoderSettings()
    """A decoder that starts from random weights."""
    pretrained: str | None = None
    """Instead of it, a pretrained language model: a folder, or a name of the Hub. A Pushdown model
    (`pushdown convert`, or the `model` of a run) is trained further as it is: what the keys below
    say about its layers and its head must agree with it, or be left out."""
    pushdown_layers: (
        Annotated[str, Field(pattern=r"^(all|none|(first|last):[1-9][0-9]*)$")]
        | list[Annotated[int, Field(ge=0)]]
    ) = "all"
    """all, none, first:N, last:N, or a list of layer indices. With none the model is a Base-LM:
    the plain language model, or with an attachment head the multi-task LM."""
    attachment_head: Literal["mlp", "appendix", "published", "bilinear", "all_positions"] | None = (
        "mlp"
    )
    """The variant of the attachment head; null for no head."""
    head_input: Literal["embedding", "lower_layers"] = "embedding"
    """What the head sees of the next token: its embedding, or what the layers below the first
    pushdown layer compute at it."""
    head_sees_tape: bool | None = None
    """Whether the head sees depth and distance; if left out, where there are pushdown layers."""
    head_tape_width: Positive | None = None
    """Width of the tape embedding of a published head; the attention's head width if left out."""
    attachment_probabilities: Literal["normalized", "as_published"] = "normalized"
    """Over the legal attachments, or over all earlier positions, legal or not."""
    legality: Legality = "constituents"
    """What a token may attach to: all constituents on the stack, or open tokens only."""
    num_depths: Annotated[int, Field(ge=0, le=MAX_INTEGER)] = 64
    """Rows of the depth embedding; deeper tokens share the last."""
    num_distances: Annotated[int, Field(ge=0, le=MAX_INTEGER)] = 0
    """Rows of the distance embedding; 0 for none."""
    distance_counts: Literal["constituents", "open_tokens"] = "constituents"
    """What the distance from a token to the top of the stack counts."""
    tape_init_std: Annotated[float, Field(ge=0)] = 0.0
    """Standard deviation of the first weights of the tape embeddings; 0 to start without them, as a
    pretrained model must. From scratch it matters early (docs/results.md, ablations)."""
    tape_on_values: bool = False
    """Whether the attention's values see the tape as its keys do; in the paper they do not."""
    attention: str = "tiled"
    """An implementation of :mod:`pushdown_lm.model.attention`."""
    attachment_loss_weight: Annotated[float, Field(ge=0)] = 1.0
    """Weight of the attachment loss beside the language-model loss."""

    @model_validator(mode="after")
    def _one_decoder(self) -> ModelSettings:
        if self.pretrained is not None and "decoder" in self.model_fields_set:
            raise ValueError("decoder: a pretrained model brings its own, so leave one of them out")
        return self
