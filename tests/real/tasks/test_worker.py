"""Workers: whatever a reward function does, the call ends, the message names it, and the next call works."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from forks import fork_children
from process_tree import PATIENCE, children, ended, processes, written

from swarm.tasks.base import RewardError
from swarm.tasks.workers import worker, worker_process
from swarm.tasks.workers.worker import Worker

CODE = """
import asyncio, locale, mmap, os, signal, sys, time
from pathlib import Path

def fine(completions, **columns):
    return [float(len(c)) for c in completions]

def lacks_a_file(prompts, completions, **columns):
    raise FileNotFoundError("\\udcff.txt")


def raises(prompts, completions, **columns):
    answers = {}
    return [answers[c] for c in completions]

def leaves(completions, **columns):
    sys.exit(3)

def hangs(completions, begun=(), **columns):
    for path in begun:
        Path(path).write_text("now")
    while completions[0] == "hang":
        time.sleep(0.1)
    return [0.0] * len(completions)

def hangs_with_children(completions, pids, **columns):
    if (child := os.fork()) == 0:
        time.sleep(600)
    Path(pids[0]).write_text(f"{os.getpid()} {child}")
    time.sleep(600)

def exits(completions, **columns):
    if completions[0] == "die":
        print("out of cheese", file=sys.stderr)
        os._exit(7)
    return [0.0] * len(completions)

def is_killed(completions, **columns):
    os.kill(os.getpid(), signal.SIGKILL)

def prints(completions, **columns):
    print("looking at", completions)
    os.write(1, b"raw bytes to descriptor 1\\n")
    sys.stdout.buffer.write(b"\\x00\\x00\\x00\\x01x")
    return [1.0] * len(completions)

def prints_a_lot(completions, **columns):
    for _ in range(100):
        print("x" * 100_000)
    return [1.0] * len(completions)

def arrays(completions, **columns):
    import numpy as np
    return np.arange(len(completions), dtype=np.float32)

def scalars(completions, **columns):
    import numpy as np
    return [np.float32(0.5), np.int64(2), True, None][: len(completions)]

async def waits(completions, **columns):
    await asyncio.sleep(0.01)
    return [float(c == "a") for c in completions]

def short(completions, **columns):
    return [1.0]

def word(completions, **columns):
    return "good"

def words(completions, **columns):
    return ["good"] * len(completions)

def nan(completions, **columns):
    return [float("nan")] * len(completions)

def infinite(completions, **columns):
    return [1.0, float("-inf")]

def huge(completions, **columns):
    return [1e15, -1e30]

def none(completions, **columns):
    return None

def needs_solution(completions, solution):
    return [float(c == s) for c, s in zip(completions, solution, strict=True)]

def hungry(completions, **columns):
    return [len(mmap.mmap(-1, 6 << 30))]  # reserved, not used

def everything(prompts, completions, **columns):
    return {"prompts": prompts, "completions": completions, **columns}

def machine(completions, **columns):
    locale.setlocale(locale.LC_ALL, "")
    at = time.localtime(1785542400)
    return [float(time.strftime("%d%H", at)), float(list({"a", "b", "c", "d"})[0] == "a")]

def reads(completions, **columns):
    return [float(len(sys.stdin.read()))] * len(completions)
"""

Make = Callable[..., Worker]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rewards") / "mine.py"
    path.write_text(CODE)
    return path


@pytest.fixture
def make(file: Path) -> Iterator[Make]:
    made: list[Worker] = []

    def worker(*names: str, timeout: float = 10.0, **options: Any) -> Worker:
        functions = {f"mine.py:{name}": f"mine.py:{name}" for name in names}
        made.append(Worker(functions, {"mine.py": file}, False, timeout, **options))
        return made[-1]

    yield worker
    for worker_made in made:
        worker_made.close()


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers' processes are forks: what a function answers is the same, and its limits are none."""
    fork_children(monkeypatch, worker, lambda _: worker_process.main())


def call(worker: Worker, *completions: str, **columns: list[Any]) -> list[list[float | None]]:
    return worker.call(["p"] * len(completions), list(completions), columns)


def test_functions_answer_in_their_order(make: Make) -> None:
    assert call(make("fine", "waits"), "a", "bb") == [[1.0, 2.0], [1.0, 0.0]]


