"""Reward `math` pays for an answer, in every way to write one, and not for the question in other words."""

from __future__ import annotations

import operator
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.tasks.rewards import unevaluated


@pytest.fixture(scope="module")
def math_reward() -> ModuleType:
    """Not at the top: it imports sympy, and every process of a test run collects all files."""
    from swarm.tasks.rewards import math_reward

    return math_reward


ASKED = "What is 94 + 46?"

UNANSWERED = r"""
I do not know what 94 + 46 is.
To find 94 + 46, we need to add the numbers
94 + 46 = ?
94 + 46 =
94 + 46 = APS
94 + 46 apples
94+46
46 + 94
(94 + 46)
((94) + (46))
The sum of 94 + 46
**94 + 46**
**94** + **46**
94 plus 46
94 − −46
The answer is 94 + 46.
final answer is 94 + 46
x = 94 + 46
$94 + 46$
$94$ + $46$
$94+46=$
$94 + 46 = ?$
$x = 94 + 46$
$94 + 46 = 46 + 94$
$\left(94 + 46\right)$
$\{94+46\}$
\boxed{94 + 46}
\boxed{46+94}
\boxed{\frac{94+46}{1}}
2 * 70
2 × 70
2 times 70
$2 \cdot 70$
$2(70)$
$(2)(70)$
280/2
\boxed{\frac{280}{2}}
\boxed{\dfrac{280}2}
$140^1$
$12^2 - 4$
\boxed{\sqrt{19600}}
$-(-140)$
140 + 0
140 * 1
$140 \cdot 1$
$140x^0$
$140 + x - x$
$\max(140, 3)$
$\lfloor 140.5 \rfloor$
$|{-140}|$
$\ln e^{140}$
50% of 280
1.4 * 100
What is 94 + 46?
I do not know.
""".strip().splitlines()


def earned(math_reward: ModuleType, said: list[str], asked: str) -> dict[str, float]:
    """Completion -> what it earns where 140 is right."""
    worth = math_reward.equal(said, ["140"] * len(said), prompts=[asked] * len(said))
    return dict(zip(said, worth, strict=True))


@pytest.mark.parametrize("asked", [ASKED, "Add them."])
def test_the_question_in_other_words_is_no_answer(math_reward: ModuleType, asked: str) -> None:
    said = ["", *UNANSWERED]
    assert earned(math_reward, said, asked) == dict.fromkeys(said, 0.0)


ANSWERED = r"""
140
140.
140.0
$140
$140$
\$140
140%
140 apples
**140**
The answer is: **140**
\boxed{140}
\boxed{140\text{ cm}}
$\boxed{140}$
#### 140
x = 140
$x = 140$
$\approx 140$
$140^\circ$
94 + 46 = 140
94+46=140 apples in total
94 plus 46 is 140
(94 + 46) = 140
**94** + **46** = **140**
$94 + 46 = 140$
$\left(94 + 46\right) = 140$
$94 + 46 = 90 + 50 = 140$
$94 + 46 = \boxed{140}$
\boxed{94 + 46 = 140}
\[94+46=140\]
$$\begin{aligned}94+46&=90+50\\&=140\end{aligned}$$
140 = 94 + 46
$140 = 94 + 46$
140, since 94 + 46 is that
90 + 40 = 130, 4 + 6 = 10, and 130 + 10 = 140.
280/2 = 140
$2(70) = 140$
$\sqrt{19600} = 140$
$5 + $135 = $140
1.4*10^2
$1.4 \times 10^2$
final answer is $140$. I hope it is right
""".strip().splitlines()


