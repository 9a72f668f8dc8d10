"""Little stories with a sum in them, answered with the same steps as the bare sum and the thing that is counted."""

from random import Random

from data.conversation import Conversation, assistant, user
from data.synthetic import arithmetic
from data.synthetic.draw import between, listed, pick
from data.synthetic.people import COMMON
from data.synthetic.reserve import HeldOut, reserved
from data.synthetic.wording import Group, casual, compose

THINGS = listed(
    "apples books cakes cards coins cups eggs flowers hats keys lemons nuts pears pens plums shells stamps stones "
    "sweets toys"
)
BOXES = ("bags", "boxes", "baskets", "bowls", "shelves")

# What there is, what happens, what is asked: every combination is a wording, a fifth of them reserved.
_HAS = ("{n} has {a} {t}", "{n} had {a} {t}", "{n} bought {a} {t}")
_THERE_ARE = ("There are {a} {t} in a box", "There were {a} {t} on a table", "There are {a} {t} in a shop")
_GETS = (" and gets {b} more.", ". {n} gets {b} more.", ". {n} buys {b} more.", ". {m} gives {n} {b} more.")
_LOSES = (" and loses {b}.", ". {n} gives away {b}.", ". {n} sells {b}.", ". {m} takes {b} of them.")
_PUTS = (". {n} puts in {b} more.", ". {n} puts {b} more there.", ". {n} adds {b} more.")
_TAKES = (". {n} takes out {b}.", ". {n} takes {b} away.", ". {n} buys {b} of them.")
_OF_ONE = ("How many {t} does {n} have now?", "How many {t} is that in all?")
_OF_ALL = ("How many {t} are there now?", "How many {t} is that in all?")
_LEFT_OF_ONE = ("How many {t} does {n} have left?", "How many {t} are left?")
_LEFT = ("How many {t} are left?", "How many {t} are there now?")
_TOGETHER = ("How many {t} do they have together?", "How many {t} do they have in all?")


def _story(openings: tuple[str, ...], events: tuple[str, ...], questions: tuple[str, ...]) -> Group:
    return tuple(f"{opening}{event} @" for opening in openings for event in events), questions


ADD = compose(
    "story +",
    _story(_HAS, _GETS, _OF_ONE),
    _story(_THERE_ARE, _PUTS, _OF_ALL),
    _story(("{n} has {a} {t}", "{n} found {a} {t}"), (" and {m} has {b}.", ". {m} has {b} {t}."), _TOGETHER),
    _story(
        ("{n} has {a} red {t}", "There are {a} red {t}"), (" and {b} blue {t}.",), ("How many {t} is that in all?",)
    ),
)
SUBTRACT = compose(
    "story -",
    _story(_HAS, _LOSES, _LEFT_OF_ONE),
    _story(_THERE_ARE, _TAKES, _LEFT),
    _story(
        ("{n} has {a} {t}", "{n} found {a} {t}"),
        (" and {m} has {b}.", ". {m} has {b} {t}."),
        ("How many more {t} does {n} have than {m}?", "How many more does {n} have?"),
    ),
    _story(("Of {a} {t}",), (", {b} are broken.", ", {b} are old."), ("How many {t} are not?", "How many are not?")),
)
TIMES = compose(
    "story ×",
    _story(
        ("{n} has {a} {x}", "{n} buys {a} {x}", "There are {a} {x}", "{n} fills {a} {x}"),
        (" with {b} {t} in each.", ". Each has {b} {t}.", " of {b} {t} each."),
        ("How many {t} is that in all?", "How many {t} are there in all?"),
    ),
)
DIVIDE = compose(
    "story /",
    _story(
        ("{n} shares {a} {t}", "{n} shares out {a} {t}", "They share {a} {t}"),
        (" among {b} friends.", " equally among {b} children.", " among {b} people."),
        ("How many {t} does each get?", "How many {t} are there for each?", "How many does each one get?"),
    ),
    _story(
        ("{n} puts {a} {t}", "They put {a} {t}"),
        (" into {b} equal {x}.", " into {b} {x}, the same number in each."),
        ("How many {t} are in each?", "How many {t} are there in each?"),
    ),
)
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
    return ("/", *arithmetic.draw_division(rng, held_out, exact=1.0))


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