def test_a_function_sees_one_time_zone_and_one_language_on_every_machine(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    for zone, language in (("Etc/GMT-14", "C"), ("Etc/GMT+12", "xx_XX.ISO-8859-1")):
        monkeypatch.setenv("TZ", zone)
        monkeypatch.setenv("LC_ALL", language)
        seen += call(make("machine"), "1", "2")
    assert seen[0] == seen[1] and seen[0][0] == 100.0, "midnight of the 1st in UTC"


def test_an_asynchronous_function_is_awaited_call_after_call(make: Make) -> None:
    worker = make("waits")
    assert [call(worker, "a", "b") for _ in range(3)] == [[[1.0, 0.0]]] * 3


@pytest.mark.parametrize("name", ["prints", "prints_a_lot"])
def test_what_a_function_prints_damages_no_answer(make: Make, name: str) -> None:
    worker = make(name)
    assert [call(worker, "a", "b") for _ in range(2)] == [[[1.0, 1.0]]] * 2
    assert 0 < len(worker.printed()) <= 8192


def test_what_a_function_printed_can_be_read(make: Make) -> None:
    worker = make("prints")
    call(worker, "a")
    assert "looking at ['a']" in worker.printed() and "raw bytes" in worker.printed()


def test_numbers_of_numpy_are_numbers(make: Make) -> None:
    assert call(make("arrays", "scalars"), "a", "b", "c", "d") == [
        [0.0, 1.0, 2.0, 3.0],
        [0.5, 2.0, 1.0, None],
    ]


def test_a_function_that_reads_its_input_reads_nothing(make: Make) -> None:
    assert call(make("reads"), "a") == [[0.0]]


def test_a_message_that_is_no_text_costs_no_process(make: Make) -> None:
    worker = make("lacks_a_file")
    with pytest.raises(RewardError, match=r"lacks_a_file raised FileNotFoundError: \\udcff\.txt \("):
        call(worker, "a")
    assert worker.running


def test_an_exception_is_told_with_its_line_and_without_its_trace(make: Make) -> None:
    worker = make("raises")
    with pytest.raises(RewardError) as caught:
        call(worker, "a")
    line = 1 + CODE[: CODE.index("return [answers[c]")].count("\n")
    assert (
        str(caught.value)
        == f"mine.py:raises raised KeyError: 'a' (mine.py line {line}: return [answers[c] for c in"
        " completions])"
    )


def test_leaving_python_is_an_exception_like_others(make: Make) -> None:
    with pytest.raises(RewardError, match=r"mine.py:leaves raised SystemExit: 3"):
        call(make("leaves"), "a")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("short", "mine.py:short returned 1 rewards for 2 completions"),
        ("word", "mine.py:word returned 'good', a str, instead of a list"),
        ("words", "mine.py:words returned 'good', a str, as reward 0, which is not a number"),
        ("nan", "mine.py:nan returned nan as reward 0"),
        ("infinite", "mine.py:infinite returned -inf as reward 1"),
        ("huge", r"mine.py:huge returned -1e\+30 as reward 1: a reward is finite and at most 1e\+15"),
        ("none", "mine.py:none returned None, a NoneType, instead of a list"),
        ("everything", "mine.py:everything returned .* a dict, instead of a list"),
    ],
)
def test_what_is_no_list_of_rewards_is_refused(forked: None, make: Make, name: str, says: str) -> None:
    with pytest.raises(RewardError, match=says):
        call(make("fine", name), "a", "b")


def test_a_function_that_hangs_is_named_and_the_next_call_works(make: Make) -> None:
    worker = make("fine", "hangs", timeout=0.5)
    worker.check()
    with pytest.raises(RewardError, match=r"mine.py:hangs did not answer within 0.5 s"):
        call(worker, "hang")
    assert call(worker, "go") == [[2.0], [0.0]]


def test_processes_that_a_hanging_function_started_are_ended_too(make: Make, tmp_path: Path) -> None:
    worker = make("hangs_with_children", timeout=2.0)
    worker.check()
    with pytest.raises(RewardError, match="did not answer"):
        call(worker, "a", pids=[str(tmp_path / "pids")])
    started = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert len(started) == 2 and ended(*started)  # the grandchild is not ours to wait for


def test_a_process_that_ends_is_told_with_its_code_and_its_last_words(make: Make) -> None:
    worker = make("exits")
    with pytest.raises(
        RewardError, match=r"mine.py:exits ended its process with exit code 7, after printing: out of cheese"
    ):
        call(worker, "die")
    assert call(worker, "live") == [[0.0]]


