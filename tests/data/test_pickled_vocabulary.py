"""The reader of pickled vocabularies: the expected object, and nothing else."""

from __future__ import annotations

import io
import os
import pickle
import subprocess
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pushdown_lm.data.pickled_vocabulary import VocabularyError, read_vocabulary
from tests.published_checkpoint import pickled_vocabulary

WORDS = {"<pad>": 0, "'s": 1, "<eos>": 2, "Ġdog": 3}


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_reads_the_words(protocol: int, tmp_path: Path) -> None:
    many = WORDS | {f"Ġword{number}": number for number in range(4, 3000)}
    for words in (WORDS, many):
        (tmp_path / "vocab.pkl").write_bytes(pickled_vocabulary(words, protocol))
        assert read_vocabulary(tmp_path / "vocab.pkl") == words


class Calls:
    """Pickles as a call, which plain unpickling makes."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def persistent() -> bytes:
    class Pickler(pickle.Pickler):
        def persistent_id(self, thing: Any) -> Any:
            return "elsewhere" if thing == "x" else None

    stream = io.BytesIO()
    Pickler(stream, 4).dump({"words": "x"})
    return stream.getvalue()


def hostile(mark: Path) -> dict[str, bytes]:
    """Pickles that would make the file ``mark``, or are otherwise not a vocabulary."""
    touch = Calls(os.system, f"touch {mark}")
    calls = {
        "os.system": touch,
        "subprocess": Calls(subprocess.check_call, ["touch", str(mark)]),
        "eval": Calls(eval, f"open({str(mark)!r}, 'w')"),
        "open": Calls(open, str(mark), "w"),
        "ordered": OrderedDict(WORDS),
        "set": {"words"},
        "float": {"words": 1.5},
        "bytes": {"words": b"x"},
    }
    files = {name: pickle.dumps(value, 4) for name, value in calls.items()}
    for protocol in (0, 1, 2):
        files[f"os.system, protocol {protocol}"] = pickle.dumps(touch, protocol)
    files["inside words"] = pickled_vocabulary({**WORDS, touch: 4})  # type: ignore[dict-item]
    files["another attribute"] = pickled_vocabulary(WORDS, to_save=touch)
    files["opcode INST"] = b"(S'touch %s'\nios\nsystem\n." % str(mark).encode()
    files["opcode OBJ"] = b"(cos\nsystem\nS'touch %s'\no." % str(mark).encode()
    files["expected class is called"] = b"cvocabulary\nWordVocabulary\n)R."
    files["object of the class's name"] = b"cvocabulary\nWordVocabulary.__init__\n)\x81}b."
    files["extension registry"] = b"\x80\x02\x82\x01."
    files["persistent id"] = persistent()
    return files


NAMES = sorted(hostile(Path("mark")))


@pytest.mark.parametrize("name", NAMES)
def test_refuses_what_may_run_code(name: str, tmp_path: Path) -> None:
    mark, path = tmp_path / "mark", tmp_path / "vocab.pkl"
    path.write_bytes(hostile(mark)[name])
    with pytest.raises(VocabularyError, match=r"vocab\.pkl: "):
        read_vocabulary(path)
    assert not mark.exists()


def test_messages_name_class_and_instruction(tmp_path: Path) -> None:
    path = tmp_path / "vocab.pkl"
    path.write_bytes(pickle.dumps(Calls(os.system, "true"), 4))
    with pytest.raises(VocabularyError, match=r"vocabulary\.WordVocabulary and no other, found p"):
        read_vocabulary(path)
    path.write_bytes(pickle.dumps(1.5, 4))
    with pytest.raises(VocabularyError, match=r"byte 11: a vocabulary has no need of .* BINFLOAT"):
        read_vocabulary(path)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"words": []}, "expected the dictionaries words and inv_words"),
        ({"words": {"a": "b"}}, "expected words with ids, found 'a'"),
        ({"words": {"<pad>": 0, "<eos>": 2}}, "expected the ids 0 to 1, each once"),
        ({"inv_words": {}}, "expected the inverse of words"),
        ({"words": {"<pad>": 0}, "inv_words": {0: "<pad>"}}, "expected <eos> among them"),
    ],
)
def test_refuses_other_contents(attributes: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "vocab.pkl"
    path.write_bytes(pickled_vocabulary(WORDS, **attributes))
    with pytest.raises(VocabularyError, match=message):
        read_vocabulary(path)


def test_refuses_other_objects(tmp_path: Path) -> None:
    with pytest.raises(VocabularyError, match="absent: No such file"):
        read_vocabulary(tmp_path / "absent")
    (tmp_path / "vocab.pkl").write_bytes(pickle.dumps(WORDS))
    with pytest.raises(VocabularyError, match=r"a pickled vocabulary\.WordVocabulary"):
        read_vocabulary(tmp_path / "vocab.pkl")


@given(data=st.data())
@settings(max_examples=200)
def test_damaged_files_are_refused_or_read(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Bytes changed, left out or put in: an error of one kind, or the words of some vocabulary."""
    whole = bytearray(pickled_vocabulary(WORDS, data.draw(st.sampled_from([2, 4]))))
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(whole) - 1))
        end = data.draw(st.integers(start, min(len(whole), start + 4)))
        whole[start:end] = data.draw(st.binary(max_size=4))
        if not whole:
            break
    path = tmp_path_factory.getbasetemp() / "damaged.pkl"
    path.write_bytes(whole)
    try:
        words = read_vocabulary(path)
    except VocabularyError:
        return
    assert sorted(words.values()) == list(range(len(words)))
