"""`pushdown convert` and `pushdown import-published`: Pushdown models from others' models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pushdown_lm.console import show_loading


def convert(
    source: Annotated[
        str, typer.Argument(metavar="NAME_OR_FOLDER", help="A model: Hub name, folder, GGUF file.")
    ],
    out: Annotated[Path, typer.Option(help="The folder to write; new or empty.")],
    layers: Annotated[
        str, typer.Option(help="all, none, first:N, last:N, or indices from 0: 12-23 or 0,4,8.")
    ] = "all",
    gguf_file: Annotated[
        str | None, typer.Option(help="A GGUF file of that name or folder.")
    ] = None,
    bos: Annotated[
        str | None, typer.Option(help="The token that begins sentences, if not the tokenizer's.")
    ] = None,
    eos: Annotated[
        str | None, typer.Option(help="The token that ends sentences, if not the tokenizer's.")
    ] = None,
    num_depths: Annotated[int, typer.Option(min=0, help="Rows of the depth embedding.")] = 64,
    num_distances: Annotated[
        int, typer.Option(min=0, help="Rows of the stack-distance embedding; 0 for none.")
    ] = 0,
    distance_counts: Annotated[
        str, typer.Option(help="What distances count: constituents or open_tokens.")
    ] = "constituents",
    tape_on_values: Annotated[
        bool, typer.Option("--tape-on-values", help="Values of the attention see the tape, too.")
    ] = False,
    head: Annotated[
        str, typer.Option(help="The attachment head: mlp, appendix, published, bilinear, none.")
    ] = "mlp",
    head_input: Annotated[
        str, typer.Option(help="What the head sees of the next token: embedding or lower_layers.")
    ] = "embedding",
    split_marks: Annotated[
        bool,
        typer.Option("--split-marks", help="No token holds two different punctuation marks."),
    ] = False,
) -> None:
    """Put Pushdown Layers into a pretrained language model.

    Until it is trained, the new model computes what the old one did; a batch of tokens proves it.
    With --layers none --head none it is the paper's Base-LM, which is trained alike, for
    comparison; with --layers none alone, the multi-task LM. A token that separates documents begins
    and ends sentences rather than one that marks turns of a chat; --bos and --eos say otherwise.
    With --head-input lower_layers the attachment head sees the next token in context, as the layers
    below the first pushdown layer compute it, rather than its embedding alone. --split-marks is for
    parsing: where `]` and `.` are one token, no parse puts them into different constituents.

    pushdown convert gpt2-medium --layers last:12 --out models/gpt2-medium

    pushdown convert SmolLM2-135M-Instruct.Q4_1.gguf --layers last:15 --head-input lower_layers
    --split-marks --out models/smollm2
    """
    show_loading(source)
    from transformers.utils.logging import disable_progress_bar

    from pushdown_lm.model.convert import convert as convert_model

    disable_progress_bar()
    done = convert_model(
        source,
        out,
        layers=layers,
        gguf_file=gguf_file,
        bos=bos,
        eos=eos,
        num_depths=num_depths,
        num_distances=num_distances,
        distance_counts=distance_counts,
        tape_on_values=tape_on_values,
        attachment_head=None if head == "none" else head,
        head_input=head_input,
        splits_marks=split_marks,
    )
    chosen = ", ".join(map(str, done.pushdown_layers)) or "none"
    typer.echo(f"decoder\t{done.decoder}, {done.num_layers} layers")
    typer.echo(f"pushdown layers\t{chosen}")
    typer.echo(f"parameters\t{done.parameters:,}, {done.added_parameters:,} of them new")
    typer.echo(f"sentences\t{done.bos_token} ... {done.eos_token}, padding {done.pad_token}")
    typer.echo(f"begin with\t{done.bos_token}: {done.reasons['bos']}")
    typer.echo(f"end with\t{done.eos_token}: {done.reasons['eos']}")
    typer.echo(
        f"logits\tsame as the original's: largest difference {done.largest_difference:.2g}, "
        f"largest logit {done.largest_logit:.2g}"
    )
    typer.echo(f"saved\t{out}")


def import_published(
    source: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="model.pt, or a folder or Hub name that has it and vocab.pkl."
        ),
    ],
    vocabulary: Annotated[
        Path | None, typer.Argument(metavar="[VOCABULARY]", help="vocab.pkl, beside a model.pt.")
    ] = None,
    *,
    out: Annotated[Path, typer.Option(help="The folder to write; new or empty.")],
    tokenizer: Annotated[
        str, typer.Option(help="GPT-2's BPE, which cuts words into pieces: Hub name or folder.")
    ] = "gpt2",
    as_published: Annotated[
        bool,
        typer.Option(
            "--as-published",
            help="Attachment probabilities of the authors' code, which do not sum to one.",
        ),
    ] = False,
) -> None:
    """Open the model that the paper's authors released.

    Every command and evaluation works on the folder written. No code in the files is run.
    Attachment probabilities are normalized over the legal attachments; for comparison with the
    paper's numbers, --as-published keeps the softmax over all positions.

    pushdown import-published smurty/pushdown-bllip --out models/published

    pushdown import-published model.pt vocab.pkl --tokenizer gpt2_bpe --out models/published
    """
    from transformers.utils.logging import disable_progress_bar

    from pushdown_lm.model.published import import_published as import_model

    disable_progress_bar()
    done = import_model(
        source,
        vocabulary,
        out,
        tokenizer=tokenizer,
        probabilities="as_published" if as_published else "normalized",
    )
    outside = f"read as {done.unknown_token}" if done.unknown_token else "an error where they occur"
    typer.echo(f"model\t{done.num_layers} layers x {done.hidden_size}")
    typer.echo(f"parameters\t{done.parameters:,}")
    typer.echo(f"vocabulary\t{done.vocab_size:,} entries")
    typer.echo(f"other pieces\t{done.outside_pieces:,} of GPT-2's, {outside}")
    typer.echo(f"attachments\t{done.attachment_probabilities.replace('_', ' ')}")
    typer.echo(f"saved\t{out}")
