"""Pushdown models in the LM evaluation harness (`pip install pushdown-lm[lm-eval]`).

Importing this module registers the model ``pushdown``. The harness's own command does not look
for models outside its package, so this module runs it:

    python -m pushdown_lm.integrations.lm_eval --model pushdown \\
        --model_args pretrained=runs/demo/seed0/demo/model,beam=300 --tasks blimp_wh_island

As everywhere in the harness, EOS is not scored unless ``score_eos=True``. A text that follows an
empty context starts a sentence, so the space that the harness puts before it is left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model

from pushdown_lm.errors import PushdownError
from pushdown_lm.search.defaults import DEFAULT_BEAM, DEFAULT_THRESHOLD
from pushdown_lm.search.loading import MODEL_TYPES, fastest_scorer, load_parser, model_type
from pushdown_lm.search.packaged import find_model
from pushdown_lm.search.scorer import Token, score_distinct

DEFAULT_NEW_TOKENS = 64
SAMPLING_OPTIONS = ("do_sample", "temperature", "top_k", "top_p")


@register_model("pushdown")
class PushdownHarnessLM(LM):
    """The requests of the harness, answered by a model of this library.

    Args:
        pretrained: the model's folder.
        beam, threshold, allow_unknown: as for :func:`pushdown_lm.search.loading.load_scorer`.
        score_eos: whether the end of a text is part of it, as in the paper's evaluations.
        batch_size: sentences that are sorted by length and searched together.
        device: where the model runs; the CPU, whatever it says, where there is nothing else.
    """

    def __init__(
        self,
        pretrained: str,
        *,
        beam: int = DEFAULT_BEAM,
        threshold: float | None = DEFAULT_THRESHOLD,
        allow_unknown: bool = False,
        score_eos: bool = False,
        batch_size: int | str | None = None,
        device: str | None = None,
        **unknown: Any,
    ) -> None:
        super().__init__()
        unknown = {name: value for name, value in unknown.items() if name != "max_batch_size"}
        if unknown:
            raise PushdownError(f"expected other model_args than {', '.join(unknown)}")
        if model_type(find_model(pretrained)) not in MODEL_TYPES:
            raise PushdownError(
                f"{pretrained}: expected a model of this library; others run with --model hf"
            )
        self.parser = load_parser(
            pretrained, beam=beam, threshold=threshold, allow_unknown=allow_unknown
        )
        self.parser.model.to(device if torch.accelerator.is_available() else "cpu")
        self.scorer = fastest_scorer(self.parser)
        self.score_eos = score_eos
        self.chunk_size = int(str(batch_size)) if str(batch_size).isdecimal() else 256

    @property
    def tokenizer_name(self) -> str:
        return self.scorer.name.replace("/", "__")

    def get_model_info(self) -> dict[str, Any]:
        """What the harness stores beside the results."""
        return self.scorer.describe()

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        """log p(continuation | context) and whether the continuation is the greedy one.

        For a model with Pushdown Layers, greedy means likeliest at every token under the most
        probable parse.
        """
        pairs = [_join(*request.args) for request in requests]
        read = score_distinct(self._read, (text for text, _ in pairs), chunk_size=self.chunk_size)
        results = []
        for request, (text, start) in zip(requests, pairs, strict=True):
            inside = [(token, best) for token, best in read[text] if token.end > start]
            result = _log_prob(token for token, _ in inside), all(best for _, best in inside)
            self.cache_hook.add_partial("loglikelihood", request.args, result)
            results.append(result)
        return results

    def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
        """log p(text); a text beyond the model's positions is cut into parts that begin anew."""
        results = []
        for request in requests:
            parts = self._parts(request.args[0].strip())
            tokens = [token for read in self._read(parts) for token, _ in read]
            results.append(_log_prob(tokens))
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, results[-1])
        return results

    @torch.inference_mode()
    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        """The text that follows a context, up to the first of the strings that end it."""
        model, tokenizer = self.parser.model, self.parser.tokenizer
        if not model.can_generate():
            raise PushdownError(
                f"{self.scorer.name}: expected a model that generates text, found "
                f"{self.parser.kind}"
            )
        results = []
        for request in requests:
            context, options = request.args
            read = self.parser.encode(context.strip()).ids if context.strip() else ()
            prompt = torch.tensor([[model.config.bos_token_id, *read]], device=model.device)
            wanted = int(options.get("max_gen_toks", DEFAULT_NEW_TOKENS))
            output = model.generate(
                prompt,
                max_new_tokens=min(wanted, self._room - len(read)),
                **{name: options[name] for name in SAMPLING_OPTIONS if name in options},
            )
            text = str(tokenizer.decode(output[0, prompt.shape[1] :], skip_special_tokens=True))
            until = options.get("until", [])
            for end in [until] if isinstance(until, str) else until:
                text = text.partition(end)[0] if end else text
            results.append(text)
            self.cache_hook.add_partial("generate_until", request.args, text)
        return results

    @property
    def _room(self) -> int:
        """Tokens that fit beside BOS."""
        return (self.parser.model.config.max_positions or 1 << 30) - 1

    def _parts(self, text: str) -> list[str]:
        words = text.split()
        if len(words) < 2 or self.parser.count_tokens(text) <= self._room:
            return [text]
        middle = len(words) // 2
        return self._parts(" ".join(words[:middle])) + self._parts(" ".join(words[middle:]))

    def _read(self, texts: Sequence[str]) -> list[list[tuple[Token, bool]]]:
        """The tokens of each text, and whether each is the likeliest where it stands."""
        last = None if self.score_eos else -1
        return [tokens[:last] for tokens in self.scorer.mark_likeliest(texts)]


def _join(context: str, continuation: str) -> tuple[str, int]:
    """The text that is scored, and where in it the continuation starts.

    A token belongs to the continuation if it ends after that place, so the space between the two
    may stand on either side.

    >>> _join("The dog ", "barks"), _join("", " The dog")
    (('The dog barks', 7), ('The dog', 0))
    """
    context = context.lstrip()
    text = context + continuation if context else continuation.lstrip()
    return text, len(context.rstrip())


def _log_prob(tokens: Iterable[Token]) -> float:
    return -math.log(2) * math.fsum(token.surprisal for token in tokens)


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