def test_a_process_that_is_killed_is_told_with_the_signal(make: Make) -> None:
    with pytest.raises(RewardError, match=r"mine.py:is_killed ended its process with signal SIGKILL"):
        call(make("is_killed"), "a")


def test_a_process_that_died_between_two_calls_is_replaced_without_a_word(make: Make) -> None:
    before = children()
    worker = make("fine")
    worker.check()
    (child,) = children() - before
    os.kill(child, signal.SIGKILL)
    assert ended(child)
    assert call(worker, "abc") == [[3.0]]


def test_memory_has_a_limit(make: Make) -> None:
    with pytest.raises(RewardError, match=r"mine.py:hungry raised OSError: .* Cannot allocate memory"):
        call(make("hungry"), "a")
    assert call(make("hungry", memory=0), "a") == [[float(6 << 30)]]


def test_a_column_that_is_missing_is_named_with_those_that_are_there(make: Make) -> None:
    worker = make("needs_solution")
    with pytest.raises(
        RewardError, match=r"needs the column 'solution', .* not have \(its columns: answer, level\)"
    ):
        call(worker, "a", answer=["a"], level=[1])
    assert call(worker, "a", solution=["a"], level=[1]) == [[1.0]]


def test_prompts_completions_and_columns_arrive_as_they_were(make: Make) -> None:
    turns = [[{"role": "user", "content": "2+2?"}]]
    said = [[{"role": "assistant", "content": "4 \U0001f600"}]]
    columns = {"answer": ["4"], "info": [{"a": [1, 2.5, None, True]}], "none": [None]}
    got = make("everything").ask("mine.py:everything", {"prompts": turns, "completions": said, **columns})
    assert got == {"prompts": turns, "completions": said, **columns}


def test_a_value_that_cannot_be_sent_is_an_error_and_not_the_end(make: Make) -> None:
    worker = make("fine")
    for value in (object(), 1 << 70):
        with pytest.raises(RewardError, match=r"mine.py:fine cannot be given this task"):
            call(worker, "a", image=[value])
    assert call(worker, "a") == [[1.0]]


def test_a_call_above_the_limit_is_refused(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swarm.tasks.workers.worker.CALL_LIMIT", 10_000)
    with pytest.raises(RewardError, match="more than the limit of 10000"):
        call(make("fine"), "a" * 10_000)


def test_megabytes_go_there_and_back(make: Make) -> None:
    text = "a" * (5 << 20)
    assert make("everything").ask("mine.py:everything", {"prompts": [], "completions": [text]})[
        "completions"
    ] == [text]


@pytest.mark.parametrize(
    ("code", "function", "says"),
    [
        ("def f(:\n", "f", r"mine.py:f cannot be imported: SyntaxError: .* \(mine.py line 1: def f\(:\)"),
        (
            "import no_such_thing\n",
            "f",
            r"No module named 'no_such_thing': install it .* \(mine.py line 1: import",
        ),
        ("def g(): ...\n", "f", "mine.py:f: there is no function 'f' in mine.py"),
        ("f = 3\n", "f", "mine.py:f is not a function but int"),
        ("import os\nos._exit(4)\n", "f", "ended its process with exit code 4"),
        (
            "import os\nos.nothing\n",
            "f",
            r"AttributeError: module 'os' has no attribute 'nothing' \(mine.py line 2",
        ),
    ],
)
def test_code_that_cannot_be_imported_is_told_at_the_start(
    forked: None, tmp_path: Path, code: str, function: str, says: str
) -> None:
    (tmp_path / "mine.py").write_text(code)
    worker = Worker(
        {f"mine.py:{function}": f"mine.py:{function}"}, {"mine.py": tmp_path / "mine.py"}, False, 5.0
    )
    with pytest.raises(ValueError, match=says):
        worker.check()
    with pytest.raises(RewardError, match=says):
        call(worker, "a")


def test_an_import_that_hangs_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swarm.tasks.workers.worker.START_SECONDS", 1.0)
    (tmp_path / "mine.py").write_text("import time; time.sleep(600)")
    with pytest.raises(ValueError, match=r"the process for mine.py:f did not answer within 1 s"):
        Worker({"mine.py:f": "mine.py:f"}, {"mine.py": tmp_path / "mine.py"}, False, 5.0).check()


def test_a_file_that_is_not_there_is_told_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"the reward file .*mine.py cannot be read: No such file"):
        Worker({"f": "mine.py:f"}, {"mine.py": tmp_path / "mine.py"}, False, 5.0)


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def f(completions): return [1.0]", encoding="utf-8-sig")
    Worker({"mine.py:f": "mine.py:f"}, {"mine.py": tmp_path / "mine.py"}, False, 5.0).check()


