"""Reward functions by name: built in, installed, brought along; what they say, and their weighted sum."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from swarm.tasks.base import RewardError
from swarm.tasks.rewards import code_reward
from swarm.tasks.rewards import rewards as named
from swarm.tasks.rewards.rewards import RunRewards, exact, files
from swarm.tasks.workers import sandbox

works = pytest.mark.skipif(bool(sandbox.missing()), reason=sandbox.missing() or "it works")

CODE = """
def length(completions, **columns):
    return [float(len(c)) for c in completions]

def sometimes(completions, **columns):
    return [1.0 if "a" in c else None for c in completions]

def number(completions, **columns):
    return [float(c) if c.isdigit() else None for c in completions]

def logs(completions, **kwargs):
    kwargs["log_metric"]("length", 1.0)
    return [float(len(c)) for c in completions]

async def logs_by_name(completions, log_extra, log_metric, trainer_state=None, completion_ids=None):
    log_extra("length", [len(c) for c in completions])
    log_metric("length", 1.0)
    assert trainer_state is completion_ids is None
    return [float(len(c)) for c in completions]

def by_step(completions, trainer_state, **kwargs):
    return [float(trainer_state.global_step)] * len(completions)

def where(completions, **columns):
    import os
    return [float(os.path.exists("/etc/passwd"))] * len(completions)
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def scored() -> Iterator[Any]:
    made: list[RunRewards] = []

    def score(
        names: list[str], completions: list[Any], weights: tuple[float, ...] = (), **options: Any
    ) -> list[float]:
        columns = {name: [value] * len(completions) for name, value in options.pop("columns", {}).items()}
        made.append(
            RunRewards(
                names,
                weights,
                options.get("folder"),
                options.get("code", "trust"),
                options.get("timeout", 20.0),
            )
        )
        return made[-1].rewards(["p"] * len(completions), completions, columns)

    yield score
    for scorer in made:
        scorer.close()


# --- names and sums -----------------------------------------------------------------------------------------


def test_rewards_are_added_up_with_their_weights(here: Path, scored: Any) -> None:
    assert scored(["mine.py:length", "exact"], ["ab", "abc"], (0.5, 10.0), columns={"answer": "ab"}) == [
        11.0,
        1.5,
    ]


def test_a_reward_that_does_not_apply_is_left_out(here: Path, scored: Any) -> None:
    assert scored(["mine.py:sometimes", "mine.py:length"], ["a", "b"]) == [2.0, 1.0]


def test_a_completion_of_which_no_function_says_anything_has_no_advantage(here: Path, scored: Any) -> None:
    assert scored(["mine.py:sometimes"], ["a", "b"]) == [1.0, 1.0]
    assert scored(["mine.py:number"], ["5", "none", "7", "no"]) == [5.0, 6.0, 7.0, 6.0]
    assert scored(["mine.py:number", "mine.py:sometimes"], ["5", "a", "none"], (2.0, 4.0)) == [10.0, 4.0, 7.0]
    says = r"none of mine.py:number, mine.py:sometimes applies .* each returned None for 2 of 2 completions"
    with pytest.raises(RewardError, match=says):
        scored(["mine.py:number", "mine.py:sometimes"], ["x", "y"])


def test_what_trl_passes_beside_columns_is_there_or_its_lack_is_explained(here: Path, scored: Any) -> None:
    assert scored(["mine.py:logs", "mine.py:logs_by_name"], ["ab", "c"]) == [4.0, 2.0]
    with pytest.raises(RewardError, match="needs 'trainer_state', which TRL passes and a swarm does not"):
        scored(["mine.py:by_step"], ["a"])
    with pytest.raises(RewardError, match=r"math needs the column 'answer'.*its columns: none"):
        scored(["math"], ["a"])


def test_a_weighted_sum_that_is_not_finite_is_an_error(here: Path, scored: Any) -> None:
    with pytest.raises(RewardError, match="not finite"):
        scored(["mine.py:length"], ["a" * 100], (1e307,))


def test_files_travel_once_each_under_numbers(here: Path) -> None:
    (here / "other.py").write_text("")
    names = ["math", "other.py:f", "mine.py:length", "mine.py:sometimes", "os.path:join"]
    assert files(names) == {"rewards-0.py": Path("other.py"), "rewards-1.py": Path("mine.py")}
    with pytest.raises(ValueError, match=r"the reward file gone.py is not there"):
        files(["gone.py:f"])


