"""A user's name, remembered over the turns between."""

from random import Random

from data.conversation import Conversation, Message, assistant, user
from data.synthetic import arithmetic, facts
from data.synthetic.draw import chance, pick
from data.synthetic.people import draw_name
from data.synthetic.reserve import HeldOut
from data.synthetic.wording import casual, compose

# The name always follows a space, so that it is the same tokens in the question and in the answer.
_ANNOUNCE = ("@.", "Hello, @.", "Hello! @.", "Hi, @.", "Hi! @.", "Hey, @.", "Good morning, @.", "Good evening, @.")
TELL = compose(
    "tell name",
    (_ANNOUNCE, ("my name is {n}", "I am {n}", "please call me {n}", "you can call me {n}", "people call me {n}")),
)
_REQUEST = (
    "What is @?",
    "What's @?",
    "What was @?",
    "Tell me @.",
    "Please tell me @.",
    "Can you tell me @?",
    "Do you know @?",
    "Do you remember @?",
    "Say @.",
    "Please say @.",
    "Can you say @?",
)
ASK = compose("ask name", (_REQUEST, ("my name", "my name again")), (("@?", "Tell me, @?"), ("who am I",)))
_LIKES = ("a cat", "a dog", "a hat", "a book", "a boat", "a drum", "a garden", "a red coat")
_BETWEEN = (facts.chat, facts.chat, arithmetic.add, arithmetic.subtract, arithmetic.times)


def _opening(rng: Random, wordings: tuple[str, ...], name: str) -> list[Message]:
    """The user says the name, then come up to two exchanges on other matters."""
    told = casual(rng, pick(rng, wordings).format(n=name), keep=name)
    messages = [user(told), assistant(f"Nice to meet you, {name}!")]
    for _ in range(pick(rng, (0, 0, 0, 1, 1, 2))):
        messages.extend(pick(rng, _BETWEEN)(rng))
    return messages


def chat(rng: Random) -> Conversation:
    name = draw_name(rng, held_out=False)
    reply = assistant(f"Your name is {name}.")
    if chance(rng, 0.08):  # all in one message
        return user(casual(rng, f"{pick(rng, TELL.train)} {pick(rng, ASK.train)}".format(n=name), keep=name)), reply
    messages = _opening(rng, TELL.train, name)
    if chance(rng, 0.9):
        messages += [user(casual(rng, pick(rng, ASK.train))), reply]
    return tuple(messages)


def line(rng: Random) -> str:
    """Plain text in which names come back."""
    name, other = draw_name(rng, held_out=False), draw_name(rng, held_out=False)
    plan = rng.random()
    if plan < 0.3:
        told = pick(rng, TELL.train).format(n=name)
        return f"{told} Nice to meet you, {name}! {pick(rng, ASK.train)} Your name is {name}."
    if plan < 0.6:
        third = draw_name(rng, held_out=False)
        return f"Names: {name}, {other}, {third}. Again: {name}, {other}, {third}."
    first, second = pick(rng, _LIKES), pick(rng, _LIKES)
    return f"One is {name} and one is {other}. Here {name} has {first} and {other} has {second}."


def held_out(rng: Random) -> HeldOut:
    name = draw_name(rng, held_out=True)
    messages = _opening(rng, TELL.all, name)
    return HeldOut((*messages, user(casual(rng, pick(rng, ASK.all)))), name)
