"""Linear equations in x, solved in visible steps: 5x = 13 - 3 = 10, x = 10 / 5, so x = 2."""

from random import Random

from data.conversation import Conversation, assistant, user
from data.synthetic.arithmetic import sum_reserved
from data.synthetic.draw import between, chance
from data.synthetic.reserve import HeldOut, reserved
from data.synthetic.wording import ask, compose

WORDINGS = compose(
    "equation",
    (
        (
            "@",
            "If @, then x is",
            "If @, x is",
            "If @, what is x?",
            "If @, then what is x?",
            "Solve @.",
            "Please solve @.",
            "Can you solve @?",
            "Solve @ for x.",
            "Solve for x: @",
            "Please solve for x: @",
            "@, x = ?",
            "What is x if @?",
            "Tell me x if @.",
            "Find x if @.",
            "Find x: @",
            "Please find x: @",
            "@. What is x?",
            "@. Find x.",
        ),
        ("{e}",),
    ),
    one_in=4,
)


def is_reserved(sign: str, a: int, b: int, x: int) -> bool:
    """Whether the equation ax ± b = c with this solution is kept for evaluation."""
    return reserved("equation", sign, a, b, x)


def draw(rng: Random, held_out: bool) -> tuple[str, int, int, int]:
    """The sign, a, b and x of an equation ax ± b = c, with a 1 to 9, b 1 to 15, x 1 to 12 and c above 0."""
    while True:
        a = between(rng, 2, 9) if rng.random() < 0.9 else 1
        # Most have a one-digit b: the first step is then a sum that arithmetic teaches, too.
        b, x = between(rng, 1, 9) if rng.random() < 0.75 else between(rng, 10, 15), between(rng, 1, 12)
        sign = "+" if rng.random() < 0.5 else "-"
        c = a * x + b if sign == "+" else a * x - b
        # The first step is itself a sum. One that is kept for evaluation must not be shown in training.
        step_reserved = sum_reserved("-" if sign == "+" else "+", c, b)
        if c > 0 and not step_reserved and is_reserved(sign, a, b, x) == held_out:
            return sign, a, b, x


def equation(sign: str, a: int, b: int, x: int) -> str:
    """The equation as it is asked: 5x + 3 = 13."""
    c = a * x + b if sign == "+" else a * x - b
    return f"{_term(a)} {sign} {b} = {c}"


def solution(sign: str, a: int, b: int, x: int) -> str:
    """The steps to x, and x last."""
    c, inverse = (a * x + b, "-") if sign == "+" else (a * x - b, "+")
    first = f"{_term(a)} = {c} {inverse} {b} = {a * x}"
    return f"{first}, so x = {x}." if a == 1 else f"{first}, x = {a * x} / {a}, so x = {x}."


def _term(a: int) -> str:
    return "x" if a == 1 else f"{a}x"


def chat(rng: Random) -> Conversation:
    drawn = draw(rng, held_out=False)
    return user(ask(rng, WORDINGS.train, e=equation(*drawn))), assistant(solution(*drawn))


def line(rng: Random) -> str:
    drawn = draw(rng, held_out=False)
    opening = "Solve" if chance(rng, 0.5) else "If"
    asked = f"Solve {equation(*drawn)}." if opening == "Solve" else f"If {equation(*drawn)}, then x is"
    return f"{asked} {solution(*drawn)}"


def held_out(rng: Random) -> HeldOut:
    drawn = draw(rng, held_out=True)
    return HeldOut((user(ask(rng, WORDINGS.all, e=equation(*drawn))),), str(drawn[3]))
