"""Building a dataset: files of trees to the folder that :mod:`pushdown_lm.data.dataset` opens.

An example is a sentence, or a window of sentences that starts at a sentence boundary. While a
dataset is made, DIR/.partial holds what is finished: a build that was interrupted resumes from
there if its sources and options are the same. The content does not depend on the number of
processes or on interruptions, and the card has a SHA-256 of it.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import random
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, groupby, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pushdown_lm.console import progress
from pushdown_lm.data.dataset import (
    CARD,
    FORMAT_VERSION,
    SPLITS,
    Data,
    fingerprint,
    load_data,
    read_card,
    sha256,
)
from pushdown_lm.data.encoding import (
    Binarization,
    Chunk,
    ChunkEncoder,
    DataError,
    Sentence,
    Shard,
    Tally,
    encode_chunks,
    pack_windows,
)
from pushdown_lm.data.example_files import ExampleWriter
from pushdown_lm.data.text import RULE_KEY, TextRule
from pushdown_lm.data.tokenization import (
    EncoderSettings,
    TokenizerChoice,
    check_keeps_spaces,
    is_word_level,
    load_tokenizer,
    text_rule,
    train_bpe,
    train_word_vocabulary,
    vocabulary_size,
)
from pushdown_lm.errors import PushdownError
from pushdown_lm.files import write_json
from pushdown_lm.trees import Constituents, Errors, Format, Nonprojective, Tree, read_trees

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

TREES_PER_CHUNK = 1000
SHARD_FORMAT = 2
"""Of what DIR/.partial holds; what an older version left there is made again."""
TREES_PER_RUN = 64
"""With windows, so many trees in a row are drawn into a split together: windows are real text."""

StrPath = str | os.PathLike[str]
Trees = StrPath | Iterable[StrPath] | Iterable[Tree]


@dataclass(frozen=True)
class DataOptions:
    """All that decides the content of a dataset, besides its trees."""

    tokenizer: str = "bpe:8000"
    """`bpe:SIZE` and `word[:min_count=N]` are trained on the training trees; or a folder."""
    window: int | None = None
    """Tokens of a window of several sentences; None makes every sentence an example."""
    max_length: int | None = None
    """Longer sentences are skipped and counted; in tokens, BOS and EOS included."""
    binarize: Binarization = "right"
    """How constituents of more than two children become binary."""
    detokenize: bool | None = None
    """Whether words are put back into running text; None: unless tokens are whole words, or the
    tokenizer comes with a model that was trained otherwise."""
    allow_unknown: bool = False
    """Whether words outside the vocabulary are `<unk>`; `word:min_count=N` implies it."""
    split: tuple[float, float, float] | None = None
    """Shares of train, valid and test, drawn tree by tree, where only `train` is given."""
    seed: int = 0
    """Decides the draws of `split`."""
    format: Format = "auto"
    """Format of the files, as in `trees.read_trees`."""
    errors: Errors = "raise"
    """What to do about a tree that cannot be used: raise an error, or skip and count it."""
    constituents: Constituents = "heads"
    """The rule that turns the dependencies of CoNLL-U into constituents."""
    nonprojective: Nonprojective = "report"
    """Whether crossing dependencies are errors, or are lifted."""
    language: str = "en"
    """Code of the language whose word lists help the rule `penn`."""
    labels: bool = False
    """Whether labeled trees are kept too, for models that read them
    (:mod:`pushdown_lm.data.bracketing`); trees without labels have the label X."""

    def __post_init__(self) -> None:
        for name in ("window", "max_length"):
            length = getattr(self, name)
            if length is not None and not 3 <= length < 2**31:
                raise DataError(
                    f"{name}: expected at least 3 (BOS, a word, EOS) and fewer than 2^31 tokens, "
                    f"got {length}"
                )
        for name, allowed in (("binarize", ("right", "left")), ("errors", ("raise", "skip"))):
            if getattr(self, name) not in allowed:
                raise DataError(f"{name}: expected one of {allowed}, got {getattr(self, name)!r}")
        if self.split is not None:
            check_shares(self.split)


def check_shares(split: tuple[float, ...]) -> None:
    """Refuse what are no shares of train, valid and test."""
    if (
        len(split) != 3
        or not all(0 <= share <= 1 for share in split)
        or split[0] == 0
        or abs(sum(split) - 1) > 1e-6
    ):
        raise DataError(
            "split: expected the shares of train, valid and test, which add up to 1, train's "
            f"above 0, got {split}"
        )


def build_data(
    sources: Trees | Mapping[str, Trees],
    out: StrPath,
    options: DataOptions | None = None,
    *,
    processes: int = 1,
    overwrite: bool = False,
) -> Data:
    """Make a dataset from files of trees, or from trees in memory.

    Args:
        sources: of each split (`train`, `valid`, `test`) the files, glob patterns allowed, or the
            trees themselves; sources without a split are `train`.
        out: the folder to make. A finished dataset of the same sources and options is returned as
            it is; one of others is an error unless `overwrite`.
    """
    options = options or DataOptions()
    if processes < 1:
        raise DataError(f"processes: expected at least 1, got {processes}")
    folder = Path(out)
    corpus = _open_sources(sources, options)
    choice = TokenizerChoice.parse(options.tokenizer)
    given = None if choice.folder is None else load_tokenizer(choice.folder)
    rule = _text_rule(options, choice, given)
    key = _build_key(corpus, options, given, rule)
    if not overwrite and (folder / CARD).exists():
        if read_card(folder).get("key") in (key, _build_key(corpus, options, given, None)):
            return load_data(folder)
        raise DataError(
            f"{folder}: holds a dataset of other sources or options; choose another folder, or "
            "replace it with --overwrite (overwrite=True)"
        )
    partial, is_new = folder / ".partial", not folder.exists()
    _start(folder, partial, key)
    try:
        tokenizer, num_trees = _tokenizer(corpus, options, choice, given, rule, partial)
        encoder = _chunk_encoder(tokenizer, options, choice, rule)
        shards = _encode(corpus, options, encoder, partial, processes, num_trees)
        card = _assemble(shards, corpus, options, encoder, partial)
    except PushdownError:  # sources that are wrong fail again, so nothing of them is kept
        shutil.rmtree(folder if is_new else partial)
        raise
    card = {"format_version": FORMAT_VERSION, "key": key, **card}
    _finish(folder, partial, card)
    return load_data(folder)


# ------------------------------------------------------------------ sources


@dataclass
class _Source:
    split: str
    name: str
    trees: list[Tree] | None
    """The trees, where they are in memory; otherwise `name` is a file."""
    sha256: str
    num_trees: int = 0
    skipped: Counter[str] = field(default_factory=Counter)

    def read(self, options: DataOptions) -> Iterator[Tree]:
        self.skipped = Counter()
        if self.trees is not None:
            return iter(self.trees)
        return read_trees(
            self.name,
            format=options.format,
            labels=options.labels,
            errors=options.errors,
            counts=self.skipped,
            constituents=options.constituents,
            nonprojective=options.nonprojective,
            language=options.language,
        )

    def splits(self, options: DataOptions, number: int) -> Iterator[str]:
        """The split of each tree in turn."""
        if options.split is None:
            yield from repeat(self.split)
        else:
            generator = random.Random(f"{options.seed}:{number}")
            run = 1 if options.window is None else TREES_PER_RUN
            while True:
                yield from generator.choices(SPLITS, options.split) * run


def _open_sources(sources: Trees | Mapping[str, Trees], options: DataOptions) -> list[_Source]:
    named = sources if isinstance(sources, Mapping) else {"train": sources}
    if "train" not in named or not named.keys() <= set(SPLITS):
        raise DataError(f"sources: expected train, with valid and test if wanted, got {[*named]}")
    if options.split is not None and len(named) > 1:
        raise DataError(f"split: expected train alone, which is split, got {[*named]}")
    corpus = []
    for split in SPLITS:
        given = named.get(split, [])
        items: list[Any] = [given] if isinstance(given, str | os.PathLike) else list(given)
        if items and isinstance(items[0], Tree):
            digest = hashlib.sha256()
            for tree in items:
                digest.update(repr((tuple(tree.words), tuple(tree.spans))).encode())
                if options.labels:
                    digest.update(repr(tree.labels).encode())
            corpus.append(_Source(split, "trees in memory", items, digest.hexdigest()))
        else:
            for path in chain.from_iterable(map(find_files, items)):
                with open(path, "rb") as file:
                    digest = hashlib.file_digest(file, "sha256")
                corpus.append(_Source(split, path, None, digest.hexdigest()))
        if split in named and not items:
            raise DataError(f"{split}: expected files or trees, got none")
    return corpus


def find_files(pattern: StrPath) -> list[str]:
    """The file of that name, or the files that match it, in the order of their names."""
    path = os.fspath(pattern)
    if os.path.isfile(path):
        return [path]
    found = [name for name in sorted(glob.glob(path, recursive=True)) if os.path.isfile(name)]
    if not found:
        is_folder = os.path.isdir(path)
        problem = f"is a folder; give its files, as '{path}/*'" if is_folder else "no such file"
        raise DataError(f"{path}: {problem}")
    return found


def _build_key(
    corpus: list[_Source],
    options: DataOptions,
    given: PreTrainedTokenizerFast | None,
    rule: TextRule | None,
) -> str:
    """SHA-256 of all that the content follows from; without a rule, as before there were any."""
    described = asdict(options)
    for name in ("labels", "constituents", "nonprojective", "language"):  # younger than the key
        if described[name] == getattr(DataOptions, name):
            del described[name]
    if given is not None:
        described["tokenizer"] = given.backend_tokenizer.to_str()
    contents = [(source.split, source.sha256) for source in corpus]
    parts = [FORMAT_VERSION, described, contents]
    return sha256(json.dumps(parts if rule is None else [*parts, asdict(rule)]))


# ------------------------------------------------------------------ the folder


def _start(folder: Path, partial: Path, key: str) -> None:
    """Keep what an interrupted build of the same key has left, and nothing else."""
    key = f"{SHARD_FORMAT} {key}"
    if folder.exists() and not folder.is_dir():
        raise DataError(f"{folder}: expected a folder, found a file")
    is_ours = (folder / CARD).exists() or partial.exists()
    if folder.exists() and not is_ours and any(folder.iterdir()):
        raise DataError(f"{folder}: expected a new or empty folder, found other files in it")
    manifest = partial / "manifest.json"
    if _read_key(manifest) != key:
        shutil.rmtree(partial, ignore_errors=True)
        (partial / "shards").mkdir(parents=True)
        write_json(manifest, {"key": key})


def _read_key(manifest: Path) -> str | None:
    """The key of an interrupted build; None if there is none that can be read."""
    try:
        found = json.loads(manifest.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found.get("key") if isinstance(found, dict) else None


def _finish(folder: Path, partial: Path, card: dict[str, Any]) -> None:
    """Move the parts into place; the card, which makes a dataset of them, comes last."""
    (folder / CARD).unlink(missing_ok=True)
    for name in ("tokenizer", *SPLITS):
        shutil.rmtree(folder / name, ignore_errors=True)
        if (partial / name).exists():
            os.replace(partial / name, folder / name)
    write_json(folder / CARD, card)
    shutil.rmtree(partial)


# ------------------------------------------------------------------ the steps of a build


def _assigned_trees(
    corpus: list[_Source], options: DataOptions
) -> Iterator[tuple[int, int, str, Tree]]:
    """Every tree with the number of its source, its own number there (from 1), and its split."""
    for number, source in enumerate(corpus):
        splits = source.splits(options, number)
        index = 0
        for index, tree in enumerate(source.read(options), 1):
            yield number, index, next(splits), tree
        source.num_trees = index


def _tokenizer(
    corpus: list[_Source],
    options: DataOptions,
    choice: TokenizerChoice,
    given: PreTrainedTokenizerFast | None,
    rule: TextRule,
    partial: Path,
) -> tuple[PreTrainedTokenizerFast, int | None]:
    """The tokenizer, trained if need be, and the number of trees if they have been counted."""
    num_trees = None
    if not (partial / "tokenizer").exists():
        if given is not None:
            check_keeps_spaces(given, options.tokenizer)
            tokenizer = given
        else:
            tokenizer, num_trees = _train_tokenizer(corpus, options, choice, rule)
        rule.save_in(tokenizer)
        tokenizer.save_pretrained(partial / "tokenizer.new")
        os.replace(partial / "tokenizer.new", partial / "tokenizer")
    return load_tokenizer(partial / "tokenizer"), num_trees


def _train_tokenizer(
    corpus: list[_Source], options: DataOptions, choice: TokenizerChoice, rule: TextRule
) -> tuple[PreTrainedTokenizerFast, int]:
    with progress("Training the tokenizer", None, "trees") as advance:
        num_trees = 0

        def training_words() -> Iterator[list[str]]:
            nonlocal num_trees
            for _, _, split, tree in _assigned_trees(corpus, options):
                num_trees += 1
                if num_trees % TREES_PER_CHUNK == 0:
                    advance(TREES_PER_CHUNK)
                if split == "train" and tree.words:
                    yield list(tree.words)
            advance(num_trees % TREES_PER_CHUNK)

        if choice.vocab_size is None:
            return train_word_vocabulary(training_words(), choice.min_count or 1), num_trees
        return train_bpe(map(rule.surfaces, training_words()), choice.vocab_size), num_trees


def _text_rule(
    options: DataOptions, choice: TokenizerChoice, given: PreTrainedTokenizerFast | None
) -> TextRule:
    """How words become tokens: by the rule of the tokenizer's model, if it comes with one."""
    if choice.kind == "word" or (given is not None and is_word_level(given)):
        if options.detokenize:
            raise DataError("detokenize: the tokens of a word vocabulary are words; keep them")
        return TextRule("tokenized", "word")
    rule = TextRule("detokenized", "sentence")
    if given is not None and (RULE_KEY in given.init_kwargs or _is_of_pushdown_model(choice)):
        rule = text_rule(given)
    if options.detokenize is not None:
        rule = replace(rule, text="detokenized" if options.detokenize else "tokenized")
    return rule


