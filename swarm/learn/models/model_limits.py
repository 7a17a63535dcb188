"""Limits on a model's folder: its config and its tokenizer are tried in a process of their own, within limits
of time and memory, before this process reads them.

    config.json --tried, in a fork--> bytes of the model that it asks for, or BeyondLimits
    tokenizer files --tokenizer_tried, in a fork--> nothing, or BeyondLimits

A config is a program that allocates: layers, rows and tables are as many as its numbers say. A tokenizer is
one that writes: each of its rules may make a text longer, and the next one works on that, so that a few rules
make a disk full of five tokens. Invariant: n tokens are at most n * LONGEST * GROWTH characters. Not handled
here: chat templates (swarm.learn.models.template_limits), an expression that takes its time for a text of the
run.
"""

from __future__ import annotations

import base64
import json
import math
import os
import resource
import signal
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from swarm.processes.process import Child, ChildLost, Ended, Pipe
from swarm.processes.start import set_name

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SECONDS = 30.0
"""Of processor time: the largest tokenizers known load in 3 s, and are converted from other files in 15 s."""

PATIENCE = 300.0
"""Seconds for that on a machine that is as busy as it can be."""

MEMORY = 2 << 30
"""Bytes of address space beyond those of the process that forks: four times the largest need."""

LONGEST = 1024
"""Characters of a token, and of a rule's replacement text: the longest known are some hundred blanks in a
row."""

PATTERN = 16 << 10
"""Characters of a regular expression: those that divide texts into words have some hundred."""

RULES = 64
"""Steps of one part of a tokenizer: none known has more than a dozen."""

GROWTH = 64
"""Times as long a text may become by all rules together: those that are known add a blank or an end."""

SAYS = 500
"""Characters of a library's message."""

EXTRA = 64
"""Ids that a tokenizer may add to those of a text: its begin, its end and roles."""

ROOM = 64 << 20
"""Bytes that a model may have beyond twice its weights: tables of positions, masks."""

NAME = "model-trial"
"""Of the process, for `ps`."""

STEPS = ("normalizers", "pretokenizers", "processors", "decoders")
"""Where a sequence of a tokenizer's parts has its steps."""

WORDS = "The 12 quick brown foxes, jumping over 3.5 lazy dogs! x = f(a, b)\n\n\tÄpfel — 東京 🙂"
PROBES = (*(letter * 256 + "!" for letter in ("a", "1", " ", "\n", "-", "ä", "東")), "1", WORDS, WORDS * 16)
"""Texts that any tokenizer reads in an instant; of some patterns a row of the same letter takes for ever."""


class BeyondLimits(ValueError):
    """A folder asks for more than it may. Continues a sentence on its config or tokenizer."""


class Broken(ValueError):
    """Its files are none that the libraries read. What they say of them."""


class _Answer(msgspec.Struct, frozen=True, array_like=True):
    size: int = 0
    refused: str = ""
    broken: str = ""


def tried(folder: Path) -> int:
    """Bytes in bfloat16 of the model that the config in `folder` asks for, with its tables. Raises
    BeyondLimits and Broken."""
    return _tried(_model_size, folder, *_stamp(folder / "config.json"))


def tokenizer_tried(folder: Path) -> None:
    """Raises BeyondLimits where the tokenizer in `folder` breaks a limit, Broken where it cannot be
    loaded."""
    files = sorted(path for path in folder.iterdir() if path.suffix in (".json", ".model", ".txt"))
    _tried(_try_tokenizer, folder, *(number for path in files for number in _stamp(path)))


def check_size(folder: Path, weights: int) -> None:
    """Raises BeyondLimits where the config in `folder` asks for a model that is larger than these bytes of
    weights may be, and Broken."""
    if (asked := tried(folder)) > 2 * weights + ROOM:
        raise BeyondLimits(
            f"asks for a model of {asked / 1e9:.3g} GB, and the weights have {weights / 1e9:.3g} GB, so that"
            " it is not theirs"
        )


def _stamp(path: Path) -> tuple[int, int]:
    try:
        stat = path.stat()
    except OSError:
        return 0, 0
    return stat.st_mtime_ns, stat.st_size


@lru_cache(64)
def _tried(function: Callable[[Path], int], folder: Path, *stamps: int) -> int:
    """The function's result for the folder, computed once for the same files. Raises BeyondLimits and
    Broken."""
    import transformers.models.auto.modeling_auto  # noqa: F401 (the fork has it then)

    child = Child(lambda: _answer(function, folder))
    try:
        answer = msgspec.msgpack.decode(child.receive(PATIENCE), type=_Answer)
    except ChildLost as lost:
        if isinstance(lost, Ended) and lost.code == -signal.SIGPROF:
            raise BeyondLimits(f"needs more than {SECONDS:g} s of processor time to be loaded") from None
        if isinstance(lost, Ended) and lost.code in (-signal.SIGABRT, -signal.SIGSEGV, -signal.SIGKILL):
            raise BeyondLimits(f"needs more than {MEMORY >> 20} MiB to be loaded ({lost.how})") from None
        raise BeyondLimits(f"cannot be loaded: the process that tried it {lost}") from None
    finally:
        child.end()
    if answer.refused:
        raise BeyondLimits(answer.refused)
    if answer.broken:
        raise Broken(answer.broken)
    return answer.size


