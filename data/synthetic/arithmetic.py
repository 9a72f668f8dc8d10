"""Sums of small numbers with visible steps, and of large ones with the calculator.

Sums and differences of two-digit numbers and divisions below 200 are done step by step, each step a fact that a
small model can remember. The products up to 12 × 12 are remembered whole, forwards and backwards. All else is for
the calculator: sums with three digits or more, larger products and divisions, results below zero.
"""

from random import Random

from data.calculator import evaluate
from data.conversation import Conversation, Message, Part, assistant, user
from data.synthetic.draw import between, chance, pick
from data.synthetic.reserve import HeldOut, reserved, reserved_pair
from data.synthetic.wording import ask, compose

_SUM = (
    "@",
    "@ = ?",
    "@ =",
    "What is @?",
    "What's @?",
    "How much is @?",
    "Calculate @.",
    "Please calculate @.",
    "Can you calculate @?",
    "Work out @.",
    "Please work out @.",
    "Can you work out @?",
    "Tell me @.",
    "Please tell me @.",
    "Can you tell me @?",
    "I need @.",
)
_DO = ("@.", "Please @.", "Can you @?", "Could you @?", "I want to @.")
_NOUN = ("What is @?", "Tell me @.", "Find @.", "Please find @.", "Can you find @?", "Can you tell me @?")

ADD = compose(
    "add",
    (_SUM, ("{a} + {b}", "{a}+{b}", "{a} plus {b}")),
    (_DO, ("add {a} and {b}", "add {a} to {b}")),
    (_NOUN, ("the sum of {a} and {b}",)),
)
SUBTRACT = compose(
    "subtract",
    (_SUM, ("{a} - {b}", "{a}-{b}", "{a} minus {b}")),
    (_DO, ("subtract {b} from {a}", "take {b} away from {a}", "take {b} from {a}")),
    (_NOUN, ("the difference between {a} and {b}",)),
)
TIMES = compose(
    "times",
    (_SUM, ("{a} × {b}", "{a} * {b}", "{a}*{b}", "{a} x {b}", "{a} times {b}")),
    (_DO, ("multiply {a} by {b}", "multiply {a} and {b}")),
    (_NOUN, ("the product of {a} and {b}",)),
)
DIVIDE = compose(
    "divide",
    (_SUM, ("{a} / {b}", "{a}/{b}", "{a} ÷ {b}", "{a} divided by {b}")),
    (_DO, ("divide {a} by {b}",)),
)
EXPRESSION = compose("expression", (_SUM, ("{e}",)))

# A step is (operation, left, right, result).
Step = tuple[str, int, int, int]


def add_steps(a: int, b: int) -> list[Step]:
    """Tens, ones, both: 60 + 20 = 80, 3 + 9 = 12, so 63 + 29 = 92."""
    final = ("+", a, b, a + b)
    ones_a, ones_b = a % 10, b % 10
    if (a < 10 and b < 10) or (ones_a == 0 and ones_b == 0):
        return [final]
    ones = ("+", ones_a, ones_b, ones_a + ones_b)
    if a < 10 or b < 10:
        return [ones, final]
    return [("+", a - ones_a, b - ones_b, a - ones_a + b - ones_b), ones, final]


def subtract_steps(a: int, b: int) -> list[Step]:
    """First the tens, then the ones, so that nothing is borrowed: 63 - 20 = 43, 43 - 9 = 34, so 63 - 29 = 34."""
    final = ("-", a, b, a - b)
    ones = b % 10
    if b < 10 or ones == 0:
        return [final]
    rest = a - (b - ones)
    return [("-", a, b - ones, rest), ("-", rest, ones, a - b), final]