@pytest.mark.parametrize("asked", [ASKED, "Add them."])
def test_a_value_that_is_worked_out_is_right_beside_the_question(math_reward: ModuleType, asked: str) -> None:
    assert earned(math_reward, ANSWERED, asked) == dict.fromkeys(ANSWERED, 1.0)


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        (
            "1/2",
            ["1/2", "$\\frac{1}{2}$", "$\\frac12$", "0.5", "50%", "\\boxed{1/2}", "1/4 + 1/4 = 1/2", "2/4"],
        ),
        ("0.5", ["0.5", "0.50", ".5", "1/2", "$\\frac12$"]),
        ("-\\frac{3}{4}", ["-3/4", "$-\\frac34$", "-0.75"]),
        ("1\\frac{1}{2}", ["$1\\frac{1}{2}$", "1.5", "$\\frac32$"]),
        ("1,000", ["1000", "1,000", "$1{,}000$", "\\boxed{1{,}000}", "10^3 = 1000"]),
        ("1000000", ["1,000,000", "$10^6$"]),
        ("2.50", ["2.5", "2.50", "$2.50"]),
        ("50%", ["50%", "50 percent", "$50\\%$"]),
        ("sqrt(2)", ["sqrt(2)", "$\\sqrt{2}$", "$2^{1/2}$"]),
        ("2\\sqrt{3}", ["$2\\sqrt{3}$", "$\\sqrt{12}$", "$2 \\cdot \\sqrt{3}$"]),
        ("2\\pi", ["$2\\pi$", "$\\pi \\cdot 2$"]),
        ("2^{10}", ["$2^{10}$", "1024"]),
        ("2+3i", ["$2+3i$", "\\boxed{3i+2}"]),
        ("x^2-1", ["$x^2-1$", "$(x-1)(x+1)$"]),
        ("y = 2x + 3", ["$y = 2x + 3$", "$y=3+2x$"]),
        ("\\{1, 2\\}", ["$\\{1,2\\}$", "$\\{2,1\\}$"]),
        ("(1, 2)", ["$(1,2)$", "\\boxed{\\left(1, 2\\right)}"]),
        ("$(-\\infty, 2]$", ["$(-\\infty,2]$", "$x \\in (-\\infty, 2]$"]),
        ("(0,1)\\cup(2,3)", ["$(0,1) \\cup (2,3)$"]),
        ("90^\\circ", ["90", "$90^\\circ$", "90 degrees"]),
        ("-3", ["-3", "$-3$", "5 - 8 = -3"]),
    ],
)
def test_other_ways_to_write_an_answer_stay_right(
    math_reward: ModuleType, answer: str, right: list[str]
) -> None:
    assert math_reward.equal(right, [answer] * len(right), prompts=["Work it out."] * len(right)) == [
        1.0
    ] * len(right)


@pytest.mark.parametrize(
    ("asked", "answer", "unanswered"),
    [
        ("What is 1/4 as a decimal?", "0.25", ["1/4", "$\\frac14$", "I do not know what 1/4 is"]),
        ("Write 0.25 as a fraction.", "1/4", ["0.25", "\\boxed{0.25}"]),
        ("What is 50% as a decimal?", "0.5", ["50%"]),
        ("What is 2/4 in lowest terms?", "1/2", ["2/4", "$\\frac{2}{4}$"]),
        ("What is 1/4 + 1/4?", "1/2", ["1/4 + 1/4", "$\\frac14+\\frac14$", "1/4 + 1/4 = ?"]),
        ("What is 3 / 6?", "0.5", ["3/6", "$\\frac36$", "3 ÷ 6", "3 divided by 6"]),
        ("What is 10^7?", "10000000", ["10^7", "$10^7$"]),
        ("What is 3 - 5?", "-2", ["3 - 5", "$-5 + 3$", "3 + (-5)"]),
        ("What is 2 * (94 + 46)?", "280", ["2 * (94 + 46)", "$(46 + 94)\\times 2$"]),
        ("Expand $(x+1)^2$.", "$x^2+2x+1$", ["$(x+1)^2$", "\\boxed{(x+1)^2}", "$(x+1)^2 = ?$"]),
        ("Expand (x+1)(x+2).", "$x^2+3x+2$", ["$(x+2)(x+1)$"]),
        ("Simplify $\\sqrt{8}$.", "2\\sqrt{2}", ["$\\sqrt{8}$", "$\\sqrt8$"]),
        ("Evaluate 94+46 and 1+1.", "140, 2", ["$94+46, 1+1$"]),
        # one of the operands is the value
        ("What is 5 * 1?", "5", ["5 * 1", "1 * 5", "$5 \\times 1$", "5 times 1", "What is 5 * 1?"]),
        ("What is 0 + 46?", "46", ["0 + 46", "$0 + 46 = ?$", "0 plus 46", "**0** + **46**", "$0$ + $46$"]),
        ("What is 94 + 0?", "94", ["94 + 0 =", "94+0=?"]),
        ("What is max(2, 3)?", "3", ["max(2, 3)", "$\\max(2,3)$"]),
    ],
)
def test_what_the_prompt_says_is_no_answer(
    math_reward: ModuleType, asked: str, answer: str, unanswered: list[str]
) -> None:
    count = len(unanswered)
    assert math_reward.equal(unanswered, [answer] * count, prompts=[asked] * count) == [0.0] * count


