"""Adapters: what was trained beside a pretrained model that stayed as it was, in its own folder.

    ADAPTER/pushdown.json               settings, and the name and the fingerprint of the base model
    ADAPTER/pushdown.safetensors        tape embeddings and attachment head
    ADAPTER/adapter_config.json         the low-rank adapters of the decoder, as peft writes them
    ADAPTER/adapter_model.safetensors
    ADAPTER/training.json               the recipe and the final metrics of its run, in copies

A few megabytes, where the whole model has hundreds. A run that trains low-rank adapters in a
pretrained model leaves them in ``RUN/adapter``. :func:`apply_adapter` puts them on their base model
again, be it a name of the Hub, a folder or a GGUF file, and gives the model that was trained. The
last two files are peft's layout for the plain decoder, on which peft puts them without the rest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast
from transformers.pytorch_utils import Conv1D

from pushdown_lm.data.text import TextRule
from pushdown_lm.data.tokenization import model_tokenizer, splits_marks, text_rule
from pushdown_lm.errors import PushdownError
from pushdown_lm.files import verify_manifest, whole_folder, write_json
from pushdown_lm.model.convert import CONVERSION, check_new_folder, open_pretrained
from pushdown_lm.model.forbidden import special_ids
from pushdown_lm.model.modeling import PushdownForCausalLM
from pushdown_lm.training.lora import ADAPTER

SETTINGS, WEIGHTS = "pushdown.json", "pushdown.safetensors"
PEFT_SETTINGS, PEFT_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PEFT_PREFIX = "base_model.model."
"""What peft puts before the names of a model's modules."""
FORMAT_VERSION = 1
CONFIG_FIELDS = (
    "pushdown_layers",
    "attachment_head",
    "head_input",
    "head_sees_tape",
    "legality",
    "num_depths",
    "num_distances",
    "distance_counts",
    "tape_on_values",
    "attachment_loss_weight",
)
"""Of the model's configuration, what the base model does not know."""


class AdapterError(PushdownError):
    """An adapter that cannot be saved, read, or put on a base model."""


@dataclass(frozen=True)
class AdapterInfo:
    """What an adapter belongs to, and how it is used."""

    base: str
    """The name of the base model: of the Hub, or of its file or folder."""
    fingerprint: str
    """SHA-256 of the base model's weights."""
    bos_token: str
    eos_token: str
    text: str
    unit: str
    """With ``text``, the :class:`~pushdown_lm.data.text.TextRule`."""
    config: dict[str, Any]
    """The :data:`CONFIG_FIELDS`."""
    splits_marks: bool = False
    """Whether no token holds two different punctuation marks."""
    format_version: int = FORMAT_VERSION


# ------------------------------------------------------------------ saving


def has_adapters(model: PushdownForCausalLM) -> bool:
    """Whether low-rank adapters are beside the decoder's own weights."""
    return any(hasattr(module, "lora_A") for module in model.decoder.modules())


def save_adapter(
    model: PushdownForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    base: str,
    folder: str | Path,
) -> None:
    """Write what a model with low-rank adapters has beside its base model, before it is merged.

    Args:
        tokenizer: the one that the model was trained with.
        base: what the base model was loaded from.
    """
    if not has_adapters(model):
        raise AdapterError("expected a model with low-rank adapters (training.lora), found none")
    rule = text_rule(tokenizer)
    info = AdapterInfo(
        base=base_name(base),
        fingerprint=decoder_fingerprint(model.decoder),
        bos_token=str(tokenizer.bos_token),
        eos_token=str(tokenizer.eos_token),
        text=rule.text,
        unit=rule.unit,
        config={name: getattr(model.config, name) for name in CONFIG_FIELDS},
        splits_marks=splits_marks(tokenizer),
    )
    decoder: Any = model.decoder
    peft_config = decoder.peft_config[ADAPTER]
    peft_config.base_model_name_or_path = info.base
    peft_config.task_type = "CAUSAL_LM"
    peft_config.inference_mode = True
    low_rank = {
        PEFT_PREFIX + name.replace(f".{ADAPTER}.weight", ".weight"): weight.detach().contiguous()
        for name, weight in decoder.named_parameters()
        if ".lora_" in name
    }
    with whole_folder(folder) as staging:
        peft_config.save_pretrained(str(staging))
        save_file(low_rank, staging / PEFT_WEIGHTS, metadata={"format": "pt"})
        save_file(dict(_added_weights(model)), staging / WEIGHTS, metadata={"format": "pt"})
        write_json(staging / SETTINGS, asdict(info))


