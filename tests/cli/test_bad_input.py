"""Bad input of every kind: one line that names the file or the key, exit code 2, no traceback.

Each case is a command and a part of what it should say. `{files}` is a folder with the files of
:data:`FILES`, `{model}` a tiny model, `{data}` a tiny dataset, `{new}` a place to write to.
"""

from __future__ import annotations

import gzip
import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pushdown_lm.data.tokenization import model_tokenizer
from tests.command_line import run_pushdown
from tests.models import random_model
from tests.tiny_training import TINY, tiny_data

DEEP = 10_000
TREE = "(S (NP the boys) (VP are happy))\n"


def suite(formula: str = "(1;%a%) < (1;%b%)", **changes: Any) -> bytes:
    conditions = [
        {"condition_name": name, "regions": [{"region_number": 1, "content": "the boys are"}]}
        for name in "ab"
    ]
    content = {
        "meta": {"metric": "sum"},
        "predictions": [{"formula": formula}],
        "items": [{"item_number": 1, "conditions": conditions}],
        **changes,
    }
    return json.dumps(content).encode()


def pair(**changes: Any) -> bytes:
    content = {
        "sentence_good": "the boys are happy .",
        "sentence_bad": "the boys is happy .",
        "UID": "agreement",
        "linguistics_term": "agreement",
        "field": "morphology",
        **changes,
    }
    return json.dumps(content).encode() + b"\n"


def conllu(head: str = "0", number: str = "1", columns: int = 10) -> bytes:
    return "\t".join([number, "dog", "_", "_", "_", "_", head, "_", "_", "_"][:columns]).encode()


GZIPPED = gzip.compress(TREE.encode() * 50, mtime=0)
FILES: dict[str, bytes] = {
    "good.trees": TREE.encode() * 4,
    "good.txt": b"the boys are happy .\n",
    "empty": b"",
    "blank.txt": b"\n\n",
    "nul.txt": b"the \x00 boys\n",
    "latin1.txt": b"caf\xe9\n",
    "unknown.txt": b"the zebra is happy .\n",
    "long.txt": b"the boys " * 100,
    "binary": bytes(range(256)) * 8,
    "unclosed.trees": b"(S (NP the boys) (VP are happy)\n",
    "surplus.trees": b"(S the boys))\n",
    "empty-bracket.trees": b"(S () the)\n",
    "outside.trees": b"(S the boys) and more\n",
    "latin1.trees": b"(S caf\xe9 x)\n",
    "deep-open.trees": b"(" * DEEP,
    "deep-close.trees": b")" * DEEP,
    "deep-empty.trees": b"(" * DEEP + b")" * DEEP,
    "truncated.trees.gz": GZIPPED[:-12],
    "corrupt.trees.gz": GZIPPED[:20] + bytes(20) + GZIPPED[40:],
    "mislabelled.trees.gz": TREE.encode(),
    "columns.conllu": conllu(columns=5),
    "number.conllu": conllu(number="7"),
    "head.conllu": conllu(head="x"),
    "huge-head.conllu": conllu(head="9" * 5000),
    "cycle.conllu": conllu(head="1"),
    "numbers.jsonl": b'{"sentence1_parse": 5, "sentence2_parse": []}\n',
    "cut.jsonl": b'{"sentence1_parse": "(S a',
    "deep.jsonl": b"[" * DEEP,
    "latin1.yaml": b"name: caf\xe9\n",
    "nul.yaml": b"name: \x00\n",
    "deep.yaml": b"name: " + b"[" * DEEP,
    "tab.yaml": b"training:\n\tlr: 1\n",
    "list.yaml": b"- 1\n",
    "numbers.yaml": b"1: 2\n",
    "unknown-key.yaml": b"training: {stepz: 3}\n",
    "circle.yaml": b"inherits: circle.yaml\n",
    "orphan.yaml": b"inherits: nobody\n",
    "digits.yaml": b"training: {steps: " + b"9" * 5000 + b"}\n",
    "anchor.yaml": b"a: &a [*a]\n",
    "blimp-binary.jsonl": bytes(range(256)) * 4,
    "blimp-cut.jsonl": pair()[:40],
    "blimp-list.jsonl": b"[]\n",
    "blimp-number.jsonl": pair(sentence_bad=5),
    "blimp-missing.jsonl": b'{"sentence_good": "x"}\n',
    "blimp-deep.jsonl": b"[" * DEEP,
    "blimp-good.jsonl": pair(),
    "blimp-unknown.jsonl": pair(sentence_bad="the zebra is happy ."),
    "glue/RTE/dev.tsv": bytes(range(256)) * 4,
    "glue/RTE/train.tsv": b"sentence1\tsentence2\tlabel\nx\n",
    "glue2/RTE/train.tsv": b"a\tb\n",
    "glue3/RTE/train.tsv": b"sentence1\tsentence2\tlabel\nx\ty\tmaybe\n",
    "suites/binary.json": bytes(range(256)),
    "suites2/list.json": b"[]",
    "suites3/deep.json": b"[" * DEEP,
    "suites4/nested.json": suite("[" * DEEP + "(1;%a%) < 1" + "]" * DEEP),
    "suites5/signs.json": suite("-" * 3000 + "(1;%a%) < 1"),
    "suites6/number.json": suite("(1;%a%)"),
    "suites7/bracket.json": suite("[(1;%a%) < 1"),
    "suites8/condition.json": suite("(1;%c%) < 1"),
    "suites9/region.json": suite("(2;%a%) < 1"),
    "suites10/metric.json": suite(meta={"metric": "mean"}),
    "suites11/items.json": suite(items=[]),
    "suites12/predictions.json": suite(predictions=[]),
    "suites13/item.json": suite(items=[3]),
    "suites14/unknown.json": suite(),
    "tokenizer/tokenizer.json": b"{}",
    "vocabulary/vocab.json": b"not json",
    "vocabulary/merges.txt": b"#version: 0.2\n",
    "not-a-model/config.json": b'{"model_type": "perceptron"}',
    "other-config/config.json": b"[]",
    "deep-config/config.json": b"[" * DEEP,
    "pickled/config.json": b'{"model_type": "gpt2", "n_layer": 1, "n_embd": 4, "n_head": 1}',
    "pickled/pytorch_model.bin": b"\x80\x04.",
}