def test_an_answer_that_stands_in_the_prompt_is_right(math_reward: ModuleType) -> None:
    asked = [{"role": "user", "content": "Which is larger, 1/2 or 1/3? Is it x + 1?"}]
    said = [[{"role": "assistant", "content": words}] for words in ("1/2", "It is $\\frac12$.", "1/3")]
    assert math_reward.equal(said, ["1/2"] * 3, prompts=[asked] * 3) == [1.0, 1.0, 0.0]
    assert math_reward.equal(said[:1], ["$x+1$"], prompts=[asked]) == [0.0]
    said = [[{"role": "assistant", "content": "$x + 1$"}]]
    assert math_reward.equal(said, ["$x+1$"], prompts=[asked]) == [1.0]


@pytest.mark.parametrize(
    ("answer", "right", "wrong"),
    [
        (
            "0.00001",
            ["0.00001", "1e-05", "1E-5", "\\boxed{10^{-5}}", "$1 \\times 10^{-5}$"],
            ["0", "0.000013"],
        ),
        ("1e-05", ["0.00001", "1e-05", "\\boxed{0.00001}", "\\boxed{10^{-5}}"], ["\\boxed{e-5}", "1", "-5"]),
        ("2.5e-07", ["0.00000025", "$2.5 \\times 10^{-7}$"], ["0", "0.0000002", "2.5"]),
        ("1e22", ["10000000000000000000000", "$10^{22}$", "1e+22"], ["1", "22", "10000000000000000000001"]),
    ],
)
def test_a_number_as_programs_write_it_is_a_number(
    math_reward: ModuleType, answer: str, right: list[str], wrong: list[str]
) -> None:
    assert math_reward.equal(right + wrong, [answer] * len(right + wrong)) == [1.0] * len(right) + [
        0.0
    ] * len(wrong)


SIGNS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
PROMPTS = ("What is {}?", "{} =", "Calculate {}.", "Compute ${}$ and box the result.", "Work out ({}).")
RESTATED = (
    "I do not know what {} is.",
    "{}",
    "{} = ?",
    "{} =",
    "({})",
    "**{}**",
    "To find {}, compute it",
    "The answer is {}.",
    "${}$",
    "\\boxed{{{}}}",
    "$\\left({}\\right) =$",
    "x = {}",
    "$x = {}$",
    "{} apples",
)
numbers = st.integers(2, 9999)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    st.lists(numbers, min_size=2, max_size=4),
    st.lists(st.sampled_from(sorted(SIGNS)), min_size=3, max_size=3),
    st.sampled_from(PROMPTS),
    st.booleans(),
)
def test_no_restatement_of_made_arithmetic_earns_and_each_with_its_value_does(
    operands: list[int], signs: list[str], prompt: str, spaced: bool
) -> None:
    from swarm.tasks.rewards import math_reward

    value, gap = operands[0], " " if spaced else ""
    asked, turned = str(operands[0]), str(operands[0])
    for sign, operand in zip(signs, operands[1:], strict=False):
        value = SIGNS[sign](value, operand)
        asked = (
            f"({asked}){gap}{sign}{gap}{operand}"
            if len(operands) > 2
            else f"{asked}{gap}{sign}{gap}{operand}"
        )
        turned = f"{operand}{gap}{sign}{gap}({turned})"
    if value in operands:
        return
    said = [
        form.format(words) for form in RESTATED for words in (asked, turned, asked.replace("*", "\\times"))
    ]
    prompts, golds = [prompt.format(asked)] * len(said), [str(value)] * len(said)
    earned = math_reward.equal(said, golds, prompts=prompts)
    assert [words for words, worth in zip(said, earned, strict=True) if worth] == []
    right = [f"{asked} = {value}", f"${asked} = {value}$", f"\\boxed{{{value}}}", f"{asked}\n#### {value}"]
    assert math_reward.equal(right, golds[:4], prompts=prompts[:4]) == [1.0] * 4


@pytest.mark.parametrize(
    "words",
    ["1+" * 9000, "(" * 20000, "(1" * 9000, "1" * 50000, "\\frac{1}{2}" * 4000, "$1" * 9000, "max(1," * 5000],
)
def test_operations_are_found_in_time_that_grows_with_the_text(words: str) -> None:
    assert isinstance(unevaluated.without_operations(words, lambda number: True), str)