def _answer(function: Callable[[Path], int], folder: Path) -> None:
    """The child's side."""
    set_name(NAME)
    os.closerange(3, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # threads do not survive a fork
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    pipe = Pipe()
    try:
        answer = _Answer(function(folder))
    except MemoryError:
        answer = _Answer(refused=f"needs more than {MEMORY >> 20} MiB to be loaded")
    except BeyondLimits as refused:
        answer = _Answer(refused=str(refused))
    except BaseException as error:  # whatever the files make the libraries do, panics of Rust too
        answer = _Answer(broken=(str(error).strip() or type(error).__name__).splitlines()[0][:SAYS])
    pipe.send(msgspec.msgpack.encode(answer))


# --- the config ---------------------------------------------------------------------------------------------


def _model_size(folder: Path) -> int:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    model.tie_weights()
    tables = sum(table.numel() * table.element_size() for table in model.buffers())
    return min(tables + 2 * sum(weight.numel() for weight in model.parameters()), 1 << 62)


# --- the tokenizer ------------------------------------------------------------------------------------------


def _try_tokenizer(folder: Path) -> int:
    from transformers import AutoTokenizer

    if (path := folder / "tokenizer.json").exists():
        check_parts(json.loads(path.read_text()))
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    if (backend := getattr(tokenizer, "backend_tokenizer", None)) is not None:
        check_parts(json.loads(backend.to_str()))
    for token in tokenizer.get_vocab():
        _check_length(token, LONGEST, "a token")
    for probe in PROBES:
        _check_text(tokenizer, probe)
    return 0


def _check_text(tokenizer: PreTrainedTokenizerBase, text: str) -> None:
    ids = tokenizer(text).input_ids
    if len(ids) > len(text.encode()) * GROWTH + EXTRA:
        raise BeyondLimits(f"makes {len(ids)} tokens of a text of {len(text)} characters")
    if len(written := tokenizer.decode(ids)) > (len(ids) + 1) * LONGEST * GROWTH:
        raise BeyondLimits(f"writes {len(written)} characters for {len(ids)} tokens")


def check_parts(parts: Mapping[str, Any]) -> None:
    """Raises BeyondLimits where a tokenizer.json has rules that make texts much longer, or one that is
    longer than any real rule."""
    for name in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        steps = [*_steps(parts.get(name))]
        if len(steps) > RULES:
            raise BeyondLimits(f"has a {name} of {len(steps)} steps, and {RULES} are the most")
        for step in steps:
            _check_step(step, name)
        growth = math.prod(map(_growth, steps))
        if growth > GROWTH:
            raise BeyondLimits(
                f"has a {name} that makes a text up to {growth:.3g} times as long, and {GROWTH} times is the"
                " most"
            )
    added = parts.get("added_tokens") or []
    for token in (*added, *_scalars(parts.get("model"))):
        _check_length(token.get("content", "") if isinstance(token, dict) else token, LONGEST, "a token")


def _scalars(model: Any) -> Iterator[Any]:
    """A model's values beside its vocabulary, for example the end of a word."""
    if isinstance(model, dict):
        yield from (value for value in model.values() if not isinstance(value, dict | list))


def _steps(part: Any) -> Iterator[Mapping[str, Any]]:
    """A part's steps, of sequences inside of sequences too."""
    left = [part]
    while left:
        one = left.pop()
        if not isinstance(one, dict):
            continue
        inner = [one[key] for key in STEPS if isinstance(one.get(key), list)]
        if not inner:
            yield one
        for steps in inner:
            if len(steps) > RULES:
                raise BeyondLimits(f"has a sequence of {len(steps)} steps, and {RULES} are the most")
            left += steps


def _check_step(step: Mapping[str, Any], name: str) -> None:
    kind = step.get("type")
    for key, value in step.items():
        if key == "pattern":
            pattern = value if isinstance(value, dict) else {}
            if name == "decoder" and "Regex" in pattern:
                raise BeyondLimits("has a decoder with a regular expression, whose time no text bounds")
            for text in pattern.values():
                _check_length(text, PATTERN, f"a pattern of its {name}")
        elif key != "precompiled_charsmap":
            _check_texts(value, f"a text of its {name}'s {kind}")


def _check_texts(value: Any, what: str) -> None:
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, str):
            _check_length(one, LONGEST, what)
        elif isinstance(one, dict):
            left += [*one.keys(), *one.values()]
        elif isinstance(one, list):
            left += one


def _check_length(text: Any, most: int, what: str) -> None:
    if isinstance(text, str) and len(text) > most:
        raise BeyondLimits(f"has {what} of {len(text)} characters, and {most} are the most")


def _growth(step: Mapping[str, Any]) -> float:
    """Times as long as before a text may be after this step."""
    if step.get("type") == "Precompiled":
        return max(1.0, _longest_piece(step.get("precompiled_charsmap")))
    if step.get("type") != "Replace":
        return 1.0
    pattern, content = step.get("pattern"), step.get("content")
    said, put = pattern if isinstance(pattern, dict) else {}, len(content) if isinstance(content, str) else 0
    whole = said.get("String")
    if isinstance(whole, str) and whole:
        return max(1.0, put / len(whole))
    return 1.0 + put  # between all letters, where an expression fits on nothing


def _longest_piece(charsmap: Any) -> int:
    """Letters that a table of sentencepiece puts in the place of one at most: four bytes of the size of its
    trie, the trie, and the pieces, each with a zero at its end."""
    data = base64.b64decode(charsmap) if isinstance(charsmap, str) else b""
    pieces = data[4 + int.from_bytes(data[:4], "little") :].split(b"\0")
    return max(len(piece.decode(errors="replace")) for piece in pieces)