TRAIN = f"train {TINY} --data {{data}} --out {{new}}"

CASES: list[tuple[str, str]] = [
    # ---------------------------------------------------------------- trees to data
    ("data build {files}/absent.trees --out {new}", "absent.trees: no such file"),
    ("data build {files} --out {new}", "is a folder; give its files"),
    ("data build {files}/empty --out {new}", "expected at least one usable tree"),
    ("data build {files}/binary --out {new}", "binary:"),
    ("data build {files}/unclosed.trees --out {new}", "unclosed.trees:2:1: expected ')'"),
    ("data build {files}/surplus.trees --out {new}", "surplus.trees:1:13: expected '('"),
    ("data build {files}/empty-bracket.trees --out {new}", "empty-bracket.trees:1:5: expected"),
    ("data build {files}/outside.trees --out {new}", "outside.trees:1:14: expected '('"),
    ("data build {files}/latin1.trees --out {new}", "latin1.trees:1:7: expected UTF-8"),
    ("data build {files}/deep-open.trees --out {new}", "deep-open.trees:1:10001: expected ')'"),
    ("data build {files}/deep-close.trees --out {new}", "deep-close.trees:1:1: expected '('"),
    ("data build {files}/deep-empty.trees --out {new}", "deep-empty.trees:1:10001: expected"),
    ("data build {files}/truncated.trees.gz --out {new}", "truncated.trees.gz:40:1: exp"),
    ("data build {files}/corrupt.trees.gz --out {new}", "corrupt.trees.gz:1:1: expected"),
    ("data build {files}/mislabelled.trees.gz --out {new}", "mislabelled.trees.gz:1:1: exp"),
    ("data build {files}/columns.conllu --out {new}", "columns.conllu:1:1: expected 10 columns"),
    ("data build {files}/number.conllu --out {new}", "number.conllu:1:1: expected word number 1"),
    ("data build {files}/head.conllu --out {new}", "head.conllu:1:15: expected a head from 0 to 1"),
    ("data build {files}/huge-head.conllu --out {new}", "huge-head.conllu:1:15: expected a head"),
    ("data build {files}/cycle.conllu --out {new}", "cycle.conllu:1:1: expected heads that form"),
    ("data build {files}/numbers.jsonl --out {new}", "numbers.jsonl:1:1: expected a JSON object"),
    ("data build {files}/cut.jsonl --out {new}", "cut.jsonl:1:1: expected a JSON object"),
    ("data build {files}/deep.jsonl --out {new}", "deep.jsonl:1:1: expected a JSON object"),
    ("data build {files}/good.trees --out {files}/good.txt", "good.txt: expected a folder"),
    ("data build {files}/good.trees --out {files}", "expected a new or empty folder"),
    ("data build {files}/good.trees --out {data}", "--overwrite"),
    ("data build {files}/good.trees --out {new} --tokenizer bpe:3", "tokenizer: expected 'bpe:"),
    ("data build {files}/good.trees --out {new} --tokenizer bpe:-1", "tokenizer: expected"),
    ("data build {files}/good.trees --out {new} --tokenizer bpe:99999999999", "tokenizer: expec"),
    ("data build {files}/good.trees --out {new} --tokenizer word:min_count=0", "tokenizer: expec"),
    ("data build {files}/good.trees --out {new} --tokenizer no/such", "tokenizer: expected"),
    ("data build {files}/good.trees --out {new} --tokenizer {files}", "expected tokenizer.json"),
    ("data build {files}/good.trees --out {new} --tokenizer {files}/tokenizer", "/tokenizer: "),
    ("data build {files}/good.trees --out {new} --tokenizer {files}/vocabulary", "/vocabulary: "),
    ("data build {files}/good.trees --out {new} --tokenizer word --detokenize", "detokenize: "),
    ("data build {files}/good.trees --out {new} --window 0", "window: expected at least 3"),
    ("data build {files}/good.trees --out {new} --window -5", "window: expected at least 3"),
    ("data build {files}/good.trees --out {new} --window 99999999999999999999", "window: expected"),
    ("data build {files}/good.trees --out {new} --max-length 2", "max_length: expected at least 3"),
    ("data build {files}/good.trees --out {new} --max-length 3", "expected at least one usable"),
    ("data build {files}/good.trees --out {new} --split 1", "split: expected three shares"),
    ("data build {files}/good.trees --out {new} --split a,b,c", "split: expected three shares"),
    ("data build {files}/good.trees --out {new} --split 1,1,1", "split: expected the shares"),
    ("data build {files}/good.trees --out {new} --split nan,0,1", "split: expected the shares"),
    ("data build {files}/good.trees --out {new} --split=-1,1,1", "split: expected the shares"),
    ("data build {files}/good.trees --out {new} --split 0.5,0.5,inf", "split: expected the shares"),
    ("data build {files}/good.trees --out {new} --processes 0", "--processes"),
    ("data build {files}/good.trees --out {new} --format xml", "--format"),
    ("data build {files}/good.trees --out {new} --errors hide", "--errors"),
    ("data build {files}/good.trees --out {new} --binarize up", "--binarize"),
    ("data build --out {new}", "TREES"),
    ("data show {files}", "no card.json"),
    ("data show {files}/absent", "no card.json"),
    # ---------------------------------------------------------------- recipes
    ("train nobody --data {data} --out {new}", "no recipe 'nobody'"),
    ("train {files}/absent.yaml --data {data} --out {new}", "absent.yaml: No such file"),
    ("train {files}/latin1.yaml --data {data} --out {new}", "latin1.yaml: expected UTF-8"),
    ("train {files}/nul.yaml --data {data} --out {new}", "nul.yaml: "),
    ("train {files}/deep.yaml --data {data} --out {new}", "deep.yaml"),
    ("train {files}/tab.yaml --data {data} --out {new}", "tab.yaml:2:1: "),
    ("train {files}/list.yaml --data {data} --out {new}", "list.yaml: expected keys and values"),
    ("train {files}/numbers.yaml --data {data} --out {new}", "numbers.yaml: expected names"),
    ("train {files}/unknown-key.yaml --data {data} --out {new}", "training.stepz: no such key"),
    ("train {files}/circle.yaml --data {data} --out {new}", "goes in a circle"),
    ("train {files}/orphan.yaml --data {data} --out {new}", "no recipe 'nobody'"),
    ("train {files}/digits.yaml --data {data} --out {new}", "digits.yaml"),
    ("train {files}/anchor.yaml --data {data} --out {new}", "a: no such key"),
    ("train {files}/empty --data {data} --out {new}", "no recipe"),
    ("train --data {data} --out {new}", "expected the name of a recipe"),
    (f"train {TINY} --out {{new}}", "expected --data"),
    (f"train {TINY} --data {{data}}", "--out"),
    (f"train {TINY} --data {{files}} --out {{new}}", "no card.json"),
    (f"train {TINY} --data {{data}} --out {{files}}", "expected a new or empty folder"),
    (f"train {TINY} --data {{data}} --out {{files}}/good.txt", "good.txt: "),
    (f"{TRAIN} --resume", "expected a run to resume, found no recipe.yaml"),
    (f"{TRAIN} --seed -1", "--seed"),
    (f"{TRAIN} --seed 99999999999999999999", "training.seed: "),
    (f"{TRAIN} --set training.steps=0", "training.steps: "),
    (f"{TRAIN} --set training.steps=-3", "training.steps: "),
    (f"{TRAIN} --set training.steps=99999999999999999999", "training.steps: "),
    (f"{TRAIN} --set training.steps=many", "training.steps: expected a whole number"),
    (f"{TRAIN} --set training.lr=.nan", "training.lr: "),
    (f"{TRAIN} --set training.lr=.inf", "training.lr: "),
    (f"{TRAIN} --set training.lr=-1", "training.lr: "),
    (f"{TRAIN} --set training.lr=fast", "training.lr: expected a number, got 'fast'"),
    (f"{TRAIN} --set training.betas=[1]", "training.betas.0: "),
    (f"{TRAIN} --set training.dropout=1.5", "training.dropout: "),
    (f"{TRAIN} --set training.schedule=zigzag", "training.schedule: expected "),
    (f"{TRAIN} --set training.batch_size=0", "training.batch_size: "),
    (f"{TRAIN} --set training.epochs=-1", "training.epochs: "),
    (f"{TRAIN} --set training.epochs=.inf", "training.epochs: "),
    (f"{TRAIN} --set training.clip=.nan", "training.clip: "),
    (f"{TRAIN} --set training.freeze=some", "training.freeze: expected none"),
    (f"{TRAIN} --set training.report_to=[paper]", "training.report_to"),
    (f"{TRAIN} --set training.data_workers=-1", "training.data_workers: "),
    (f"{TRAIN} --set training.gradient_accumulation=0", "training.gradient_accumulation: "),
    (f"{TRAIN} --set training.lora.rank=0", "training.lora.rank: "),
    (f"{TRAIN} --set training=5", "training: expected a section of keys"),
    (f"{TRAIN} --set training.lr.x=5", "training.lr: expected a number"),
    (f"{TRAIN} --set training.lr", "--set: expected section.key=value"),
    (f"{TRAIN} --set =5", "--set: expected section.key=value"),
    (f"{TRAIN} --set training..lr=5", "--set: expected section.key=value"),
    (f"{TRAIN} --set training.lr=[", "--set training.lr"),
    (f"{TRAIN} --set nothing.lr=5", "nothing: no such key"),
    (f"{TRAIN} --set model.decoder.type=perceptron", "model.decoder.type: expected a model type"),
    (f"{TRAIN} --set model.decoder.type=bert", "model."),
    (f"{TRAIN} --set model.decoder.hidden_size=0", "model.decoder"),
    (f"{TRAIN} --set model.decoder.hidden_size=-4", "model.decoder"),
    (f"{TRAIN} --set model.decoder.hidden_size=1e400", "model.decoder"),
    (f"{TRAIN} --set model.decoder.num_attention_heads=0", "model.decoder"),
    (f"{TRAIN} --set model.decoder.num_hidden_layers=-1", "model."),
    (f"{TRAIN} --set model.decoder.hidden_size=8000000000000", "model.decoder"),
    (f"{TRAIN} --set model.decoder.vocab_size=7", "model.decoder.vocab_size: "),
    (f"{TRAIN} --set model.decoder.max_position_embeddings=2", "max_position_embeddings: the long"),
    (f"{TRAIN} --set model.pushdown_layers=[9]", "model.pushdown_layers: "),
    (f"{TRAIN} --set model.pushdown_layers=[-1]", "model.pushdown_layers: "),
    (f"{TRAIN} --set model.pushdown_layers=last:0", "model.pushdown_layers: "),
    (f"{TRAIN} --set model.pushdown_layers=last:99", "model.pushdown_layers: "),
    (f"{TRAIN} --set model.num_depths=-1", "model.num_depths: "),
    (f"{TRAIN} --set model.num_depths=0", "num_depths"),
    (f"{TRAIN} --set model.num_depths=99999999999999999999", "model.num_depths: "),
    (f"{TRAIN} --set model.attachment_head=tail", "model.attachment_head: expected"),
    (f"{TRAIN} --set model.attention=fast", "model.attention: expected one of"),
    (f"{TRAIN} --set model.attention=flex", "model.attention: flex"),
    (f"{TRAIN} --set model.attachment_loss_weight=-1", "model.attachment_loss_weight: "),
    (f"{TRAIN} --set model.attachment_loss_weight=.nan", "model.attachment_loss_weight: "),
    (f"{TRAIN} --set data.window=512", "data.window: expected windows of 512"),
    # ---------------------------------------------------------------- models
    ("score {files}/absent {files}/good.txt", "absent: no such folder"),
    ("score {files} {files}/good.txt", "expected a Pushdown model"),
    ("score {files}/not-a-model {files}/good.txt", "found model_type 'perceptron'"),
    (
        "score {files}/other-config {files}/good.txt",
        "other-config/config.json: expected a configuration",
    ),
    (
        "score {files}/deep-config {files}/good.txt",
        "deep-config/config.json: expected a configuration",
    ),
    ("eval blimp --model {files}/absent --data {files}/blimp-good.jsonl", "absent: no such folder"),
    (
        "eval blimp --model {files}/deep-config --data {files}/blimp-good.jsonl",
        "deep-config/conf",
    ),
    ("eval blimp --model {files}/not-a-model --data {files}/blimp-good.jsonl", "not-a-model: "),
    ("score {model} {files}/absent.txt", "absent.txt: No such file"),
    ("score {model} {files}", "Is a directory"),
    ("score {model} {files}/blank.txt", "blank.txt:1: expected a sentence"),
    ("score {model} {files}/latin1.txt", "latin1.txt:1: "),
    ("score {model} {files}/unknown.txt", "unknown.txt:1: expected words of the vocabulary"),
    ("score {model} {files}/nul.txt", "nul.txt:1: "),
    ("score {model} {files}/long.txt", "long.txt:1: "),
    ("score {model} {files}/good.txt --beam 0", "--beam"),
    ("score {model} {files}/good.txt --beam 99999999999999999999", "beam: expected 1 to"),
    ("score {model} {files}/good.txt --threshold nan", "threshold: expected 0 nats or more"),
    ("score {model} {files}/good.txt --threshold -1", "threshold: expected 0 nats or more"),
    ("score {model} {files}/good.txt --format xml", "--format"),
    ("score {model} {files}/unclosed.trees --tree", "unclosed.trees:2:1: expected ')'"),
    ("score {model} {files}/latin1.trees --tree", "latin1.trees: expected UTF-8"),
    ("surprisal {model} {files}/unknown.txt", "unknown.txt:1: expected words of the vocabulary"),
    ("surprisal {model} {files}/good.txt --unit letter", "--unit"),
    ("parse {model} {files}/unknown.txt", "unknown.txt:1: expected words of the vocabulary"),
    ("parse {model} {files}/good.txt --n-best 0", "--n-best"),
    ("generate {model} --prompt 'the zebra'", "expected words of the vocabulary, found 'zebra'"),
    ("generate {model} --temperature nan", "temperature: expected a number"),
    ("generate {model} --temperature -1", "temperature: expected a number"),
    ("generate {model} --top-k 0", "top_k"),
    ("generate {model} --top-p 2", "top_p"),
    ("generate {model} --seed -1", "seed: expected"),
    ("generate {model} --seed 99999999999999999999", "seed: expected"),
    ("generate {model} --count 0", "--count"),
    ("generate {model} --max-tokens 0", "--max-tokens"),
    # ---------------------------------------------------------------- evaluations
    ("eval blimp --model {model} --data {files}/absent", "absent: No such file"),
    ("eval blimp --model {model} --data {files}/tokenizer", "expected BLiMP's *.jsonl files"),
    ("eval blimp --model {model} --data {files}/empty", "empty: expected minimal pairs"),
    ("eval blimp --model {model} --data {files}/blimp-binary.jsonl", "blimp-binary.jsonl:1"),
    ("eval blimp --model {model} --data {files}/blimp-cut.jsonl", "blimp-cut.jsonl:1:"),
    ("eval blimp --model {model} --data {files}/blimp-list.jsonl", "blimp-list.jsonl:1: expected"),
    ("eval blimp --model {model} --data {files}/blimp-number.jsonl", "'sentence_bad' to be text"),
    ("eval blimp --model {model} --data {files}/blimp-missing.jsonl", "'sentence_bad' to be text"),
    ("eval blimp --model {model} --data {files}/blimp-deep.jsonl", "blimp-deep.jsonl:1: expected"),
    ("eval blimp --model {model} --data {files}/blimp-unknown.jsonl", "found 'zebra'"),
    ("eval blimp --model {model} --data {files}/blimp-good.jsonl --limit 0", "--limit"),
    ("reproduce english --models ablations --data {files} --out {new}", "no card.json"),
    ("eval sg --model {model} --data {files}/absent", "found no such file"),
    ("eval sg --model {model} --data {files}/suites --suite-set all", "binary.json: expected a"),
    ("eval sg --model {model} --data {files}/suites2 --suite-set all", "list.json: expected an ob"),
    ("eval sg --model {model} --data {files}/suites3 --suite-set all", "deep.json: expected a Syn"),
    ("eval sg --model {model} --data {files}/suites4 --suite-set all", "prediction 1, column 4001"),
    ("eval sg --model {model} --data {files}/suites5 --suite-set all", "at most 100 levels"),
    ("eval sg --model {model} --data {files}/suites6 --suite-set all", "expected a comparison"),
    ("eval sg --model {model} --data {files}/suites7 --suite-set all", "expected ']'"),
    (
        "eval sg --model {model} --data {files}/suites8 --suite-set all",
        "expected the condition",
    ),
    ("eval sg --model {model} --data {files}/suites9 --suite-set all", "expected the region 2"),
    (
        "eval sg --model {model} --data {files}/suites10 --suite-set all",
        "expected the metric",
    ),
    ("eval sg --model {model} --data {files}/suites11 --suite-set all", "at least one item"),
    ("eval sg --model {model} --data {files}/suites12 --suite-set all", "at least one prediction"),
    (
        "eval sg --model {model} --data {files}/suites13 --suite-set all",
        "item at index 0: expec",
    ),
    ("eval parsing --model {model} --data {files}/absent", "absent: No such file"),
    ("eval parsing --model {model} --data {files}/unclosed.trees", "unclosed.trees:2:1: expected"),
    ("eval parsing --model {model} --data {files}/empty", "empty: expected at least one tree"),
    ("eval parsing --model {model} --data {files}/good.trees --max-length 1", "at most 1 words"),
    ("eval parsing --model {model} --data {files}/truncated.trees.gz", "truncated.trees.gz:40:1:"),
    ("eval perplexity --model {model} --data {files}/latin1.txt", "latin1.txt: expected UTF-8"),
    (
        "eval perplexity --model {model} --data {files}/empty",
        "empty: expected at least one",
    ),
    ("eval perplexity --model {model} --data {files}/unknown.txt", "found 'zebra'"),
    (
        "eval perplexity --model {model} --data {files}/empty --trees",
        "empty: expected at least one tree",
    ),
    ("eval attention --model {model} --data {files}/suites", "number_src.json: expected"),
    # ---------------------------------------------------------------- pretrained models and tasks
    ("convert {files}/absent --out {new}", "absent: "),
    ("convert ./absent --out {new}", "absent: no such file or folder"),
    ("convert a/b/c --out {new}", "a/b/c: no such file or folder"),
    ("convert {files}/not-a-model --out {new}", "not-a-model: "),
    ("convert {files}/deep-config --out {new}", "deep-config: "),
    ("convert {files}/pickled --out {new}", "pickled: "),
    ("convert {files}/absent.gguf --out {new}", "absent.gguf: no such file"),
    ("convert {files}/good.txt --out {files}", "expected a new or empty folder"),
    ("finetune nothing --model {model} --data {files}/glue --out {new}", "nothing"),
    (
        "finetune rte --model {files}/absent --data {files}/glue --out {new}",
        "absent: no such folder",
    ),
    ("finetune rte --model {model} --data {files}/absent --out {new}", "expected train.tsv"),
    ("finetune rte --model {model} --data {files}/glue --out {new}", "train.tsv:2: expected 3 col"),
    ("finetune rte --model {model} --data {files}/glue2 --out {new}", "expected a header with"),
    ("finetune rte --model {model} --data {files}/glue3 --out {new}", "expected one of the labels"),
    ("finetune rte --model {model} --data {files}/glue --out {new} --lr nan", "lr: expected"),
    ("finetune rte --model {model} --data {files}/glue --out {new} --epochs 0", "epochs: expected"),
    ("bench train no-such-case", "no bench case 'no-such-case'"),
    ("bench trees {files}/absent.trees", "absent.trees: No such file or directory"),
    ("nothing", "No such command"),
    ("score one two three", "got 3 arguments; put a text in quotes"),
]