def divide_steps(a: int, b: int) -> tuple[list[Step], int, int]:
    """Long division by one digit, the quotient below 100: the steps, the quotient and the remainder.

    85 / 3: 3 × 20 = 60, 85 - 60 = 25, 3 × 8 = 24, 25 - 24 = 1, so 85 / 3 = 28 remainder 1.
    """
    steps: list[Step] = []
    rest = a
    tens = a // b // 10 * 10
    for part in (tens, a // b - tens):
        if part:
            steps.append(("×", b, part, b * part))
            if rest != b * part:
                steps.append(("-", rest, b * part, rest - b * part))
            rest -= b * part
    return steps, a // b, rest


def write(steps: list[Step], unit: str = "") -> str:
    """The steps as the assistant writes them, `so` before the last; `unit` says what is counted."""
    lines = [f"{left} {operation} {right} = {result}" for operation, left, right, result in steps]
    ending = f" {unit}." if unit else "."
    return ", so ".join([", ".join(lines[:-1]), lines[-1]] if len(lines) > 1 else lines) + ending


def write_division(a: int, b: int, unit: str = "") -> str:
    """The answer to a / b, steps and all."""
    steps, quotient, remainder = divide_steps(a, b)
    text = write([*steps, ("/", a, b, quotient)], unit if not remainder else "")
    return text if not remainder else f"{text[:-1]} remainder {remainder}."


def sum_reserved(operation: str, a: int, b: int) -> bool:
    """Whether a sum or difference of two-digit numbers is kept for evaluation.

    Multiples of ten and differences below ten are steps of other problems, so they are all taught.
    """
    if min(a, b) < 10 or max(a, b) > 99 or b % 10 == 0:
        return False
    if a % 10 == 0 if operation == "+" else a - b < 10:
        return False
    return reserved(operation, min(a, b), max(a, b))


def division_reserved(a: int, b: int) -> bool:
    """Whether a division is kept for evaluation: a tenth of those that need both tens and ones in the quotient.

    The others are steps of these, so they are all taught.
    """
    return b < 10 and a >= 10 * b and a // b % 10 != 0 and reserved("/", a, b)


# ---- drawing operands -------------------------------------------------------------------------------------------


def draw_addition(rng: Random, held_out: bool) -> tuple[int, int]:
    """Two numbers to add, two digits each (in training, 15 % have a single digit)."""
    while True:
        low = 10 if held_out or rng.random() < 0.85 else 0
        a, b = between(rng, 10, 99), between(rng, low, 99 if low else 9)
        if not low and rng.random() < 0.5:
            a = between(rng, 0, 9)
        if not low and rng.random() < 0.5:
            a, b = b, a
        if sum_reserved("+", a, b) == held_out:
            return a, b


def draw_subtraction(rng: Random, held_out: bool) -> tuple[int, int]:
    """A number and a smaller one to take from it (in training, 20 % of the second have one digit)."""
    while True:
        if held_out or rng.random() < 0.8:
            a, b = between(rng, 10, 99), between(rng, 10, 99)
        else:
            a, b = between(rng, 0, 99), between(rng, 0, 9)
        a, b = max(a, b), min(a, b)
        if sum_reserved("-", a, b) == held_out:
            return a, b


def draw_division(rng: Random, held_out: bool, exact: float = 0.5) -> tuple[int, int]:
    """A number to be divided by 2 to 9; a share `exact` leaves no remainder.

    Most of them (in the evaluation, all) have a quotient of two digits, and are below 200. Of these, some are chosen to
    go exactly and end in 1, as 55 / 5: there are few, and what is left after the tens looks like a remainder. A few of
    the others are rows of the tables of 10, 11 and 12.
    """
    long = held_out or rng.random() < 0.6
    while True:
        b = between(rng, 2, 9)
        if long and not held_out and rng.random() < 0.12:
            a = b * (10 * between(rng, 1, (199 // b - 1) // 10) + 1)
            if not division_reserved(a, b):
                return a, b
        low, high = (10 * b, 199) if long else (b, 10 * b - 1)
        if not long and rng.random() < 0.1:
            b = between(rng, 10, 12)
            return b * between(rng, 1, 12), b
        a = b * between(rng, low // b, high // b) if rng.random() < exact else between(rng, low, high)
        if division_reserved(a, b) == held_out:
            return a, b


def draw_calculation(rng: Random, held_out: bool) -> tuple[str, int, int]:
    """An operation and two numbers that are too large for steps."""
    while True:
        a, b = _large(rng), _large(rng)
        operation = "+-*/"[int(rng.random() * 4)]
        if operation in "+-" and rng.random() < 0.3:
            b = between(rng, 2, 99)
            if operation == "+" and rng.random() < 0.5:
                a, b = b, a
        elif operation == "*":
            b = between(rng, 13, 99)
            if rng.random() < 0.6:
                a = between(rng, 2, 99)
            if rng.random() < 0.5:
                a, b = b, a
        elif operation == "/":
            b = between(rng, 2, 40)
            a = b * between(rng, 200 // b + 1, 999 // b)
            if rng.random() < 0.2:
                b, a = pick(rng, (2, 4, 5, 8, 10, 20)), between(rng, 200, 999)
        if operation == "-" and a < b:
            a, b = b, a
        if reserved_pair(a, b) == held_out:
            return operation, a, b


def _large(rng: Random) -> int:
    return between(rng, 100, 999) if rng.random() < 0.85 else between(rng, 1000, 9999)


def calculate(expression: str) -> str:
    """What the calculator says; ValueError if it refuses, which no generated expression deserves."""
    if (result := evaluate(expression)) is None:
        raise ValueError(f"the calculator refuses {expression!r}")
    return result


# ---- conversations ----------------------------------------------------------------------------------------------

CALCULATOR_WORDINGS = {"+": ADD, "-": SUBTRACT, "*": TIMES, "/": DIVIDE}


def calculator_reply(expression: str, result: str) -> Message:
    """An assistant's turn that calls the calculator and repeats what it said."""
    return assistant(Part("calculator", expression), Part("output", result), f"The answer is {result}.")


def add(rng: Random) -> Conversation:
    a, b = draw_addition(rng, held_out=False)
    return user(ask(rng, ADD.train, a=a, b=b)), assistant(write(add_steps(a, b)))


def subtract(rng: Random) -> Conversation:
    a, b = draw_subtraction(rng, held_out=False)
    return user(ask(rng, SUBTRACT.train, a=a, b=b)), assistant(write(subtract_steps(a, b)))


def times(rng: Random) -> Conversation:
    a, b = between(rng, 1, 12), between(rng, 1, 12)
    return user(ask(rng, TIMES.train, a=a, b=b)), assistant(f"{a} × {b} = {a * b}.")


def divide(rng: Random) -> Conversation:
    a, b = draw_division(rng, held_out=False)
    return user(ask(rng, DIVIDE.train, a=a, b=b)), assistant(write_division(a, b))


def calculator(rng: Random) -> Conversation:
    if chance(rng, 0.18):
        return _other_calculation(rng)
    operation, a, b = draw_calculation(rng, held_out=False)
    words = ask(rng, CALCULATOR_WORDINGS[operation].train, a=a, b=b)
    expression = f"{a} {operation} {b}"
    return user(words), calculator_reply(expression, calculate(expression))


def _other_calculation(rng: Random) -> Conversation:
    """What is not evaluated, but asked: three numbers, results below zero, quotients with many decimals."""
    kind = rng.random()
    if kind < 0.45:
        a, b, c = between(rng, 2, 99), between(rng, 2, 99), between(rng, 2, 99)
        expression = f"{a} {pick(rng, '+-*')} {b} {pick(rng, '+-*')} {c}"
        asked = expression.replace(" ", "") if chance(rng, 0.3) else expression
        return user(ask(rng, EXPRESSION.train, e=asked)), calculator_reply(expression, calculate(expression))
    if kind < 0.8:
        most, operation = pick(rng, (9, 99)), "-"
        a, b = between(rng, 0, most), between(rng, 0, most)
        a, b = min(a, b), max(a, b) + (a == b)
    else:
        a, b, operation = between(rng, 200, 999), between(rng, 3, 99), "/"
    words = ask(rng, CALCULATOR_WORDINGS[operation].train, a=a, b=b)
    expression = f"{a} {operation} {b}"
    return user(words), calculator_reply(expression, calculate(expression))


# ---- plain text ---------------------------------------------------------------------------------------------------


def add_line(rng: Random) -> str:
    a, b = draw_addition(rng, held_out=False)
    return _line(rng, f"{a} + {b}", write(add_steps(a, b)))


def subtract_line(rng: Random) -> str:
    a, b = draw_subtraction(rng, held_out=False)
    return _line(rng, f"{a} - {b}", write(subtract_steps(a, b)))


def times_line(rng: Random) -> str:
    """A stretch of a table, forwards or backwards: 7 × 3 = 21. 7 × 4 = 28. Or: 21 = 7 × 3. 28 = 7 × 4."""
    a, start = between(rng, 1, 12), between(rng, 1, 10)
    rows = [(a, b) if chance(rng, 0.5) else (b, a) for b in range(start, start + 3)]
    if chance(rng, 0.5):
        return " ".join(f"{left} × {right} = {left * right}." for left, right in rows)
    return " ".join(f"{left * right} = {left} × {right}." for left, right in rows)


def divide_line(rng: Random) -> str:
    a, b = draw_division(rng, held_out=False)
    return _line(rng, f"{a} / {b}", write_division(a, b))


def _line(rng: Random, problem: str, solution: str) -> str:
    return f"{problem} = ? {solution}" if chance(rng, 0.7) else f"Work out {problem}. {solution}"


# ---- evaluation ---------------------------------------------------------------------------------------------------


def held_out_add(rng: Random) -> HeldOut:
    a, b = draw_addition(rng, held_out=True)
    return HeldOut((user(ask(rng, ADD.all, a=a, b=b)),), str(a + b))


def held_out_subtract(rng: Random) -> HeldOut:
    a, b = draw_subtraction(rng, held_out=True)
    return HeldOut((user(ask(rng, SUBTRACT.all, a=a, b=b)),), str(a - b))


def held_out_times(rng: Random) -> HeldOut:
    """The table is taught whole; what is new are the words."""
    a, b = between(rng, 1, 12), between(rng, 1, 12)
    return HeldOut((user(ask(rng, TIMES.reserved, a=a, b=b)),), str(a * b))


def held_out_divide(rng: Random) -> HeldOut:
    a, b = draw_division(rng, held_out=True)
    quotient, remainder = divmod(a, b)
    answer = f"{quotient} remainder {remainder}" if remainder else str(quotient)
    return HeldOut((user(ask(rng, DIVIDE.all, a=a, b=b)),), answer)


def held_out_calculator(rng: Random) -> HeldOut:
    operation, a, b = draw_calculation(rng, held_out=True)
    words = ask(rng, CALCULATOR_WORDINGS[operation].all, a=a, b=b)
    expression = f"{a} {operation} {b}"
    return HeldOut((user(words),), calculate(expression), {"expression": expression})