def _is_of_pushdown_model(choice: TokenizerChoice) -> bool:
    """Whether a tokenizer's folder holds a Pushdown model, trained before there were rules."""
    assert choice.folder is not None
    try:
        config = json.loads((choice.folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and config.get("model_type") == "pushdown"


def _chunk_encoder(
    tokenizer: PreTrainedTokenizerFast,
    options: DataOptions,
    choice: TokenizerChoice,
    rule: TextRule,
) -> ChunkEncoder:
    settings = EncoderSettings.of(
        tokenizer,
        allow_unknown=options.allow_unknown or choice.min_count is not None,
        rule=rule,
    )
    lengths = [length for length in (options.window, options.max_length) if length is not None]
    return ChunkEncoder(settings, options.binarize, min(lengths, default=None), options.errors)


@dataclass(frozen=True)
class _ShardFile:
    split: str
    source: int
    path: Path


def _encode(
    corpus: list[_Source],
    options: DataOptions,
    encoder: ChunkEncoder,
    partial: Path,
    processes: int,
    num_trees: int | None,
) -> list[_ShardFile]:
    """Encode all trees into shard files, except those that are there already."""
    files: list[_ShardFile] = []

    def job(source: int, split: str, items: list[tuple[int, Tree]]) -> tuple[Path, Chunk]:
        path = partial / "shards" / f"{split}-{source}-{items[0][0]}.npz"
        files.append(_ShardFile(split, source, path))
        trees = [(tree.words, tree.spans) for _, tree in items]
        labels = [tree.labels for _, tree in items] if options.labels else None
        return path, Chunk(corpus[source].name, [index for index, _ in items], trees, labels)

    def jobs() -> Iterator[tuple[Path, Chunk]]:
        for source, group in groupby(_assigned_trees(corpus, options), key=lambda item: item[0]):
            pending: dict[str, list[tuple[int, Tree]]] = defaultdict(list)
            for _, index, split, tree in group:
                pending[split].append((index, tree))
                if len(pending[split]) == TREES_PER_CHUNK:
                    yield job(source, split, pending.pop(split))
            for split, items in pending.items():
                yield job(source, split, items)

    with progress("Encoding", num_trees, "trees") as advance:
        for count in encode_chunks(encoder, jobs(), processes):
            advance(count)
    return files


def _assemble(
    shards: list[_ShardFile],
    corpus: list[_Source],
    options: DataOptions,
    encoder: ChunkEncoder,
    partial: Path,
) -> dict[str, Any]:
    """Write the examples of each split, and count: the card, but for the build's key."""
    settings = encoder.settings
    skipped_on_reading = sum((source.skipped for source in corpus), Counter[str]())
    splits = {}
    digests = []
    numbers: dict[str, int] = {}
    for split in _wanted_splits(corpus, options):
        files = [shard for shard in shards if shard.split == split]
        tally, longest, labels = _add_up(files)
        if not tally.sentences:
            skipped = tally.skipped + skipped_on_reading
            raise DataError(
                f"{split}: expected at least one usable tree, found none; "
                f"skipped: {dict(skipped) or 'nothing'}"
            )
        if split == "train":
            numbers = {label: number for number, label in enumerate(labels)}
        elif unseen := [label for label in labels if label not in numbers]:
            raise DataError(
                f"{split}: expected labels of the training trees, found {', '.join(unseen)}"
            )
        examples = _examples(files, options.window, settings.bos_id == settings.eos_id, numbers)
        writer = ExampleWriter(
            partial, split, longest=options.window or longest, has_actions=options.labels
        )
        total = tally.sentences if options.window is None else None
        with progress(f"Writing {split}", total, "examples") as advance:
            writer.write(examples, advance)
        digests.append(writer.digest.hexdigest())
        splits[split] = {
            "examples": writer.num_examples,
            "longest_example": writer.longest_example,
            **_description(tally),
        }
    tokenizer = load_tokenizer(partial / "tokenizer")
    return {
        "fingerprint": fingerprint(settings.tokenizer, digests),
        "options": asdict(options),
        "tokenizer": TokenizerChoice.parse(options.tokenizer).kind,
        "vocab_size": vocabulary_size(tokenizer),
        "bos_token_id": settings.bos_id,
        "eos_token_id": settings.eos_id,
        "pad_token_id": tokenizer.pad_token_id,
        "unk_token_id": settings.unknown_id,
        "text": settings.rule.text,
        "unit": settings.rule.unit,
        "window": options.window,
        **({"labels": list(numbers)} if options.labels else {}),
        "sources": [
            {
                "split": source.split,
                "name": source.name,
                "sha256": source.sha256,
                "trees": source.num_trees,
                "skipped": dict(source.skipped),
            }
            for source in corpus
        ],
        "splits": splits,
    }


def _wanted_splits(corpus: list[_Source], options: DataOptions) -> list[str]:
    if options.split is not None:
        return [split for split, share in zip(SPLITS, options.split, strict=True) if share > 0]
    return [split for split in SPLITS if any(source.split == split for source in corpus)]


def _add_up(files: list[_ShardFile]) -> tuple[Tally, int, list[str]]:
    """The counts of all shards, the longest sentence, and the labels."""
    tally, longest = Tally(), 0
    labels: dict[str, None] = {}
    for file in files:
        shard = Shard.load(file.path)
        tally.add(shard.tally)
        longest = max(longest, int(shard.lengths.max(initial=0)))
        labels |= dict.fromkeys(shard.used_labels())
    return tally, longest, list(labels)


def _examples(
    files: list[_ShardFile],
    window: int | None,
    shared_boundary: bool,
    numbers: Mapping[str, int],
) -> Iterator[Sentence]:
    """The examples of a split in the order of the trees; windows never join two sources."""
    for _, group in groupby(files, key=lambda file: file.source):
        sentences = chain.from_iterable(Shard.load(file.path).renumber(numbers) for file in group)
        if window is None:
            yield from sentences
        else:
            yield from pack_windows(sentences, window, shared_boundary=shared_boundary)


def _description(tally: Tally) -> dict[str, Any]:
    return {
        **vars(tally),
        "skipped": dict(sorted(tally.skipped.items())),
        "max_depth": max(tally.depths),
        "max_stack_size": max(tally.stack_sizes),
        "depths": dict(sorted(tally.depths.items())),
        "stack_sizes": dict(sorted(tally.stack_sizes.items())),
    }
