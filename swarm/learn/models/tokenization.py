"""Tokenizer, chat template and end tokens of a run, the same for learners and samplers.

    Task --render--> str --encode--> ids --(engine)--> ids --decode--> str

Every peer of a run makes this from the same files and settings, so that learners and samplers have the same
ids. A rendered prompt already has the special tokens that its chat template writes, and gets no others;
without a template the tokenizer adds its own.

A template's output depends on the conversation and the run's settings alone: one that asks for the date gets
`run.model.date` at midnight. A new run sets it where its template asks (`asks_date`); for a run of an older
version, which has none, it is the clock of each peer.

Vocabulary padding: a model may have more embedding rows than its tokenizer has tokens. Nothing is masked: the
distribution is the softmax over all rows, here, in vLLM and in a server, since each of them computes that by
default, and two different masks would be two policies. A row without a token may be sampled, is admitted, and
decodes to an empty text; its reward teaches the model not to.
"""

from __future__ import annotations

import datetime
import inspect
import re
import reprlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from swarm.frames.grammar import nearest
from swarm.learn.models.pretrained import ModelError, config_of, first_line, load_tokenizer
from swarm.learn.models.template_limits import ChatTemplate, Overrun, Turns, Unwritten, Write
from swarm.settings.config import Model, Run
from swarm.types import Message, Task

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerBase

CLOCK = "strftime_now"
"""What transformers calls the clock that templates have: without this name in it none reads it."""

OURS = ("messages", "add_generation_prompt", "continue_final_message", CLOCK)
"""Variables of a template that no option sets."""

SPARE = 64
"""Bytes for the tokens that a tokenizer puts around a text."""

DEFAULTS = Model()
PANIC = "PanicException"
"""Name of the exception of tokenizers' Rust, for example where an expression takes too long: it is no
Exception."""

PROBE = (Message(role="user", content="1+1="),)
"""A conversation that every chat template must be able to write."""


