"""The configuration of a Pushdown model: any decoder's, and what is added to it."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, TypeAlias, get_args

from huggingface_hub.dataclasses import strict
from transformers import AutoConfig

from pushdown_lm.errors import ConfigError
from pushdown_lm.model.decoder_configuration import DecoderModelConfig, check_choice
from pushdown_lm.trees.oracle import Legality

Implementation: TypeAlias = Literal["reference", "gather", "tiled", "flex"]
"""The implementations of :mod:`pushdown_lm.model.attention`."""
HeadVariant: TypeAlias = Literal["mlp", "appendix", "published", "bilinear", "all_positions"]
"""The variants of :class:`pushdown_lm.model.head.AttachmentHead`."""
HeadInput: TypeAlias = Literal["embedding", "lower_layers"]
"""What the attachment head sees of the next token."""
AttachmentProbabilities: TypeAlias = Literal["normalized", "as_published"]
"""What the softmax of the attachment head runs over."""
DistanceCounts: TypeAlias = Literal["constituents", "open_tokens"]
"""What the distance of a token counts: :class:`pushdown_lm.trees.oracle.ParseState` has both."""


@strict
class PushdownConfig(DecoderModelConfig):
    """A decoder of Transformers with Pushdown Layers and an attachment head.

    ``pushdown_layers=[]`` without a head is the plain language model, the Base-LM of the paper's
    sections 4.2 and 4.3. With a head, attachments are a second task: the Base-LM of its Dyck
    experiment, called multi-task LM elsewhere.
    """

    model_type: ClassVar[str] = "pushdown"
    pushdown_layers: list[int] | None = None
    """Indices of the layers whose attention sees the tape; all of them if left out."""
    attachment_head: str | None = "mlp"
    """A variant of :class:`pushdown_lm.model.head.AttachmentHead`, or None for no head."""
    head_input: str = "embedding"
    """What the head sees of the next token: its ``embedding``, as in the paper, or the token in
    context, by the ``lower_layers``. The layers below the first pushdown layer do not depend on the
    parse, so what they compute at the next token is known before it is attached."""
    head_sees_tape: bool = True
    """Whether the head's keys see depth and distance. A multi-task LM, a head without pushdown
    layers, has no tape in the authors' code; the builders of models choose it so."""
    head_tape_width: int | None = None
    """Width of the tape embedding of a ``published`` head; the attention's head width if left
    out. In the other variants it is the hidden width."""
    attachment_probabilities: str = "normalized"
    """``normalized`` over the legal attachments, so that strings and parses sum to one; or
    ``as_published``, by the authors' code: a softmax over all earlier positions, whose illegal part
    is lost, with no token forbidden and the first word's shift counted too."""
    forbidden_tokens: list[int] | None = None
    """Further ids that can never come next (:mod:`pushdown_lm.model.forbidden`)."""
    legality: str = "constituents"
    """What a token may attach to: the right ends of all ``constituents`` on the stack, or only
    ``open_tokens``, the tokens that no reduce has touched (:mod:`pushdown_lm.trees.oracle`)."""
    num_depths: int = 64
    """Rows of the depth embedding; greater depths share its last row."""
    num_distances: int = 0
    """Rows of the distance embedding; 0, as in the paper, for none."""
    distance_counts: str = "constituents"
    """What the distance from a token to the top of the stack counts: all ``constituents``, or only
    ``open_tokens``, the tokens that no reduce has touched."""
    tape_init_std: float = 0.0
    """Standard deviation of the first weights of the tape embeddings. With 0 a converted model
    computes what it did before; the authors draw them from N(0, 1)."""
    tape_on_values: bool = False
    """Whether the attention's values see the tape as its keys do; in the paper they do not."""
    attention: str = "tiled"
    """An implementation of :mod:`pushdown_lm.model.attention`."""
    attachment_loss_weight: float = 1.0
    """Weight of the attachment loss beside the language-model loss."""
    head_dropout: float = 0.0
    """Dropout inside the attachment head."""

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        layers = range(self.decoder.num_hidden_layers)
        if self.pushdown_layers is None:
            self.pushdown_layers = list(layers)
        self.pushdown_layers = sorted({int(layer) for layer in self.pushdown_layers})
        self._check(layers)

    def _check(self, layers: range) -> None:
        outside = [layer for layer in self.pushdown_layers or [] if layer not in layers]
        if outside:
            raise ConfigError(
                f"pushdown_layers: the decoder has layers 0 to {len(layers) - 1}, got {outside}"
            )
        check_choice("attention", self.attention, get_args(Implementation))
        if self.attention == "flex" and self.tape_on_values:
            raise ConfigError("tape_on_values: flex attention adds to scores alone; use tiled")
        check_choice("attachment_head", self.attachment_head, (None, *get_args(HeadVariant)))
        check_choice("head_input", self.head_input, get_args(HeadInput))
        check_choice(
            "attachment_probabilities",
            self.attachment_probabilities,
            get_args(AttachmentProbabilities),
        )
        if self.head_input == "lower_layers" and not (self.pushdown_layers or [0])[0]:
            raise ConfigError(
                "head_input: lower_layers are those below the first pushdown layer, and there are "
                f"none with pushdown_layers {self.pushdown_layers}"
            )
        check_choice("distance_counts", self.distance_counts, get_args(DistanceCounts))
        check_choice("legality", self.legality, get_args(Legality))
        if (
            self.num_depths < 0
            or self.num_distances < 0
            or not self.num_depths + self.num_distances
        ):
            raise ConfigError(
                "num_depths, num_distances: expected at least one row in one of them, got "
                f"{self.num_depths} and {self.num_distances}"
            )
        for name in ("attachment_loss_weight", "tape_init_std"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name}: expected 0 or more, got {getattr(self, name)}")
        if self.uses_tape and self.eos_token_id is None:
            raise ConfigError(
                "eos_token_id: sentences end with an EOS token, but neither the configuration nor "
                "the decoder's names one"
            )

    @property
    def uses_tape(self) -> bool:
        """Whether anything in the model looks at the parse."""
        return bool(self.pushdown_layers) or self.attachment_head is not None

    @property
    def decoder_head_width(self) -> int:
        """The width of one attention head of the decoder."""
        own = getattr(self.decoder, "head_dim", None)
        return own or self.decoder.hidden_size // self.decoder.num_attention_heads

    @property
    def as_published(self) -> bool:
        """Whether attachment probabilities are those of the authors' code."""
        return self.attachment_probabilities == "as_published"

    @property
    def num_lower_layers(self) -> int:
        """How many layers lie below the first pushdown layer; none if there is no such layer."""
        return self.pushdown_layers[0] if self.pushdown_layers else 0

    @property
    def shared_boundary(self) -> bool:
        """Whether one token is both EOS and the ROOT of the next sentence."""
        return self.bos_token_id == self.eos_token_id


AutoConfig.register(PushdownConfig.model_type, PushdownConfig)