def test_a_name_without_a_function_is_told_before_anything_starts() -> None:
    with pytest.raises(ValueError, match=r"write FILE.py:function or package.module:function"):
        Worker({"f": "mine.py"}, {}, False, 5.0)


def test_functions_of_installed_packages_are_called(make: Make) -> None:
    worker = Worker({"statistics": "statistics:fmean"}, {}, False, 5.0)
    assert worker.ask("statistics", {"data": [1.0, 2.0]}) == 1.5
    worker.close()


def test_nothing_heavy_is_imported_and_state_is_kept_between_calls(make: Make, file: Path) -> None:
    file.with_name("other.py").write_text(
        "import sys\nseen = []\ndef f(completions, **c):\n    seen.append(1)\n    return ['torch' in"
        " sys.modules, len(seen)]\n"
    )
    worker = Worker({"f": "other.py:f"}, {"other.py": file.with_name("other.py")}, False, 5.0)
    assert [call(worker, "a", "b") for _ in range(2)] == [[[0.0, 1.0]], [[0.0, 2.0]]]
    worker.close()


def test_another_interpreter_needs_no_package_but_msgspec(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    file.with_name("other.py").write_text(
        "import sys\ndef f():\n    return [name for name in sys.modules if name.startswith('swarm.')]\n"
    )
    worker = Worker(
        {"f": "other.py:f"}, {"other.py": file.with_name("other.py")}, False, 5.0, python=sys.executable
    )
    assert worker.ask("f", {}) == [
        "swarm.tasks",
        "swarm.tasks.workers",
        "swarm.processes",
        "swarm.processes.start",
        "swarm.processes.process",
        "swarm.tasks.workers.worker_process",
    ]
    worker.close()


def test_closing_ends_a_call_that_another_thread_waits_for(make: Make, tmp_path: Path) -> None:
    before = children()
    worker = make("hangs", timeout=60.0)
    worker.check()
    told: list[str] = []

    def score() -> None:
        with pytest.raises(RewardError) as caught:
            call(worker, "hang", begun=[str(tmp_path / "begun")])
        told.append(str(caught.value))

    thread = threading.Thread(target=score)
    thread.start()
    assert written(tmp_path / "begun")
    worker.close()
    thread.join(PATIENCE)
    assert told and "ended its process" in told[0]
    with pytest.raises(RewardError, match="the worker is closed"):
        call(worker, "go")
    assert not children() - before


def test_a_worker_ends_with_its_parent(file: Path, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    code = (
        "import os, sys, time\nfrom pathlib import Path\nfrom swarm.tasks.workers.worker import Worker\n"
        f"w = Worker({{'f': 'mine.py:hangs'}}, {{'mine.py': Path({str(file)!r})}}, False, 60.0)\n"
        "w.check()\nprint(w._child.pid, flush=True)\nw.call([''], ['hang'],"
        f" {{'begun': [{str(begun)!r}]}})\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert child in processes()
    assert written(begun)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert ended(child)


def test_a_frame_of_nonsense_is_told_and_the_process_replaced(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import os\n"
        "def f(completions, **c):\n"
        "    if completions[0] == 'bad':\n"
        "        for fd in range(3, 20):\n"
        "            try: os.write(fd, bytes.fromhex(c['hex'][0]))\n"
        "            except OSError: pass\n"
        "    return [1.0]\n"
    )
    worker = Worker({"f": "mine.py:f"}, {"mine.py": tmp_path / "mine.py"}, False, 2.0)
    for nonsense, says in (
        ("00000001c1", "is not an answer"),
        ("ffffffff", "the limit is"),
        ("00000002" + "9190", "is not an answer"),
    ):
        with pytest.raises(RewardError, match=says):
            call(worker, "bad", hex=[nonsense])
        assert call(worker, "good") == [[1.0]]
    worker.close()
