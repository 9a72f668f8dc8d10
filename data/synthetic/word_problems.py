"""Little stories with a sum in them, answered with the same steps as the bare sum and the thing that is counted."""

from random import Random

from data.conversation import Conversation, assistant, user
from data.synthetic import arithmetic
from data.synthetic.draw import between, listed, pick
from data.synthetic.people import COMMON
from data.synthetic.reserve import HeldOut, reserved
from data.synthetic.wording import Wordings, casual

THINGS = listed(
    "apples books cakes cards coins cups eggs flowers hats keys lemons nuts pears pens plums shells stamps stones "
    "sweets toys"
)
BOXES = ("bags", "boxes", "baskets", "bowls", "shelves")

_HAS = ("{n} has {a} {t}", "{n} had {a} {t}", "{n} bought {a} {t}", "{n} found {a} {t}")
_GETS = ("gets {b} more", "buys {b} more", "finds {b} more", "gets {b} more from {m}")
_GIVES = ("gives away {b}", "loses {b}", "gives {b} to {m}", "sells {b}", "gives {m} {b}")
_PLACES = ("in a box", "on a table", "in a bag", "in a shop", "on a shelf")
_PUTS = ("{n} puts in {b} more", "{n} puts {b} more there", "{n} adds {b} more", "{n} brings {b} more")
_TAKES = ("{n} takes out {b}", "{n} takes {b} away", "{n} takes {b} of them", "{m} takes {b}", "{n} buys {b} of them")


def _stories(kind: str, *parts: tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]) -> Wordings:
    """Every opening with every event and every question of its part; a fifth of the stories is reserved."""
    groups = []
    for openings, events, questions in parts:
        for joined in ("{o}. {v}. {q}", "{o} and then {v}. {q}"):
            if events and (joined[3] == ".") != events[0].startswith("{"):
                continue
            groups.append((tuple(joined.replace("{o}", o).replace("{v}", v) for o in openings for v in events), questions))
    return compose(kind, *((tuple(f.replace("{q}", "@") for f in frames), questions) for frames, questions in groups))


KINDS = {"+": ADD, "-": SUBTRACT, "×": TIMES, "/": DIVIDE}


def draw(rng: Random, held_out: bool) -> tuple[str, int, int]:
    """The operation and the two numbers; a tenth of each operation's numbers is kept for evaluation."""
    kind = rng.random()
    if kind < 0.38:
        return ("+", *arithmetic.draw_addition(rng, held_out))
    if kind < 0.76:
        return ("-", *arithmetic.draw_subtraction(rng, held_out))
    while kind < 0.88:
        a, b = between(rng, 2, 12), between(rng, 2, 12)
        if reserved("story ×", a, b) == held_out:
            return "×", a, b
    while True:
        b = between(rng, 2, 9)
        a = b * between(rng, 2, 99 // b)
        if arithmetic.division_reserved(a, b) == held_out:
            return "/", a, b


def answer(operation: str, a: int, b: int, things: str) -> str:
    """The steps, the result and what it counts."""
    if operation == "/":
        return arithmetic.write_division(a, b, things)
    if operation == "×":
        return arithmetic.write([("×", a, b, a * b)], things)
    steps = arithmetic.add_steps(a, b) if operation == "+" else arithmetic.subtract_steps(a, b)
    return arithmetic.write(steps, things)


def _problem(rng: Random, operation: str, a: int, b: int, wordings: tuple[str, ...]) -> tuple[str, str]:
    """A story around the numbers, and the thing that it counts."""
    name, other, things = pick(rng, COMMON), pick(rng, COMMON), pick(rng, THINGS)
    while other == name:
        other = pick(rng, COMMON)
    return pick(rng, wordings).format(n=name, m=other, a=a, b=b, t=things, x=pick(rng, BOXES)), things


def chat(rng: Random) -> Conversation:
    operation, a, b = draw(rng, held_out=False)
    problem, things = _problem(rng, operation, a, b, KINDS[operation].train)
    return user(casual(rng, problem)), assistant(answer(operation, a, b, things))


def line(rng: Random) -> str:
    operation, a, b = draw(rng, held_out=False)
    problem, things = _problem(rng, operation, a, b, KINDS[operation].train)
    return f"{problem} {answer(operation, a, b, things)}"


def held_out(rng: Random) -> HeldOut:
    operation, a, b = draw(rng, held_out=True)
    problem, things = _problem(rng, operation, a, b, KINDS[operation].all)
    result = {"+": a + b, "-": a - b, "×": a * b, "/": a // b}[operation]
    return HeldOut((user(casual(rng, problem)),), str(result), {"unit": things})