def copy_adapter(
    adapter: str | Path,
    folder: str | Path,
    dtype: torch.dtype,
    further: Mapping[str, object] | None = None,
) -> None:
    """Write an adapter again with weights of another type: float16 takes half the room.

    Args:
        further: JSON files that it gets, by name.
    """
    source, target = Path(adapter), Path(folder)
    read_info(source)
    check_new_folder(target)
    with whole_folder(target) as staging:
        for name in (SETTINGS, PEFT_SETTINGS):
            (staging / name).write_bytes((source / name).read_bytes())
        for name in (WEIGHTS, PEFT_WEIGHTS):
            weights = {key: weight.to(dtype) for key, weight in _read(source / name).items()}
            save_file(weights, staging / name, metadata={"format": "pt"})
        for name, content in (further or {}).items():
            write_json(staging / name, content)


def base_name(source: str) -> str:
    """What a base model is called elsewhere: a name of the Hub as it is, a path's last part.

    Of a converted model, that of the model that was converted.
    """
    conversion = Path(source, CONVERSION)
    if conversion.is_file():
        made_from = json.loads(conversion.read_text(encoding="utf-8"))
        return base_name(str(made_from["gguf_file"] or made_from["source"]))
    return Path(source).name if Path(source).exists() or source.count("/") > 1 else source


