"""The vocabulary of the authors' released model, read from its pickle without unpickling it.

`vocab.pkl` is a pickled object of the class `vocabulary.WordVocabulary` whose attributes are
dictionaries, lists, strings, integers, booleans and None. A pickle is a program for a stack
machine that may call anything. :func:`read_vocabulary` runs only the part of it that builds such
values: it imports nothing, calls nothing and makes no object, and any other instruction, class or
value is an error that says where it stands.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pushdown_lm.errors import PushdownError

EXPECTED_CLASS = ("vocabulary", "WordVocabulary")
END_WORD, PADDING = "<eos>", "<pad>"


class VocabularyError(PushdownError):
    """A file that is not the vocabulary it should be; the message names it and says why."""


class _Class:
    """Stands for the expected class while its object is built."""


class _Object:
    """The object: nothing but the attributes that the pickle gives it."""

    def __init__(self) -> None:
        self.attributes: dict[Any, Any] = {}


_MARK = object()


def read_vocabulary(path: str | Path) -> dict[str, int]:
    """The ids of the words: 0 for `<pad>`, then one after another, `<eos>` among them."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise VocabularyError(f"{path}: {error.strerror}") from None
    machine = _Machine(path)
    try:
        for opcode, argument, position in pickletools.genops(data):
            machine.run(opcode.name, argument, position or 0)
    except VocabularyError:
        raise
    except Exception as error:  # of whatever kind bytes that are no pickle make it
        detail = " ".join(str(error).split())[:200] or type(error).__name__
        raise VocabularyError(f"{path}: not a pickled vocabulary: {detail}") from None
    if not isinstance(machine.result, _Object):
        raise VocabularyError(f"{path}: expected a pickled {'.'.join(EXPECTED_CLASS)}, found none")
    return _check_words(machine.result.attributes, path)


def _check_words(attributes: dict[Any, Any], path: str | Path) -> dict[str, int]:
    words, inverse = attributes.get("words"), attributes.get("inv_words")
    if not isinstance(words, dict) or not isinstance(inverse, dict):
        raise VocabularyError(f"{path}: expected the dictionaries words and inv_words")
    for word, number in words.items():
        if type(word) is not str or type(number) is not int:
            raise VocabularyError(f"{path}: words: expected words with ids, found {word!r:.60}")
    if sorted(words.values()) != list(range(len(words))):
        raise VocabularyError(f"{path}: words: expected the ids 0 to {len(words) - 1}, each once")
    if inverse != {number: word for word, number in words.items()}:
        raise VocabularyError(f"{path}: inv_words: expected the inverse of words")
    for word in (PADDING, END_WORD):
        if word not in words:
            raise VocabularyError(f"{path}: words: expected {word} among them")
    return words


class _Machine:
    """The instructions of a pickle that build plain values."""

    def __init__(self, path: str | Path) -> None:
        self.path = path
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.result: Any = None

    def run(self, name: str, argument: Any, position: int) -> None:
        if name in _VALUES:
            self.stack.append(argument)
        elif (make := _NEW_VALUES.get(name)) is not None:
            self.stack.append(make())
        elif (instruction := _INSTRUCTIONS.get(name)) is not None:
            instruction(self, argument)
        elif name not in ("PROTO", "FRAME"):
            raise VocabularyError(
                f"{self.path}: byte {position}: a vocabulary has no need of the pickle "
                f"instruction {name}, which may run code; the file was not read"
            )

    def class_(self, module_and_name: str) -> None:
        module, _, name = module_and_name.partition(" ")
        self._push_class(module, name)

    def class_from_stack(self, _: Any) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        self._push_class(module, name)

    def _push_class(self, module: Any, name: Any) -> None:
        if (module, name) != EXPECTED_CLASS:
            raise VocabularyError(
                f"{self.path}: expected the class {'.'.join(EXPECTED_CLASS)} and no other, found "
                f"{module!s:.60}.{name!s:.60}; the file was not read"
            )
        self.stack.append(_Class())

    def new_object(self, _: Any) -> None:
        arguments, kind = self.stack.pop(), self.stack.pop()
        if not isinstance(kind, _Class) or arguments != ():
            raise VocabularyError(f"{self.path}: expected an object without arguments")
        self.stack.append(_Object())

    def set_attributes(self, _: Any) -> None:
        attributes, target = self.stack.pop(), self.stack[-1]
        if not isinstance(target, _Object) or not isinstance(attributes, dict):
            raise VocabularyError(f"{self.path}: expected attributes of an object")
        target.attributes.update(attributes)

    def set_item(self, _: Any) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._fill(key, value)

    def set_items(self, _: Any) -> None:
        items = self._since_mark()
        self._fill(*items)

    def _fill(self, *items: Any) -> None:
        target = self.stack[-1]
        if not isinstance(target, dict) or len(items) % 2:
            raise VocabularyError(f"{self.path}: expected keys and values of a dictionary")
        target.update(zip(items[::2], items[1::2], strict=True))

    def append(self, _: Any) -> None:
        self._extend([self.stack.pop()])

    def append_all(self, _: Any) -> None:
        self._extend(self._since_mark())

    def _extend(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, list):
            raise VocabularyError(f"{self.path}: expected elements of a list")
        target.extend(items)

    def _since_mark(self) -> list[Any]:
        start = len(self.stack) - 1
        while self.stack[start] is not _MARK:
            start -= 1
        items = self.stack[start + 1 :]
        del self.stack[start:]
        return items

    def memoize(self, _: Any) -> None:
        self.memo[len(self.memo)] = self.stack[-1]

    def put(self, number: int) -> None:
        self.memo[int(number)] = self.stack[-1]

    def get(self, number: int) -> None:
        self.stack.append(self.memo[int(number)])

    def stop(self, _: Any) -> None:
        self.result = self.stack.pop()


_VALUES = frozenset(
    [
        *("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
        *("INT", "LONG", "LONG1", "LONG4", "BININT", "BININT1", "BININT2"),
    ]
)
"""Instructions whose argument is the value."""
_NEW_VALUES: dict[str, Callable[[], Any]] = {
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "MARK": lambda: _MARK,
}
_INSTRUCTIONS: dict[str, Callable[[_Machine, Any], None]] = {
    "GLOBAL": _Machine.class_,
    "STACK_GLOBAL": _Machine.class_from_stack,
    "NEWOBJ": _Machine.new_object,
    "BUILD": _Machine.set_attributes,
    "SETITEM": _Machine.set_item,
    "SETITEMS": _Machine.set_items,
    "APPEND": _Machine.append,
    "APPENDS": _Machine.append_all,
    "MEMOIZE": _Machine.memoize,
    "PUT": _Machine.put,
    "BINPUT": _Machine.put,
    "LONG_BINPUT": _Machine.put,
    "GET": _Machine.get,
    "BINGET": _Machine.get,
    "LONG_BINGET": _Machine.get,
    "STOP": _Machine.stop,
}
