"""A parser as a program: right-branching brackets or CoNLL-U, with faults on demand.

    python toy_parser.py [--conllu] [--slow SECONDS] [--log FILE] [--once FILE]

A word of the sentence asks for a fault: DIE, HANG, SKIP (no answer), EXTRA (one word too many),
NONE (a line of text instead of a tree), BROKEN (a bracket too few), KILL (the process that started
this one dies, once: --once FILE).
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import time


def brackets(words: list[str]) -> str:
    escaped = [word.replace("(", "-LRB-").replace(")", "-RRB-") for word in words]
    *first, last = escaped
    return "".join(f"(X {word} " for word in first) + f"(X {last})" + ")" * len(first)


def conllu(words: list[str]) -> str:
    """Every word depends on the first."""
    rows = [
        f"{number}\t{word}\t_\tX\t_\t_\t{int(number > 1)}\t{'dep' if number > 1 else 'root'}\t_\t_"
        for number, word in enumerate(words, 1)
    ]
    return "\n".join([*rows, ""])


def main(arguments: list[str]) -> None:
    write = conllu if "--conllu" in arguments else brackets
    options = dict(itertools.pairwise(arguments))
    for line in sys.stdin:
        words = line.split()
        time.sleep(float(options.get("--slow", 0)))
        if "DIE" in words:
            print("out of luck", file=sys.stderr, flush=True)
            os._exit(3)
        if "HANG" in words:
            time.sleep(3600)
        if "--log" in options:
            with open(options["--log"], "a", encoding="utf-8") as file:
                file.write(line)
        if "KILL" in words and not os.path.exists(options["--once"]):
            with open(options["--once"], "w", encoding="utf-8"):
                os.kill(os.getppid(), signal.SIGKILL)
        if "SKIP" in words:
            continue
        answer = write([*words, "word"] if "EXTRA" in words else words)
        answer = "could not parse" if "NONE" in words else answer
        print(answer[:-1] if "BROKEN" in words else answer, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
