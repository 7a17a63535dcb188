"""Finds unevaluated expressions in a text: operations between numbers, and repetitions of the prompt.

    "94 + 46 = 140" -- without_operations --> "140"        "I do not know 94 + 46." --> "I do not know u."

Text in, text or a yes or no out; nothing is computed. A number may be written with separators, a sign, as a
percentage, as a fraction or with a power of ten: those two look like operations, and the caller says whether
they are numbers. Operations are found in plain text, LaTeX and words (`94 plus 46`), also within brackets,
dollars or asterisks. Not handled: operands in words (`six times seven`), and letters as operands.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

UNREAD = "\ue000"
"""Stands for an operation while others around it are found. Of Unicode's private use: no text has it."""

FUNCTIONS = "sqrt|gcd|lcm|max|min|abs|round|floor|ceil|mod|log|ln|exp|sin|cos|tan|sum|pow|factorial"
NUMBER = r"(?<!\d)(?:\d++(?:,\d{3}(?!\d))*+(?:\.\d++)?|\.\d++)"
OPERAND = rf"(?:{NUMBER}|{UNREAD})"
SIGNED = rf"[-+]?\s?{OPERAND}"
FRACTION = rf"\\[dtc]?frac\s*(?:(?:\{{\s*{SIGNED}\s*\}}|\d)\s*(?:\{{\s*{SIGNED}\s*\}}|\d))"
BINOMIAL = rf"\\[dt]?binom\s*\{{\s*{OPERAND}\s*\}}\s*\{{\s*{OPERAND}\s*\}}"
CALL = (
    rf"(?:\\?\b(?:{FUNCTIONS})|√)\s?(?:\[\s*{OPERAND}\s*\])?\s?"
    rf"(?:[({{]\s*{SIGNED}(?:\s*,\s*{SIGNED})*\s*[)}}]|(?<=[t√])\d)"
    rf"|\\l(?:floor|ceil)\s*{SIGNED}\s*\\r(?:floor|ceil)|\|\s*{SIGNED}\s*\|"
)
ATOM = rf"(?:{FRACTION}|{BINOMIAL}|{CALL}|{OPERAND}(?:\s?\\?%)?)"
TERM = (
    rf"(?:\(\s*[-+]?{ATOM}\s*\)|\{{\s*[-+]?{ATOM}\s*\}}|\[\s*[-+]?{ATOM}\s*\]|\\\(\s*[-+]?{ATOM}\s*\\\)"
    rf"|\$\s*{ATOM}\s*\$|\*\*{ATOM}\*\*|[-+]?{ATOM})"
)
SIGN = r"[-+−–]|\*\*?|[×·⋅∙∗÷/^]|\\(?:times|cdot|div|ast|pm|over|choose|bmod|mod)(?![A-Za-z])"
WORDS = (
    r"plus|minus|times|over|x|mod(?:ulo)?|percent of|multiplied (?:by|with)|divided by|added to"
    r"|subtracted from|to the power(?: of)?|raised to(?: the power(?: of)?)?"
)
OPERATOR = rf"(?:[ \t]*(?:{SIGN}|(?<=%)[ \t]*of\b)[ \t]*|[ \t]+(?:{WORDS})[ \t]+|(?<=\d)x(?=\d))"
OPERATION = re.compile(
    rf"(?:(?<![\w.])[-+])?{TERM}(?:{OPERATOR}(?:\\?[$€£¥](?=[\d.]))?{TERM})+(?:\s?!)?"  # 94 + 46
    rf"|{OPERAND}?(?:{FRACTION}|{BINOMIAL}|{CALL})"
    rf"|{OPERAND}(?:\(\s*[-+]?{ATOM}\s*\))+|\(\s*[-+]?{ATOM}\s*\)(?:\(\s*[-+]?{ATOM}\s*\))+"  # 2(70)
    rf"|-\s?\(\s*[-+]\s?{ATOM}\s*\)"
)
EQUALS = r"\s*(?:=|≈|\\approx|\\equiv)\s*"
SIDE = re.compile(rf"(?:[({{]\s*)?{UNREAD}(?:\s*[)}}])?{EQUALS}(?=\S)|(?<=\S){EQUALS}{UNREAD}")
"""A side of an equation that is not worked out."""

DEEPEST = 12
"""Brackets within brackets in which operations are found."""

WHOLE_FRACTION = r"(?:\\[dtc]?frac\s*(?:\{\s*[-+]?\d+\s*\}|\d)\s*(?:\{\s*\d+\s*\}|\d)|\d[\d,]*\s*/\s*\d+)"
FRACTIONAL = re.compile(rf"[-+]?\s*(?:\d+\s*)?{WHOLE_FRACTION}")
POWER = r"10\s*(?:\^|\*\*)\s*(?:\{\s*(?P<a>[-+]?\d+)\s*\}|\(\s*(?P<b>[-+]?\d+)\s*\)|(?P<c>[-+]?\d+))"
SCIENTIFIC = re.compile(rf"[-+]?(?P<mantissa>{NUMBER}\s*(?:\\times|\\cdot|\*|×|·|x)\s*)?{POWER}")
MILLION = 6
"""Zeros from which on a power of ten alone is how a whole number is written, and nothing to work out."""

