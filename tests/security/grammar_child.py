"""Run cases of grammar_cases.py through a model's grammars, in a process that may crash.

    python -m security.grammar_child SEED FIRST LAST     random cases
    python -m security.grammar_child -                   cases from stdin, a JSON list

It prints the number of each case before running it; afterwards the outcome, the seconds of CPU
time, and the memory of the process in MB.
"""

from __future__ import annotations

import json
import random
import re
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from security.grammar_cases import case

from zinc.core.errors import RequestError
from zinc.engine.load.files import EMBEDDED_MODEL
from zinc.engine.structured import Grammars
from zinc.formats.gguf import GGUFFile
from zinc.tokenizer import Tokenizer

MEMORY_BYTES = 3 << 30
N_TOKENS = 60


def walk(grammars: Grammars, kind: Any, source: Any, tokenizer: Tokenizer) -> str:
    """Return the outcome of a case: refused, followed, whole, or wrong with the text."""
    try:
        answer = grammars.constraint(kind, source).start()
    except RequestError:
        return "refused"
    rng, tokens = random.Random(1), []
    ends = tokenizer.eog_ids
    for _ in range(N_TOKENS):
        if answer.finished:
            break
        try:
            allowed = np.flatnonzero(np.unpackbits(answer.mask().view(np.uint8), bitorder="little"))
            assert len(allowed), "nothing is allowed"
            token = next((int(t) for t in allowed if int(t) in ends), int(rng.choice(allowed)))
            answer.accept(token)
        except RequestError as error:
            return f"stopped: {error.why}"
        if token in ends:
            break
        tokens.append(token)
    else:
        return "followed"
    if kind == "json_schema":
        return _judged(source, tokenizer.decode(tokens))
    return "whole"


def _judged(source: Any, text: str) -> str:
    """Check a complete answer against the schema with the jsonschema package."""
    import jsonschema
    import referencing

    schema = json.loads(source) if isinstance(source, str) else source
    spelled = json.dumps(schema)
    if re.search(r"NaN|Infinity|\"(pattern|patternProperties|\$schema|\$id)\"", spelled):
        return "whole"  # the package uses Python's regular expressions, or another draft
    try:
        value = json.loads(text)
        checker = jsonschema.Draft202012Validator(schema, registry=referencing.Registry())
        found = next(checker.iter_errors(value), None)
    except json.JSONDecodeError:
        return f"wrong: {text[:200]}"
    except Exception:  # limits of the package
        return "whole"
    if found is not None and found.validator == "multipleOf":
        return "whole"  # the package divides floating-point numbers
    return "whole" if found is None else f"wrong: {text[:200]} does not follow {found.validator}"


def cases(arguments: list[str]) -> Iterator[tuple[int, Any, Any]]:
    if arguments == ["-"]:
        yield from ((i, *each) for i, each in enumerate(json.load(sys.stdin)))
        return
    seed, first, last = map(int, arguments)
    yield from ((i, *case(seed, i)) for i in range(first, last))


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    file = GGUFFile.open(EMBEDDED_MODEL)
    tokenizer = Tokenizer.from_metadata(dict(file.metadata), "demo")
    grammars = Grammars(tokenizer)
    for i, kind, source in cases(sys.argv[1:]):
        print(i, flush=True)
        start = time.process_time()
        ended = walk(grammars, kind, source, tokenizer)
        took = time.process_time() - start
        print(json.dumps([i, ended, round(took, 3), peak_mb()]), flush=True)


def peak_mb() -> int:
    """Return the peak of resident memory in MB. `ru_maxrss` would include that of the parent."""
    status = Path("/proc/self/status").read_text()
    found = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
    assert found is not None
    return int(found[1]) >> 10


if __name__ == "__main__":
    main()