def decoder_fingerprint(decoder: nn.Module) -> str:
    """SHA-256 of a decoder's own weights in float32, without tape embeddings and adapters."""
    digest = hashlib.sha256()
    for name, weight in sorted(decoder.named_parameters()):
        if "tape_embedding" in name or ".lora_" in name:
            continue
        plain = name.replace(".base_layer.", ".")
        digest.update(f"{plain} {tuple(weight.shape)}".encode())
        plain_weight = weight.detach().to("cpu", torch.float32)
        digest.update(plain_weight.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _added_weights(model: PushdownForCausalLM) -> Iterator[tuple[str, Tensor]]:
    """The tape embeddings and the attachment head."""
    for name, weight in model.named_parameters():
        if "tape_embedding" in name or name.startswith("head."):
            yield name, weight.detach().contiguous()


# ------------------------------------------------------------------ loading


def read_info(adapter: str | Path) -> AdapterInfo:
    """What an adapter says of itself, after its files are checked."""
    path = Path(adapter, SETTINGS)
    if not path.is_file():
        raise AdapterError(f"{adapter}: expected an adapter, found no {SETTINGS}")
    verify_manifest(adapter)
    try:
        info = AdapterInfo(**json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError, RecursionError):
        raise AdapterError(f"{path}: expected the settings of an adapter") from None
    if info.format_version != FORMAT_VERSION:
        raise AdapterError(
            f"{path}: expected format version {FORMAT_VERSION}, found {info.format_version!r:.40}"
        )
    return info


def load_adapted(
    adapter: str | Path,
    base: str | Path | None = None,
    *,
    gguf_file: str | None = None,
    allow_other_base: bool = False,
) -> tuple[PushdownForCausalLM, PreTrainedTokenizerFast]:
    """The model that was trained, from its adapter and its base model, and its tokenizer.

    Args:
        base: a name of the Hub, a folder (of a converted model too), or a GGUF file; the name that
            the adapter was saved with if left out.
        gguf_file: a GGUF file of that name or folder.
        allow_other_base: put it on a model with other weights of the same shapes, such as the
            full-precision model of which a GGUF file was made.
    """
    info, folder = read_info(adapter), Path(adapter)
    source = str(info.base if base is None else base)
    opened = open_pretrained(
        source,
        gguf_file=gguf_file,
        bos=info.bos_token,
        eos=info.eos_token,
        splits_marks=info.splits_marks,
    )
    tokenizer = opened.tokenizer
    if splits_marks(tokenizer) != info.splits_marks:
        raise AdapterError(
            f"{source}: was converted with --split-marks, the adapter was trained without; give "
            "the model that it was converted from"
        )
    TextRule(info.text, info.unit).save_in(tokenizer)  # type: ignore[arg-type]
    decoder: PreTrainedModel = opened.decoder.float()
    if isinstance(decoder, PushdownForCausalLM):
        model = decoder
        _check_config(model, info, source)
    else:
        model = PushdownForCausalLM.from_lm(
            decoder,
            **special_ids(tokenizer),
            **info.config,
        )
    if not allow_other_base and decoder_fingerprint(model.decoder) != info.fingerprint:
        raise AdapterError(
            f"{adapter}: was trained on {info.base}, whose weights are not those of {source}; "
            "--other-base puts it on them all the same"
        )
    _put(dict(_added_weights(model)), _read(folder / WEIGHTS), folder / WEIGHTS, source)
    _merge(model.decoder, folder, source)
    return model.eval(), tokenizer


def apply_adapter(adapter: str | Path, out: str | Path, **options: Any) -> PushdownForCausalLM:
    """Write the model that was trained, and its tokenizer, to a new folder.

    Args:
        options: as for :func:`load_adapted`.
    """
    check_new_folder(Path(out))
    model, tokenizer = load_adapted(adapter, **options)
    with whole_folder(out) as staging:
        model.save_pretrained(staging)
        model_tokenizer(tokenizer).save_pretrained(staging)
    return model


def _check_config(model: PushdownForCausalLM, info: AdapterInfo, source: str) -> None:
    for name, wanted in info.config.items():
        if (found := getattr(model.config, name)) != wanted:
            raise AdapterError(
                f"{source}: the adapter is for {name} {wanted}, this Pushdown model has {found}; "
                "give the model that it was converted from"
            )


@torch.no_grad()
def _put(own: Mapping[str, Tensor], given: Mapping[str, Tensor], path: Path, source: str) -> None:
    """Copy weights by name; those that do not fit are an error."""
    for name in sorted(own.keys() | given.keys()):
        if name not in own or name not in given or own[name].shape != given[name].shape:
            shapes = [tuple(part[name].shape) if name in part else None for part in (given, own)]
            raise AdapterError(
                f"{path}: {name}: {shapes[0] or 'nothing'} does not fit {source}, which has "
                f"{shapes[1] or 'none'}"
            )
        own[name].copy_(given[name])


@torch.no_grad()
def _merge(decoder: nn.Module, adapter: Path, source: str) -> None:
    """Add the low-rank adapters to the weights: ``W + (alpha / rank) B A``."""
    try:
        settings = json.loads((adapter / PEFT_SETTINGS).read_text(encoding="utf-8"))
        scale = settings["lora_alpha"] / settings["r"]
    except (OSError, ValueError, KeyError, TypeError, ArithmeticError):
        raise AdapterError(f"{adapter / PEFT_SETTINGS}: expected peft's lora_alpha and r") from None
    weights, path = _read(adapter / PEFT_WEIGHTS), adapter / PEFT_WEIGHTS
    modules = dict(decoder.named_modules())
    for key in sorted(key for key in weights if key.endswith(".lora_A.weight")):
        name = key.removeprefix(PEFT_PREFIX).removesuffix(".lora_A.weight")
        module, high = modules.get(name), weights.get(key.replace("lora_A", "lora_B"))
        if not isinstance(module, nn.Linear | Conv1D) or high is None:
            raise AdapterError(f"{path}: {name}: {source} has no such linear map")
        change = scale * (high.float() @ weights[key].float())
        change = change.T if isinstance(module, Conv1D) else change
        if change.shape != module.weight.shape:
            raise AdapterError(
                f"{path}: {name}: {tuple(change.shape)} does not fit {source}, which has "
                f"{tuple(module.weight.shape)}"
            )
        module.weight += change


def _read(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise AdapterError(f"{path}: cannot be read ({error})") from error
