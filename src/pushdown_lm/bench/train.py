"""One training step: a Pushdown model against the same decoder with plain attention.

All layers are pushdown layers and the attachment head is on; the sentences are random, with
random binary trees. ``python -m pushdown_lm.bench.train CASE CONTENDER`` takes one step and prints
its peak memory.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from transformers import AutoModelForCausalLM, GPT2Config

from pushdown_lm.bench.measure import Result, interleave, peak_memory, print_peak_memory
from pushdown_lm.errors import PushdownError
from pushdown_lm.model.configuration import PushdownConfig
from pushdown_lm.model.modeling import PushdownForCausalLM


@dataclass(frozen=True, slots=True)
class Case:
    """A shape, and who competes at it."""

    layers: int
    width: int
    heads: int
    vocabulary: int
    batch: int
    length: int
    contenders: tuple[str, ...] = ("plain", "pushdown")


CASES = {
    "gpt2-small-t512": Case(12, 768, 12, 50257, 2, 512),
    "6x512-t256": Case(6, 512, 8, 10000, 8, 256),
    "6x512-t256-b4": Case(6, 512, 8, 10000, 4, 256, ("plain", "pushdown", "reference")),
}
VARIANTS = {"pushdown": ("tiled", "mlp"), "reference": ("reference", "all_positions")}
"""Attention and head of the contenders other than the plain decoder. The reference is the paper's:
T x T x d keys in attention, and a head that scores all positions."""


def run(cases: list[str], repeats: int) -> Iterator[Result]:
    """Each case's times and memory as ratios: Pushdown to plain, reference to Pushdown."""
    for name in cases:
        if name not in CASES:
            raise PushdownError(f"no bench case {name!r}; there are {', '.join(CASES)}")
        case = CASES[name]
        seconds = interleave({who: step(case, who) for who in case.contenders}, repeats)
        nothing = peak_memory("pushdown_lm.bench.train", name, "nothing")
        megabytes = {
            who: peak_memory("pushdown_lm.bench.train", name, who) - nothing
            for who in case.contenders
        }
        result: Result = {"bench": "train", "case": name}
        for prefix, who, against in (
            ("", "pushdown", "plain"),
            ("reference_to_pushdown_", "reference", "pushdown"),
        ):
            if who in case.contenders:
                result[f"{prefix}time_ratio"] = round(seconds[who] / seconds[against], 3)
                result[f"{prefix}memory_ratio"] = round(megabytes[who] / megabytes[against], 3)
        for who in case.contenders:
            tokens = case.batch * case.length
            result[f"{who}_tokens_per_second"] = round(tokens / seconds[who], 1)
            result[f"{who}_megabytes"] = round(megabytes[who])
        yield {**result, "threads": torch.get_num_threads()}


def step(case: Case, contender: str) -> Callable[[], None]:
    """A function that takes one forward and backward pass."""
    torch.manual_seed(0)
    decoder_config = GPT2Config(
        vocab_size=case.vocabulary,
        n_positions=case.length,
        n_embd=case.width,
        n_layer=case.layers,
        n_head=case.heads,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=1,
    )
    ids = torch.randint(2, case.vocabulary, (case.batch, case.length))
    ids[:, 0], ids[:, -1] = 0, 1
    if contender == "plain":
        plain = AutoModelForCausalLM.from_config(decoder_config, attn_implementation="sdpa").train()
        return lambda: plain(ids, labels=ids).loss.backward()
    attention, head = VARIANTS[contender]
    config = PushdownConfig(
        decoder_config=decoder_config, attention=attention, attachment_head=head
    )
    pushdown = PushdownForCausalLM(config).train()
    attachments = torch.stack([random_attachments(case.length) for _ in range(case.batch)])

    def take_step() -> None:
        pushdown(ids, attachments=attachments, labels=ids).loss.backward()

    return take_step


def random_attachments(length: int) -> torch.Tensor:
    """Attachments of a random parse of ``length`` positions, ROOT and EOS included: each word
    shifts or attaches with equal chance, to the top of the stack or, half as likely, further."""
    attachments: list[int] = [0]
    ends: list[int] = []
    for position in range(1, length - 1):
        popped = 0
        while popped < len(ends) and torch.rand(()) < 0.5:
            popped += 1
        attachments.append(ends[-popped] if popped else position)
        del ends[len(ends) - popped :]
        ends.append(position)
    return torch.tensor([*attachments, 0])


if __name__ == "__main__":
    if sys.argv[2] != "nothing":
        step(CASES[sys.argv[1]], sys.argv[2])()
    print_peak_memory()