def test_a_run_folders_copy_is_called_by_the_name_that_its_owner_wrote(tmp_path: Path, scored: Any) -> None:
    (tmp_path / "rewards-0.py").write_text("def f(completions, **c):\n    raise OSError('no')\n")
    with pytest.raises(
        RewardError,
        match=r"^not/here/mine.py:f raised OSError: no \(mine.py line 2: raise OSError\('no'\)\)$",
    ):
        scored(["not/here/mine.py:f"], ["a"], folder=tmp_path)


@works
def test_code_of_a_run_is_boxed_and_built_in_code_is_not(here: Path, scored: Any) -> None:
    assert scored(["mine.py:where", "exact"], ["a"], code="trust", columns={"answer": "a"}) == [2.0]
    assert scored(["mine.py:where", "exact"], ["a"], code="sandbox", columns={"answer": "a"}) == [1.0]


def test_code_of_a_run_can_be_refused(here: Path) -> None:
    for name in ("mine.py:length", "os.path:join"):
        with pytest.raises(ValueError, match=r"peer.rewards.code = refuse"):
            RunRewards(["exact", name], (), None, "refuse", 5.0)
    RunRewards(["exact", "math"], (), None, "refuse", 5.0).close()


def test_an_installed_entry_point_is_a_name(here: Path, scored: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.metadata import EntryPoint

    point = EntryPoint("right", "swarm.tasks.rewards.rewards:exact", "swarm.rewards")
    monkeypatch.setattr(named, "entry_points", lambda group: [point] if group == "swarm.rewards" else [])
    assert scored(["right"], ["a", "b"], code="refuse", columns={"answer": "a"}) == [1.0, 0.0]


@pytest.mark.parametrize(
    ("names", "weights", "says"),
    [
        (["maths"], (), r"no reward 'maths' \(did you mean 'math'\?\): take one of code, exact, math"),
        (["exact", "math"], (1.0,), "2 rewards and 1 weights"),
        (["exact", "exact"], (), "a reward is named twice"),
        (["gone.py:f"], (), "the reward file gone.py cannot be read"),
    ],
)
def test_what_cannot_be_a_reward_is_refused_at_once(
    here: Path, names: list[str], weights: tuple[float, ...], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        RunRewards(names, weights, None, "trust", 5.0)


def test_a_function_that_is_not_there_is_told_by_the_check(here: Path) -> None:
    scorer = RunRewards(["mine.py:width", "exact"], (), None, "trust", 5.0)
    with pytest.raises(ValueError, match=r"mine.py:width: there is no function 'width' in mine.py"):
        scorer.check()
    scorer.close()


# --- exact and math -----------------------------------------------------------------------------------------


def test_exact_is_the_answer_but_for_white_space_around_it() -> None:
    talk = [{"role": "assistant", "content": " 7\n"}]
    assert exact(["7", " 7 ", "7.", talk], ["7"] * 4) == [1.0, 1.0, 0.0, 1.0]
    assert exact(["7"], answer=[7]) == [1.0]
    assert exact(["", "x"], ["", " "]) == [None, None]  # an empty completion is no answer to nothing


@pytest.fixture(scope="module")
def math_reward() -> ModuleType:
    """Not at the top: it imports sympy, and every process of a test run collects all files."""
    from swarm.tasks.rewards import math_reward

    return math_reward


@pytest.mark.parametrize(
    ("answer", "right", "wrong"),
    [
        ("72", "So the answer is 72.", "So the answer is 71."),
        ("72", "There are 71, no: 72", "#### 71"),
        ("Natalia sold 48/2 = 24 clips in May.\n#### 72", "48 + 24 = 72\n#### 72", "48/2 = 24\n#### 24"),
        ("1,000", "\\boxed{1000}", "\\boxed{100}"),
        ("\\frac{1}{2}", "It is $0.5$", "It is $\\frac{1}{3}$"),
        ("2^{10}", "$1024$", "$2$"),
        ("$(x+1)^2$", "$x^2 + 2x + 1$", "$x^2 + 1$"),
        ("\\{1, 2\\}", "$\\{2, 1\\}$", "$\\{2\\}$"),
        ("5", "<think>maybe 6</think> <answer>5</answer>", "<think>5</think> <answer>6</answer>"),
        ("B", "The answer is \\boxed{B}", "The answer is \\boxed{C}"),
        ("-3", "x = -3", "x = 3"),
        (42, "42", "43"),
    ],
)
def test_math_compares_values_and_not_letters(
    math_reward: ModuleType, answer: Any, right: str, wrong: str
) -> None:
    assert math_reward.equal([right, wrong, ""], [answer] * 3) == [1.0, 0.0, 0.0]


AS_WRITTEN = [
    "(B)",
    "(1, 2)",
    "x^2-1",
    "O(n)",
    "2+3i",
    "[2, 3]",
    "sqrt(2)",
    "3/4 cup",
    "well-known",
    "2023-05-01",
    "10:30",
    "12 or 13",
    "1, 2",
    "ab+c",
    "5!",
    "\\text{Evelyn}",
    "\\begin{pmatrix}1\\\\2\\end{pmatrix}",
]


@pytest.mark.parametrize("answer", AS_WRITTEN)
def test_an_answer_as_the_data_writes_it_is_right(math_reward: ModuleType, answer: str) -> None:
    said = ["{}", "${}$", "\\boxed{{{}}}", "The answer is {}.", "It is\n**{}**", "First 7, then\n#### {}"]
    completions = [form.format(answer) for form in said] + [f"So it is \\({answer}\\)."]
    assert math_reward.equal(completions, [answer] * 7) == [1.0] * 7


@pytest.mark.parametrize(
    ("answer", "wrong"),
    [
        ("2023-05-01", ["2017", "2023-05-02", "2023"]),
        ("well-known", ["\\boxed{lewl-nowkn}", "known", "unwell-known", "not-well-known"]),
        ("10:30", ["10", "30", "\\boxed{10}"]),
        ("12 or 13", ["13", "12"]),
        ("(1, 2)", ["f(1, 2)", "3 (1, 2)", "-(1, 2)", "(1, 2) + 1", "\\boxed{0} (1, 2)"]),
        ("x^2-1", ["2 + x^2-1", "$-x^2-1$", "y x^2-1", "$\\ln x^2-1$", "y != x^2-1"]),
        ("B", ["Bob", "AB", "\\boxed{A} or B"]),
        ("3", ["\\boxed{3} no, \\boxed{\\frac{1}{2}}", "x is 1 / 3", "It is $\\ln 3$", "30"]),
        ("x**2", ["x2"]),
        (".", [""]),
    ],
)
def test_text_that_only_looks_like_the_answer_is_wrong(
    math_reward: ModuleType, answer: str, wrong: list[str]
) -> None:
    assert math_reward.equal(wrong, [answer] * len(wrong)) == [0.0] * len(wrong)


@pytest.mark.parametrize(
    ("answer", "right", "wrong"),
    [
        ("1/2", "\\boxed{0.5}", "1/3"),
        ("0.5", "$\\frac12$", "0.05"),
        ("50%", "50 percent", "5%"),
        ("1,234,567", "It is 1234567.", "1,234"),
        ("$(-\\infty, 2]$", "$x \\in (-\\infty,2]$", "$(-\\infty, 2)$"),
        ("[2, 3]", "$[2,3]$", "$[2, 4]$"),
        ("10\\text{ cm}", "\\boxed{10}", "\\boxed{1}"),
        ("18 dollars", "She has $18", "17"),
        ("3/4 cup", "0.75", "\\boxed{3}"),
        ("ab+c", "$c+ba$", "$a+bc$"),
        ("sqrt(2)", "$\\sqrt{2}$", "$\\sqrt{3}$"),
        ("x = 5", "$5$", "$x = 6$"),
        ("We get \\boxed{\\frac{3}{4}}.", "$0.75$", "We get 0"),
    ],
)
def test_an_answer_that_has_a_value_is_compared_by_it(
    math_reward: ModuleType, answer: str, right: str, wrong: str
) -> None:
    assert math_reward.equal([right, wrong], [answer] * 2) == [1.0, 0.0]


def test_math_reads_conversations_and_leaves_out_rows_without_an_answer(math_reward: ModuleType) -> None:
    talk = [{"role": "assistant", "content": "It is \\boxed{4}"}]
    assert math_reward.equal([talk, talk], ["4", ""]) == [1.0, None]


def test_math_does_not_wait_for_a_number_that_nobody_can_compute(
    math_reward: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(math_reward, "LONGEST_SECONDS", 0.3)
    assert math_reward.equal(["$9^{9^{9^9}}$", "$10000000!!!$", "$72$"], ["72"] * 3) == [0.0, 0.0, 1.0]
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_math_ends_although_the_alarm_rings_in_a_finalizer(
    math_reward: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow:
        def __del__(self) -> None:
            time.sleep(0.2)  # an exception that comes up here is dropped

    def never(text: str, **options: Any) -> list[Any]:
        Slow()
        while True:
            pass

    monkeypatch.setattr(math_reward, "LONGEST_SECONDS", 0.1)
    monkeypatch.setattr(math_reward, "parse", never)
    assert math_reward.equal(["72"], ["72"]) == [0.0]


def test_math_runs_in_a_worker_within_the_timeout_of_a_group(scored: Any) -> None:
    names = ["$9^{9^{9^9}}$"] * 7 + ["$72$"]
    assert scored(["math"], names, columns={"answer": "72"}, timeout=3.0) == [0.0] * 7 + [1.0]


def test_math_without_a_column_to_compare_with_says_so(scored: Any) -> None:
    with pytest.raises(RewardError, match="math needs the column 'answer'"):
        scored(["math"], ["1"], columns={"solution": "1"})


# --- code ---------------------------------------------------------------------------------------------------

RIGHT = "Here:\n```python\ndef add(a, b):\n    return a + b\n```\nDone."


@works
@pytest.mark.parametrize(
    ("completion", "value"),
    [
        (RIGHT, 1.0),
        ("def add(a, b):\n    return a + b", 1.0),
        ("```\nx = 1\n```\nbetter:\n" + RIGHT, 1.0),
        ("```python\ndef add(a, b):\n    return a - b\n```", 0.0),
        ("I cannot program.", 0.0),
        ("import sys\nsys.exit(0)", 0.0),
        ("import os\nos._exit(0)", 0.0),
        ("def add(a, b):\n    return a + b\nprint('x' * 100_000_000)", 0.0),
        ("x = bytearray(3 << 30)\n" + "def add(a, b):\n    return a + b", 0.0),
    ],
)
def test_a_program_is_worth_one_when_the_tests_pass(completion: str, value: float) -> None:
    assert code_reward.passes([completion], ["assert add(1, 2) == 3\nassert add(0, 0) == 0"]) == [value]


@works
def test_a_program_sees_neither_files_nor_network_nor_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    spies = [
        "import os\nassert not os.path.exists('/etc/passwd')\nassert 'HF_TOKEN' not in os.environ\nx = 1",
        "open('/etc/passwd')\nx = 1",
        "import socket\nsocket.create_connection(('192.0.2.1', 80), 1)\nx = 1",
        "open('/usr/x', 'w')\nx = 1",
    ]
    assert code_reward.passes(spies, ["assert x == 1"] * 4) == [1.0, 0.0, 0.0, 0.0]


@works
def test_a_program_that_does_not_end_is_wrong_and_delays_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_reward, "LONGEST_SECONDS", 2.0)
    assert code_reward.passes(
        ["while True: pass", RIGHT, "import os\nwhile True: os.fork()"], ["assert add(1, 1) == 2"] * 3
    ) == [
        0.0,
        1.0,
        0.0,
    ]


@works
def test_a_program_is_tried_on_inputs_and_its_output_compared() -> None:
    doubles = "print(2 * int(input()))  "
    inputs, outputs = [["1", "2\n"]] * 3, [["2", "4\n"]] * 3
    assert code_reward.passes([doubles, "print(2)", "1/0"], inputs=inputs, outputs=outputs) == [1.0, 0.0, 0.0]


@works
def test_lists_of_tests_are_taken_and_rows_without_any_are_left_out() -> None:
    assert code_reward.passes([RIGHT, RIGHT], [["assert add(1, 1) == 2", "assert add(2, 2) == 4"], None]) == [
        1.0,
        None,
    ]


ADDS = "print(sum(map(int, input().split())))"
CASE = {"input": "1 2\n", "output": "3\n", "type": "stdin_stdout"}
OTHER = {"input": "4 5\n", "output": "9  \n\n", "type": "stdin_stdout"}


@works
@pytest.mark.parametrize(
    "tests",
    [
        CASE,
        [CASE, OTHER | {"metadata": "of 2021"}],
        {"inputs": ["1 2\n", "4 5"], "outputs": ["3\n", "9"]},
        {"input": ["1 2", "4 5"], "output": ["3", "9"]},
        {"inputs": [["1 2", "ignored"]], "outputs": [["3"]]},
        [
            {"input": "1 2", "output": 3, "testtype": "stdin"},
            {"input": "4 5", "output": 9, "testtype": "stdin"},
        ],
        [json.dumps(CASE), json.dumps(OTHER)],
    ],
)
def test_tests_of_what_is_printed_are_read_as_data_sets_of_code_have_them(tests: Any) -> None:
    programs = [
        f"```python\n{ADDS}\n```",
        "print(3)\nprint(3)",
        "print(0)",
        "pass",
        "",
        "``````",
        "I cannot.",
    ]
    for written in (tests, json.dumps(tests)):
        wanted = [1.0] + [0.0] * 6
        assert code_reward.passes(programs, [written] * 7) == wanted
        assert code_reward.passes(programs, [written] * 7, prompts=["Sum two."] * 7) == wanted


LEETCODE = "class Solution:\n    def add(self, a: List[int], b: int):\n        return [a[0] + b]"
FLAT = "def add(a, b):\n    return (a[0] + b,)"
WRONG = (
    "def add(a, b):\n    return [a[0] - b]",
    "def sub(a, b):\n    return [a[0] + b]",
    "class Solution:\n    pass",
    "def add(a):\n    return [a[0]]",
    "class Any:\n    __eq__ = lambda *_: True\ndef add(a, b):\n    return Any()",
    "def add(a, b):\n    return {3}",
    "import sys\nsys.exit(0)",
    "print([3])",
    "pass",
    "",
)


@works
@pytest.mark.parametrize(
    "tests",
    [
        {"fn_name": "add", "inputs": [[[1], 2], [[4], 5]], "outputs": [[3], [9]]},  # APPS, TACO
        {"fn_name": "add", "inputs": [[[1], 2]], "outputs": [[[3]]]},
        [{"type": "function_call", "fn_name": "add", "input": [[1], 2], "output": [[3]]}],
        [  # LiveCodeBench
            {
                "input": "[1]\n2",
                "output": "[3]",
                "testtype": "functional",
                "metadata": '{"func_name": "add"}',
            },
            {"input": "[4]\n5\n", "output": "[9]\n", "testtype": "functional", "func_name": "add"},
        ],
    ],
)
def test_tests_that_call_a_function_are_run_as_data_sets_of_code_have_them(tests: Any) -> None:
    programs = [f"Here:\n```python\n{LEETCODE}\n```", FLAT, *WRONG]
    for written in (tests, json.dumps(tests)):
        assert code_reward.passes(programs, [written] * 12) == [1.0] * 2 + [0.0] * 10


@works
def test_a_call_has_to_give_what_is_wanted_and_an_outer_list_may_be_the_data_sets_own() -> None:
    def gives(value: str, *wanted: Any) -> list[float | None]:
        tests = {"fn_name": "f", "inputs": [[]] * len(wanted), "outputs": list(wanted)}
        return code_reward.passes([f"def f():\n    return {value}"], [tests])

    assert gives("3", 3) == gives("3", [3]) == gives("[3]", [3]) == gives("{1: 2}", {"1": 2}) == [1.0]
    assert gives("1", [1, 2]) == gives("3", [3], [3, 4]) == gives("'3'", 3) == gives("None", [[]]) == [0.0]


@works
def test_a_function_is_named_by_a_column_too() -> None:
    columns = {"inputs": [[[1, 2]]], "outputs": [[3]], "fn_name": ["add"]}
    assert code_reward.passes([RIGHT], **columns) == [1.0]
    functional = [[{"input": "1\n2", "output": "3", "testtype": "functional"}]]
    assert code_reward.passes([RIGHT], functional, fn_name=["add"]) == [1.0]
    assert code_reward.passes([ADDS], [[CASE]], fn_name=[""]) == [1.0]


@works
@pytest.mark.parametrize(
    ("tests", "says"),
    [
        ("x = 1\n'3'", r"can fail: it has no assert and no call that is reached.*every program would pass"),
        ("def test_add():\n    assert add(1, 2) == 3", "nothing in the task's `tests` can fail"),
        ("class T:\n    def test(self):\n        assert add(1, 2) == 3", "can fail"),
        ("# no test", "can fail"),
        ("assert add(1, 2 == 3", "`tests` are not Python .assert add"),
        ("17", "`tests` are 17: neither Python nor inputs and outputs"),
        ([3, 4], "neither Python nor inputs"),
        ([{"question": "?"}], "have no input and output"),
        ({"input": "1", "output": None}, "have no input and output"),
        ({"inputs": ["1", "2"], "outputs": ["1"]}, "2 inputs and 1 outputs"),
        ({"inputs": [1], "outputs": [3], "fn_name": "add"}, r"test of add has 1 for its arguments"),
        ([CASE | {"type": "functional"}], r"functional.* call a function and do not"),
        ([{"input": "1 2", "output": "3", "fn_name": "add"}], r"test of add is not JSON \(1 2\)"),
        ({"inputs": [[1], [2]], "outputs": [3], "fn_name": "add"}, "2 inputs and 1 outputs"),
        ({"inputs": [[1]], "outputs": [None], "fn_name": "add"}, "a function that does nothing would pass"),
        ([{"input": "1", "output": ""}], "want no output"),
    ],
)
def test_tests_that_cannot_fail_or_be_read_are_an_error_and_no_reward(tests: Any, says: str) -> None:
    for written in (tests, tests if isinstance(tests, str) else json.dumps(tests)):
        with pytest.raises(ValueError, match=says):
            code_reward.passes(["pass", ADDS], [written] * 2)


@works
def test_an_empty_program_passes_nothing_and_a_row_without_tests_is_left_out() -> None:
    empty = ["", " \n", "```python\n\n```"]
    assert code_reward.passes(empty, ["print('is called')"] * 3) == [0.0] * 3
    assert code_reward.passes(["pass"] * 4, [None, "", "[]", []]) == [None] * 4


@works
@pytest.mark.parametrize(
    "program",
    [
        "import builtins\nbuiltins.exec = print",
        "import __main__\nfor held in vars(__main__).values():\n    getattr(held, 'clear', print)()",
        "import __main__\n__main__.tests.clear()",
        "import sys\nsys._getframe(1).f_locals['tests'].clear()",
        "import builtins\nbuiltins.compile = lambda *_: (lambda: 0).__code__",
        "import os\nos.lseek(0, 0, 0)\nos.write(1, os.read(0, 9999).split(b'\"')[-2])\nos._exit(0)",
    ],
)
def test_a_program_does_not_take_its_tests_away(program: str) -> None:
    assert code_reward.passes([program, RIGHT], ["assert add(1, 2) == 3"] * 2) == [0.0, 1.0]


@works
def test_a_program_that_is_no_argument_costs_nobody_else_the_group() -> None:
    says = "print(input())"
    long = [f"{says}  # {letter * 44_000}" for letter in "字é"] + [f"{says}  # \ud800", f"{says}  # \0"]
    inputs, outputs = [["a"]] * 5, [["a"]] * 5
    assert code_reward.passes([says, *long], inputs=inputs, outputs=outputs) == [1.0, 0.0, 1.0, 0.0, 0.0]


@works
def test_code_is_a_reward_like_others(scored: Any) -> None:
    tests = {"tests": "assert add(1, 2) == 3"}
    assert scored(["code"], [RIGHT, "no"], code="refuse", columns=tests) == [1.0, 0.0]
    with pytest.raises(RewardError, match=r"code raised ValueError: it needs a column `tests`, .* answer\)"):
        scored(["code"], [RIGHT], columns={"answer": "1"})


def test_code_refuses_to_run_without_a_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "missing", lambda: "install bubblewrap")
    with pytest.raises(sandbox.NoSandbox, match="install bubblewrap"):
        RunRewards(["code"], (), None, "trust", 5.0)
    with pytest.raises(sandbox.NoSandbox, match="install bubblewrap"):
        code_reward.passes([RIGHT], ["assert True"])