TYPOGRAPHY = re.compile(
    r"\\(?:left|right|displaystyle|textstyle|quad|qquad|limits|[Bb]ig[gl]?[lr]?)(?![A-Za-z])|\\[ ,;:!]|~"
    r"|\^\s*\{?\s*\\circ\s*\}?|°|&|\\(?:begin|end)\{(?:align|aligned|gather|gathered|equation|split|cases)\*?\}"
)
SEVERAL = re.compile(
    r"""(?x)(?:[A-Za-z]\w*\s*)?(?:(?:\\in|\\approx|\\sim|\\equiv|∈|≈)\s*)?  # such as `x in`
    (?:[\s,;({\[\]}).?]
    |0(?!\s*(?:[({\[\d]|[A-Za-z](?![A-Za-z])))                    # beside it a bracket or letter is a factor
    |(?<![\w)}\]])(?<![\w)}\]][ ])[-+](?=\s*0)                  # a sign, with no number before it
    |\\(?:infty|cup|cap|text|quad|lor|land)(?![A-Za-z])
    |[^\W\d_]+(?!\s*[({\[]))*                                   # a word that calls nothing
    """
)
"""Numbers in a row, in brackets, as intervals and their unions; no sign of an operation."""

ALIKE = (
    (re.compile(r"\\[dtc]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}"), r" \1 / \2 "),
    (re.compile(r"\\[dtc]?frac\s*(\d)\s*(\d)"), r" \1 / \2 "),
    (re.compile(r"\*\*"), "^"),
    (re.compile(r"\\(?:times|cdot|ast)(?![A-Za-z])|[×·⋅∙∗]|(?<=\d)\s*x\s*(?=\d)"), "*"),
    (re.compile(r"\b(?:times|multiplied by)\b"), "*"),
    (re.compile(r"\\div(?![A-Za-z])|÷|\b(?:divided by|over)\b"), "/"),
    (re.compile(r"[−–]|\bminus\b"), "-"),
    (re.compile(r"\bplus\b"), "+"),
    (re.compile("√"), " sqrt "),
    (re.compile(r"\\(?:text|mathrm|left|right|boxed)(?![A-Za-z])"), " "),
)
"""Ways to write the same sign."""

TOKEN = re.compile(r"\d[\d,]*(?:\.\d+)?|\.\d+|[^\W\d_]+|[-+*/^!=<>]")


def without_operations(words: str, is_number: Callable[[str], bool]) -> str:
    """`words` with `u` for each operation, and nothing for one that is a side of an equation. `is_number`:
    whether a fraction or a power of ten is a number as written."""

    def replaced(found: re.Match[str]) -> str:
        return found[0] if looks_like_number(found[0]) and is_number(found[0]) else UNREAD

    words = TYPOGRAPHY.sub(" ", words.replace("{,}", ",").replace(UNREAD, ""))
    for _ in range(DEEPEST):
        fewer = OPERATION.sub(replaced, words)
        if fewer == words:
            break
        words = fewer
    return SIDE.sub(" ", words).replace(UNREAD, "u")


def looks_like_number(words: str) -> bool:
    """Whether it is a fraction of whole numbers, or one with a power of ten."""
    words = words.strip()
    if FRACTIONAL.fullmatch(words):
        return True
    found = SCIENTIFIC.fullmatch(words)
    if found is None:
        return False
    exponent = int(found["a"] or found["b"] or found["c"])
    return found["mantissa"] is not None or exponent < 0 or exponent >= MILLION


def is_numbers(words: str, is_number: Callable[[str], bool]) -> bool:
    """Whether it is a number or several (a set, an interval, a row), without an operation."""
    words = TYPOGRAPHY.sub(" ", words.replace("{,}", ",")).replace("\\{", "{").replace("\\}", "}")
    words = re.sub(r"\\?%|\\?[$€£¥]", " ", words)
    words = OPERATION.sub(
        lambda found: "0" if looks_like_number(found[0]) and is_number(found[0]) else UNREAD, words
    )
    words = re.sub(NUMBER, "0", words).strip(" *.")
    return "0" in words and SEVERAL.fullmatch(words) is not None


def tokens(words: str) -> list[str]:
    """Numbers, words and signs, alike for all ways to write them; brackets are left out."""
    for pattern, sign in ALIKE:
        words = pattern.sub(sign, words)
    return [_plainly(token) for token in TOKEN.findall(words)]


def _plainly(token: str) -> str:
    if not token[0].isdigit() and token[0] != ".":
        return token.lower() if len(token) > 1 else token
    whole, point, rest = token.replace(",", "").partition(".")
    rest = rest.rstrip("0")
    return (whole.lstrip("0") or "0") + (point + rest if rest else "")


def repeats(said: Sequence[str], prompt: Sequence[str]) -> bool:
    """Whether these tokens stand side by side in the prompt, in any order."""
    wanted, size = sorted(said), len(said)
    return size > 0 and any(sorted(prompt[i : i + size]) == wanted for i in range(len(prompt) - size + 1))