class Tokenization:
    """Tokenizer, chat template and end tokens of a run; `load` makes it from a model's folder."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        vocabulary: int,
        ends: Sequence[int] = (),
        settings: Model = DEFAULTS,
        system: str = "",
    ) -> None:
        """`vocabulary`: rows of the model's embedding. `ends`: ids that end a completion beside the
        tokenizer's own end token. `settings` and `system` (the system message) are the run's.

        Raises ModelError when the tokenizer has no end token, is of another model, or does not support the
        template's settings.
        """
        self.tokenizer = tokenizer
        self.vocabulary = vocabulary
        """Rows of the model's embedding: every id is below."""
        if tokenizer.eos_token_id is None and not ends:
            raise ModelError(
                f"the tokenizer in {_where(tokenizer)} has no end token: completions could not end; set"
                " eos_token in its config"
            )
        own = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
        self.ends = tuple(sorted({*own, *ends}))
        """Ids that end a completion: the first one sampled ends it."""
        self._system = system
        if settings.template == "on" and tokenizer.chat_template is None:
            raise ModelError(
                f"the tokenizer in {_where(tokenizer)} has no chat template, and the run's model.template is"
                " on: set it to auto or off, or take the chat variant of the model"
            )
        self.templated = settings.template != "off" and tokenizer.chat_template is not None
        """Prompts go through the chat template."""
        self._check_options(settings)
        self._template = ChatTemplate(_writes(tokenizer, settings), _where(tokenizer))
        self._known = len(tokenizer)
        self._backend = _backend(tokenizer)
        self._check()

    def render(self, task: Task) -> str:
        """The text that the model reads. Raises as `render_all`."""
        return self.render_all([task])[0]

    def render_all(self, tasks: Sequence[Task]) -> list[str]:
        """The text of each task. Raises ModelError for a conversation that its template cannot write, and
        Overrun where it needs more than it may (swarm.learn.models.template_limits)."""
        if self.templated:
            return self._written(
                [task.messages or (Message(role="user", content=task.prompt),) for task in tasks]
            )
        for task in tasks:
            if task.messages:
                raise ModelError(
                    f"task {task.index} of {task.environment} is a conversation, and {self._why_not()}: "
                    "take a model with a chat template, or a data set with plain prompts"
                )
        return [task.prompt for task in tasks]

    def encode(self, prompts: Sequence[str]) -> list[list[int]]:
        """Ids of rendered prompts, at least one each and all below `vocabulary`. Raises ModelError where the
        tokenizer gives up on one."""
        try:
            rows = self.tokenizer(list(prompts), add_special_tokens=not self.templated).input_ids
        except BaseException as error:
            if type(error).__name__ != PANIC:
                raise
            raise ModelError(
                f"the tokenizer in {_where(self.tokenizer)} gives up on one of {len(prompts)} prompts"
                f" ({first_line(error)}): shorten the task's prompts, or take another model"
            ) from None
        # A tokenizer may know tokens that the text model has no row for (pictures, in Gemma 3): they are
        # dropped.
        kept = [
            row if max(row, default=0) < self.vocabulary else [i for i in row if i < self.vocabulary]
            for row in rows
        ]
        return [row or [self._first()] for row in kept]

    def fits(self, tasks: Sequence[Task], room: int) -> list[bool]:
        """Whether each prompt has `room` tokens or fewer. Raises ModelError for one with a special token that
        the model has no row for: `encode` would drop it."""
        for task in tasks:
            self._check_rows(task)
        return [self._bytes(task) <= room or self._length(task) <= room for task in tasks]

    def decode(self, tokens: Sequence[int]) -> str:
        """Text without special tokens; ids that belong to no token are dropped."""
        return self.decode_batch([tokens])[0]

    def decode_batch(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """The text of each row, as `decode` gives it."""
        if self._backend is not None:
            return self._backend.decode_batch(rows, skip_special_tokens=True)
        known = [[token for token in row if token < self._known] for row in rows]
        return [
            self.tokenizer.decode(row, skip_special_tokens=True, clean_up_tokenization_spaces=False)
            for row in known
        ]

    def _written(self, conversations: Sequence[Sequence[Message]]) -> list[str]:
        asked = [self._turns(messages) for messages in conversations]
        try:
            return self._template.write([(turns, turns[-1]["role"] == "assistant") for turns in asked])
        except Unwritten as error:
            roles = ", ".join(turn["role"] for turn in asked[error.index])
            raise ModelError(
                f"the chat template in {_where(self.tokenizer)} cannot write a conversation of {roles}"
                f" ({error}): leave run.task.system empty if it takes no system message, or set"
                " run.model.template to off"
            ) from error

    def _turns(self, messages: Sequence[Message]) -> list[dict[str, str]]:
        turns = [{"role": message.role, "content": message.content} for message in messages]
        if self._system and turns[0]["role"] != "system":
            turns.insert(0, {"role": "system", "content": self._system})
        return turns

    def _check(self) -> None:
        """Raise ModelError unless every id that text, template or end can give has a row in the model."""
        added = self.tokenizer.added_tokens_decoder
        special = {i for i, token in added.items() if token.special}
        needed = {i for i in self.tokenizer.get_vocab().values() if i not in special} | set(self.ends)
        self._rowless = [str(added[i]) for i in sorted(special) if i >= self.vocabulary]
        """Special tokens of another use, for example pictures in Gemma 3."""
        self._frame = SPARE
        """Bytes beside each message at most."""
        if self.templated:
            self._frame += len((probed := self._probed()).encode())
            needed |= set(self.tokenizer(probed, add_special_tokens=False).input_ids)
        if (last := max(needed)) >= self.vocabulary:
            raise ModelError(
                f"the tokenizer in {_where(self.tokenizer)} gives ids up to {last}, the model has"
                f" {self.vocabulary} rows: take both from one model, or call resize_token_embeddings on the"
                " model and save it again"
            )

    def _check_rows(self, task: Task) -> None:
        for text in _contents(task):
            if (token := next((token for token in self._rowless if token in text), None)) is not None:
                raise ModelError(
                    f"a prompt has the special token {token!r} ({reprlib.repr(text)}), and the model has no"
                    f" row for it: its {self.vocabulary} rows end below; take it out of the data, or call"
                    " resize_token_embeddings on the model and save it again"
                )

    def _bytes(self, task: Task) -> int:
        """No fewer than the prompt has tokens, since each is a byte or more; without asking the tokenizer."""
        contents = _contents(task)
        return sum(len(text.encode()) for text in contents) + (len(contents) + 1) * self._frame

    def _length(self, task: Task) -> int:
        try:
            text = self.render(task)
        except (ModelError, Overrun):  # it is given without its template, or left out
            text = "\n\n".join(_contents(task))
        return len(self.encode([text])[0])

    def _check_options(self, settings: Model) -> None:
        """Raise ModelError for options that change nothing: a misspelt one would go unnoticed."""
        if not settings.template_options:
            return
        if not self.templated:
            raise ModelError(
                f"run.model.template_options are of a chat template, and {self._why_not()}: leave them out"
            )
        template = self.tokenizer.get_chat_template()
        taken = {*OURS, *inspect.signature(self.tokenizer.apply_chat_template).parameters}
        known = set(re.findall(r"[^\W\d]\w*", template)) - taken
        for name in settings.template_options:
            if name not in known:
                raise ModelError(
                    f"the chat template in {_where(self.tokenizer)} reads no option {name!r}"
                    f"{nearest(name, known)}: see run.model.template_options"
                )

    def _probed(self) -> str:
        try:
            return self._written([PROBE])[0]
        except Overrun as error:
            raise ModelError(f"{error}: it is refused") from error

    def _first(self) -> int:
        """The id of an empty prompt."""
        bos = self.tokenizer.bos_token_id
        return bos if bos is not None and bos < self.vocabulary else self.ends[0]

    def _why_not(self) -> str:
        return (
            "model.template is off"
            if self.tokenizer.chat_template
            else f"{_where(self.tokenizer)} has no chat template"
        )


def of_run(folder: Path, run: Run) -> Tokenization:
    """The run's tokenizer and chat template, from its model's folder. Raises ModelError."""
    return load(folder, run.model, run.task.system)


def asks_date(folder: Path) -> bool:
    """Whether the chat template in a model's folder asks for the date. Nothing is loaded."""
    places = [folder / "chat_template.jinja", folder / "tokenizer_config.json"]
    return any(CLOCK.encode() in place.read_bytes() for place in places if place.is_file())


def load(folder: Path, settings: Model = DEFAULTS, system: str = "") -> Tokenization:
    """Read config, tokenizer and generation config of a model's folder.

    Raises ModelError as Tokenization does, and when a file is missing.
    """
    config, tokenizer = config_of(folder), load_tokenizer(folder)
    return Tokenization(
        tokenizer, config.get_text_config().vocab_size, _ends(folder, config), settings, system
    )


def _ends(folder: Path, config: object) -> list[int]:
    """End tokens of the generation config, where there is one, else of the config: a chat model ends its turn
    with another token than its texts. Raises ModelError."""
    from transformers import GenerationConfig

    path, named = folder / "generation_config.json", config
    if path.exists():
        try:
            named = GenerationConfig.from_pretrained(folder)
        except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
            raise ModelError(
                f"{path} cannot be read ({first_line(error)}): copy the model again, or leave the file out"
            ) from error
    told = getattr(named, "eos_token_id", None)
    ends = [] if told is None else told if isinstance(told, list) else [told]
    if strange := [end for end in ends if type(end) is not int]:
        raise ModelError(
            f"the model in {folder} names {strange[0]!r} as an end token: eos_token_id in its"
            " generation_config.json or config.json is a number, or a list of numbers"
        )
    return ends


def _writes(tokenizer: PreTrainedTokenizerBase, settings: Model) -> Write:
    clock = _clock(settings.date)
    given = {name: settings.template_options[name] for name in sorted(settings.template_options)}

    def write(turns: Turns, answered: bool) -> str:
        if clock is not None:
            from transformers.utils import chat_template_utils

            # The same object that is asked below: transformers keeps it, and takes no function of ours.
            template = chat_template_utils._compile_jinja_template(tokenizer.get_chat_template())
            template.globals[CLOCK] = clock.strftime
        return tokenizer.apply_chat_template(
            turns,
            tokenize=False,
            add_generation_prompt=not answered,
            continue_final_message=answered,
            **given,
        )

    return write


def _clock(date: str) -> datetime.datetime | None:
    """The start of that day; None where the run names none. Raises ModelError."""
    try:
        return datetime.datetime.fromisoformat(date) if date else None
    except ValueError as error:
        raise ModelError(f"run.model.date is {date}: there is no such day") from error


def _contents(task: Task) -> list[str]:
    """A task's texts, message by message."""
    return [message.content for message in task.messages] or [task.prompt]


def _where(tokenizer: PreTrainedTokenizerBase) -> str:
    return tokenizer.name_or_path or "memory"


def _backend(tokenizer: PreTrainedTokenizerBase) -> Tokenizer | None:
    """The tokenizer's own Rust object where transformers' `decode` adds nothing to it but a look at the type
    of every single token; None for those that have a `decode` of their own."""
    from transformers import PreTrainedTokenizerFast

    kind = type(tokenizer)
    plain = isinstance(tokenizer, PreTrainedTokenizerFast) and all(
        getattr(kind, name) is getattr(PreTrainedTokenizerFast, name) for name in ("decode", "_decode")
    )
    return tokenizer.backend_tokenizer if plain else None
