"""Hello, thanks, goodbye, and who the assistant is. Some combinations of the words are kept for the evaluation."""

from dataclasses import dataclass
from functools import cache
from random import Random

from data.conversation import Conversation, assistant, user
from data.synthetic.draw import chance, pick
from data.synthetic.reserve import HeldOut, reserved_among
from data.synthetic.wording import casual


@dataclass(frozen=True)
class Intent:
    """What people mean: the pieces that a message is made of, the one reply, and the words a reply must have."""

    openings: tuple[str, ...]
    endings: tuple[str, ...]
    reply: str
    marker: str


_TO = ("", " there", " Tandem", " again", " my friend", " everyone", " dear friend", ", nice to meet you")
_HELLO = tuple(f"{word}{to}" for word in ("Hello", "Hi", "Hey") for to in ("", " there", " Tandem"))

INTENTS = (
    Intent(
        ("Hello", "Hi", "Hey", "Hello hello", "Hi hi"),
        tuple(f"{to}." for to in _TO),
        "Hello! How can I help you?",
        "hello",
    ),
    Intent(("Good morning",), tuple(f"{to}." for to in _TO), "Good morning! How can I help you?", "good morning"),
    Intent(("Good evening",), tuple(f"{to}." for to in _TO), "Good evening! How can I help you?", "good evening"),
    Intent(("Good afternoon",), tuple(f"{to}." for to in _TO), "Good afternoon! How can I help you?", "good afternoon"),
    Intent(
        ("How are you", "How are you doing", "How do you feel"),
        tuple(
            f"{when}?" for when in ("", " today", " now", " this morning", " this evening", ", Tandem", ", my friend")
        ),
        "I am fine, thank you. How can I help you?",
        "fine",
    ),
    Intent(
        ("Thanks", "Thank you", "Thank you so much", "Thanks a lot", "Many thanks", "Thank you very much"),
        tuple(f"{to}." for to in ("", " Tandem", " my friend", " for your help", " for that", " again", " for this")),
        "You are welcome!",
        "welcome",
    ),
    Intent(
        ("Bye", "Goodbye", "Bye bye", "Good night", "See you", "OK, bye"),
        tuple(
            f"{to}." for to in ("", " Tandem", " my friend", " for now", " then", " and take care", " until tomorrow")
        ),
        "Goodbye!",
        "goodbye",
    ),
    Intent(
        ("Who are you", "What are you", "What is your name", "Tell me who you are", "Who am I talking to"),
        tuple(f"{to}?" for to in ("", ", please", ", Tandem", ", my friend", " exactly")),
        "I am Tandem, a small language model.",
        "tandem",
    ),
    Intent(
        ("What can you do", "What can you help me with", "How can you help me", "What are you good at"),
        tuple(f"{to}?" for to in ("", " for me", ", please", ", Tandem", " today", " here")),
        "I can do sums, answer questions and write haiku.",
        "sums",
    ),
)


@cache
def _messages(held_out: bool) -> tuple[tuple[tuple[str, ...], str, str], ...]:
    """For each intent the messages of one side, the reply and its marker.

    A bare opening is always taught. A greeting before `how are you`, `who are you` and `what can you do` does not
    change the reply.
    """
    sides = []
    for intent in INTENTS:
        prefixes = ("", *(f"{hello}. " for hello in _HELLO)) if intent.endings[0] == "?" else ("",)
        bare = [f"{opening}{intent.endings[0]}" for opening in intent.openings]
        texts = [f"{p}{opening}{ending}" for p in prefixes for opening in intent.openings for ending in intent.endings]
        kept = reserved_among("greeting", set(texts).difference(bare), one_in=5, least=2)
        sides.append((tuple(text for text in texts if (text in kept) == held_out), intent.reply, intent.marker))
    return tuple(sides)


def chat(rng: Random) -> Conversation:
    texts, reply, _ = pick(rng, _messages(False))
    # Half of what people type is the shortest form.
    text = texts[0] if chance(rng, 0.2) else pick(rng, texts)
    # Greetings are typed carelessly more often than the rest, so twice the chance.
    return user(casual(rng, casual(rng, text))), assistant(reply)


def line(rng: Random) -> str:
    texts, reply, _ = pick(rng, _messages(False))
    return f"{pick(rng, texts)} {reply}"


def fixed_list() -> list[HeldOut]:
    """The evaluation's list: every kept message as written, then lower-cased, then without its last mark."""
    found = []
    for texts, reply, marker in _messages(True):
        for text in texts:
            for typed in dict.fromkeys((text, text.lower(), text[:-1])):
                found.append(HeldOut((user(typed),), reply, {"marker": marker}))
    return found
