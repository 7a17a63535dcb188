"""A chat template is a program that comes with a run's model: a process of its own runs it, within limits.

    conversations --> ChatTemplate.write --pipe--> writer: jinja, at most SECONDS for each, and MEMORY
            texts <-- or Unwritten, Overrun            ^ forked again by its keeper when a limit ends it

jinja's sandbox reaches no file, no module and no more than 100,000 numbers of one `range`; nested loops,
powers and the length of the output have no limit there, and no handler of a signal runs inside a power: the
kernel ends the process. The keeper is forked as soon as there is a tokenizer: later imports of its peer are
in neither process. Invariant: a template's needs depend on the machine, so that a conversation with an
Overrun is left out, and no other prompt is taken in its place. Its output does not depend on the machine:
random numbers are the same for each conversation, local time is UTC, and the address of an object, which a
mistake in a template writes, is refused.

Not handled: the process of a vLLM server, which reads the template too.
"""

from __future__ import annotations

import os
import random
import re
import resource
import signal
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from swarm.processes.process import Child, ChildLost, Ended, Pipe
from swarm.processes.start import forget_parent, set_name

Turns = Sequence[dict[str, str]]
Conversation = tuple[Turns, bool]
"""Its turns, and whether the last one, a begun answer, is continued."""

Write = Callable[[Turns, bool], str]
"""Writes a conversation."""

SECONDS = 2.0
"""Of processor time for a conversation: one takes less than a millisecond, the first one, which compiles the
template, some hundredths of a second."""

PATIENCE = 10.0
"""Seconds for a conversation, on a machine that is as busy as it can be or from a process that was stopped:
its caller may be an event loop."""

MEMORY = 512 << 20
"""Bytes of address space beyond those of the process that forks: jinja and a template need some megabytes."""

LONGEST = 1 << 20
"""Characters that a template may write beside the conversation's own."""

SAYS = 500
"""Characters of a template's message about a conversation that it refuses."""

NAME = "chat-template"
"""Of both processes, for `ps`."""

ADDRESS = re.compile(r"<[^<>]* at 0x[0-9a-f]+>")
"""An object that has no text, as Python writes it."""

OVERRUNS = 3
"""Conversations for which a template may need too much: the caller waits SECONDS for each, and no more for
those that come after."""


class Unwritten(ValueError):
    """The template refuses a conversation, or fails with it, on every machine alike."""

    def __init__(self, why: str, index: int) -> None:
        """`index`: of the conversation, the first such one."""
        super().__init__(why)
        self.index = index


class Overrun(ChildLost):
    """The template needed more for this conversation than it may. A whole sentence."""


class TemplateAnswer(msgspec.Struct, frozen=True, array_like=True):
    kind: Literal["written", "unwritten", "overrun"]
    text: str
    """The output, or the reason why there is none."""


class ChatTemplate:
    """Writes conversations as texts, in another process that ends with this object. Threads may share it."""

    def __init__(self, write: Write, where: str) -> None:
        """`write` runs in forks of this process alone. `where`: its folder, for messages."""
        self._write, self._where = write, where
        self._child: Child | None = None
        self._lock = threading.Lock()
        self._overruns = 0

    def write(self, conversations: Sequence[Conversation]) -> list[str]:
        """The text of each conversation: one question for all, since a process takes longer to wake up than
        to write one. Raises Unwritten, and Overrun."""
        if not conversations:
            return []
        with self._lock:
            if self._overruns >= OVERRUNS:
                raise self._overrun(f"is not used any more: it needed too much {OVERRUNS} times")
            answers = self._asked(msgspec.msgpack.encode(conversations), PATIENCE * len(conversations))
            self._overruns += answers[-1].kind == "overrun"
        if answers[-1].kind == "unwritten":
            raise Unwritten(answers[-1].text, len(answers) - 1)
        if answers[-1].kind != "written":
            raise self._overrun(answers[-1].text)
        return [answer.text for answer in answers]

    def _overrun(self, why: str) -> Overrun:
        return Overrun(f"the chat template in {self._where} {why}")

    def _asked(self, frame: bytes, seconds: float, again: bool = True) -> list[TemplateAnswer]:
        """Raises Overrun where there is no answer, because its process is stopped or ends `again`."""
        if self._child is None:
            self._child = Child(WriterKeeper(self._write))
            self._ended = weakref.finalize(self, self._child.end)
        try:
            return msgspec.msgpack.decode(self._child.ask(frame, seconds), type=list[TemplateAnswer])
        except ChildLost as lost:
            self._child = None
            self._ended()
            if again and isinstance(lost, Ended):  # it may have been killed between two calls
                return self._asked(frame, seconds, again=False)
            raise self._overrun(f"wrote nothing: its process {lost}") from lost


class WriterKeeper:
    """The child's side: forks a writer, and another one when a limit has ended it."""

    def __init__(self, write: Write) -> None:
        self._write = write

    def __call__(self) -> None:
        set_name(NAME)
        os.environ["TZ"] = "UTC"
        time.tzset()
        # Copies of pipes to its parent's other children, which would not see their input end.
        os.closerange(3, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        pipe, keeper = Pipe(), os.getpid()
        while True:
            if (writer := os.fork()) == 0:
                forget_parent(keeper)
                self._answer_all(pipe)
                os._exit(0)
            if (code := os.waitstatus_to_exitcode(os.waitpid(writer, 0)[1])) != -signal.SIGPROF:
                # Whether the parent still waits for an answer is unknown here: it asks another keeper.
                return print(f"its writer ended with code {code}")
            needs = f"needs more than {SECONDS:g} s of processor time for one conversation"
            pipe.send(msgspec.msgpack.encode([TemplateAnswer("overrun", needs)]))

    def _answer_all(self, pipe: Pipe) -> None:
        """Until a limit ends this process, or its parent closes the pipe."""
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        most = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        while (frame := pipe.receive()) is not None:
            answers = list[TemplateAnswer]()
            for turns, answered in msgspec.msgpack.decode(frame):
                signal.setitimer(signal.ITIMER_PROF, SECONDS)
                answers.append(self._answer(turns, answered))
                if answers[-1].kind != "written":
                    break
            frame = msgspec.msgpack.encode(answers)
            signal.setitimer(signal.ITIMER_PROF, 0.0)
            pipe.send(frame)

    def _answer(self, turns: list[dict[str, str]], answered: bool) -> TemplateAnswer:
        random.seed(0)
        try:
            text = self._write(turns, answered)
        except MemoryError:
            return TemplateAnswer("overrun", f"needs more than {MEMORY >> 20} MiB for one conversation")
        except Exception as error:  # of the template, whatever it does
            return TemplateAnswer("unwritten", (str(error) or type(error).__name__)[:SAYS])
        if len(text) > LONGEST + sum(len(turn["content"]) for turn in turns):
            writes = f"writes {len(text)} characters: more than {LONGEST} beside the conversation are refused"
            return TemplateAnswer("overrun", writes)
        if any(found not in str(turns) for found in ADDRESS.findall(text)):
            return TemplateAnswer(
                "unwritten", f"it writes {ADDRESS.findall(text)[0]}, which no two peers write alike"
            )
        return TemplateAnswer("written", text)