# ------------------------------------------------------------------ places


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("places")
    for name, content in FILES.items():
        path = root / "files" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    data = tiny_data(root / "data")
    tokenizer = model_tokenizer(data.tokenizer)
    model = random_model(
        vocabulary=len(tokenizer),
        positions=40,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    model.float().save_pretrained(root / "model")
    tokenizer.save_pretrained(root / "model")
    return {"files": root / "files", "data": root / "data", "model": root / "model"}


Run = Callable[[str], tuple[int, str]]


@pytest.fixture
def pushdown(
    places: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Run:
    """Run a command in this process: its exit code, and all that it printed on standard error."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))

    def run(command: str) -> tuple[int, str]:
        filled = command.format(**places, new=tmp_path / "new")
        done = run_pushdown(*shlex.split(filled))
        assert "Traceback" not in done.output + done.error
        return done.exit_code, done.error

    return run


@pytest.mark.parametrize(("command", "message"), CASES, ids=[command for command, _ in CASES])
def test_bad_input(command: str, message: str, pushdown: Run, tmp_path: Path) -> None:
    code, said = pushdown(command)
    assert message in said
    assert code == 2
    assert len(said) < 4000
    assert not list(tmp_path.glob("new/card.json"))
    assert not list(tmp_path.glob("new/metrics.json"))
    if command.startswith("data build"):
        assert not (tmp_path / "new").exists()


# ------------------------------------------------------------------ damaged folders


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def edit(**changes: Any) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        content = json.loads(path.read_text())
        path.write_text(json.dumps({**content, **changes}))

    return apply


def replace(content: bytes) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(content) and None


def lose_weight(path: Path) -> None:
    weights = load_file(path)
    del weights[min(weights)]
    save_file(weights, path, metadata={"format": "pt"})


def add_weight(path: Path) -> None:
    save_file({**load_file(path), "extra": torch.zeros(2)}, path, metadata={"format": "pt"})


def spoil_weight(path: Path) -> None:
    weights = load_file(path)
    weights[min(weights)].view(-1)[0] = torch.nan
    save_file(weights, path, metadata={"format": "pt"})


DAMAGED_MODELS: list[tuple[str, Callable[[Path], None]]] = [
    ("model.safetensors", cut),
    ("model.safetensors", replace(b"")),
    ("model.safetensors", replace(b"\xff" * 64)),
    ("model.safetensors", Path.unlink),
    ("model.safetensors", lose_weight),
    ("model.safetensors", add_weight),
    ("model.safetensors", spoil_weight),
    ("config.json", cut),
    ("config.json", Path.unlink),
    ("config.json", edit(pushdown_layers=[99])),
    ("config.json", edit(pushdown_layers="all")),
    ("config.json", edit(num_depths=3)),
    ("config.json", edit(num_depths=-1)),
    ("config.json", edit(attachment_head="tail")),
    ("config.json", edit(attention=5)),
    ("config.json", edit(decoder_config=5)),
    ("config.json", edit(decoder_config={"model_type": "perceptron"})),
    ("config.json", edit(auto_map={"AutoConfig": "evil.Config"}, model_type="evil")),
    ("tokenizer.json", cut),
    ("tokenizer.json", replace(b"[]")),
    ("tokenizer.json", Path.unlink),
    ("tokenizer_config.json", replace(b"[")),
    ("tokenizer_config.json", edit(pushdown_text={"text": "other"})),
    ("tokenizer_config.json", edit(eos_token=None)),
    ("manifest.json", replace(b"{}")),
    ("manifest.json", replace(b'{"files": {"../files/good.txt": {"bytes": 1, "sha256": ""}}}')),
    ("manifest.json", replace(b'{"files": {"config.json": 5}}')),
]


@pytest.mark.parametrize(("name", "damage"), DAMAGED_MODELS)
@pytest.mark.parametrize("command", ["score {new} {files}/good.txt", "eval"])
def test_damaged_model(
    name: str,
    damage: Callable[[Path], None],
    command: str,
    places: dict[str, Path],
    pushdown: Run,
    tmp_path: Path,
) -> None:
    if command == "eval":
        command = "eval blimp --model {new} --data {files}/blimp-good.jsonl"
    shutil.copytree(places["model"], tmp_path / "new")
    damage(tmp_path / "new" / name)
    code, said = pushdown(command)
    assert code == 2
    assert "new" in said


DAMAGED_DATA: list[tuple[str, Callable[[Path], None]]] = [
    ("card.json", cut),
    ("card.json", replace(b"[" * DEEP)),
    ("card.json", edit(format_version=99)),
    ("card.json", edit(splits={"../data/train": {}})),
    ("card.json", edit(splits={"train": {}})),
    ("card.json", edit(splits=5)),
    ("card.json", edit(text="sideways")),
    ("card.json", edit(window="wide")),
    ("card.json", edit(fingerprint="0" * 64)),
    ("card.json", edit(fingerprint=5)),
    ("tokenizer/tokenizer.json", cut),
    ("tokenizer/tokenizer.json", replace(b"{}")),
    ("train/data-00000-of-00001.arrow", cut),
    ("train/data-00000-of-00001.arrow", flip),
    ("train/data-00000-of-00001.arrow", replace(b"")),
    ("train/data-00000-of-00001.arrow", Path.unlink),
    ("train/state.json", cut),
    ("train/dataset_info.json", replace(b"[]")),
]


@pytest.mark.parametrize(("name", "damage"), DAMAGED_DATA)
def test_damaged_data(
    name: str,
    damage: Callable[[Path], None],
    places: dict[str, Path],
    pushdown: Run,
    tmp_path: Path,
) -> None:
    shutil.copytree(places["data"], tmp_path / "copy")
    damage(tmp_path / "copy" / name)
    code, said = pushdown(f"train {TINY} --data {tmp_path}/copy --out {{new}}")
    assert code == 2
    assert "copy" in said
    assert not (tmp_path / "new" / "recipe.yaml").exists()


# ------------------------------------------------------------------ unexpected errors


def test_internal_error(
    places: dict[str, Path], pushdown: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("unexpected")

    monkeypatch.setattr("pushdown_lm.data.dataset.load_data", fail)
    code, said = pushdown("data show {data}")
    assert code == 70
    assert said.startswith("pushdown: internal error: ZeroDivisionError: unexpected; ")
    report = Path(said.rstrip().rpartition(" ")[2]).read_text()
    assert "Traceback (most recent call last)" in report
    assert f"torch {torch.__version__.partition('+')[0]}" in report
    assert "command: pushdown data show" in report


def test_debug_shows_the_traceback() -> None:
    done = run_pushdown("--debug", "data", "show", "absent")
    assert done.exit_code == 2
    assert "Traceback (most recent call last)" in done.error
    assert done.error.rstrip().endswith("no card.json")


def test_version() -> None:
    done = run_pushdown("--version")
    assert done.exit_code == 0
    assert done.output.startswith("pushdown-lm ")
