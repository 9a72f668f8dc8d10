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


def _ends(mark: str, *endings: str) -> tuple[str, ...]:
    return tuple(f"{ending}{mark}" for ending in ("", *endings))


_TO = _ends(
    ".", " there", " Tandem", " again", " my friend", " everyone", " dear friend", " to you", ", nice to meet you"
)

INTENTS = (
    Intent(("Hello", "Hi", "Hey", "Hello hello", "Hi hi"), _TO, "Hello! How can I help you?", "hello"),
    Intent(("Good morning",), _TO, "Good morning! How can I help you?", "good morning"),
    Intent(("Good evening",), _TO, "Good evening! How can I help you?", "good evening"),
    Intent(("Good afternoon",), _TO, "Good afternoon! How can I help you?", "good afternoon"),
    Intent(
        ("How are you", "How are you doing", "How do you do", "How do you feel", "How is it going"),
        _ends("?", " today", " now", " this morning", " this evening", ", Tandem", ", my friend"),
        "I am fine, thank you. How can I help you?",
        "fine",
    ),
    Intent(
        ("Thanks", "Thank you", "Thank you so much", "Thanks a lot", "Many thanks", "Thank you very much"),
        _ends(
            ".",
            " Tandem",
            " my friend",
            " for your help",
            " for that",
            " again",
            " for this",
            " for the answer",
            " for all",
        ),
        "You are welcome!",
        "welcome",
    ),
    Intent(
        ("Bye", "Goodbye", "Bye bye", "Good night", "See you", "OK, bye"),
        _ends(
            ".",
            " Tandem",
            " my friend",
            " for now",
            " then",
            " and take care",
            " until tomorrow",
            " for today",
            " soon",
        ),
        "Goodbye!",
        "goodbye",
    ),
    Intent(
        ("Who are you", "What are you", "What is your name", "Tell me who you are", "Say who you are"),
        _ends("?", ", please", ", Tandem", ", my friend", " exactly", " really"),
        "I am Tandem, a small language model.",
        "tandem",
    ),
    Intent(
        ("What can you do", "What can you help me with", "How can you help me", "What are you good at"),
        _ends("?", " for me", ", please", ", Tandem", " today", " here"),
        "I can do sums, answer questions and write haiku.",
        "sums",
    ),
)


@cache
def _messages(held_out: bool) -> tuple[tuple[tuple[str, ...], str, str], ...]:
    """For each intent the messages of one side, the reply and its marker.

    A fifth is kept for the evaluation, never a bare opening. A greeting before `how are you`, `who are you` and
    `what can you do` changes neither the side nor the reply.
    """
    sides = []
    for intent in INTENTS:
        bare = {f"{opening}{intent.endings[0]}" for opening in intent.openings}
        texts = [f"{opening}{ending}" for opening in intent.openings for ending in intent.endings]
        kept = reserved_among("greeting", set(texts) - bare, one_in=5)
        prefixes = ("", "Hello. ", "Hi. ", "Hey. ", "Hello! ", "Hi! ") if intent.endings[0] == "?" else ("",)
        side = tuple(prefix + text for prefix in prefixes for text in texts if (text in kept) == held_out)
        sides.append((side, intent.reply, intent.marker))
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
    """The evaluation's list: every kept message as written, lower-cased, without its last mark, and both."""
    return [
        HeldOut((user(typed),), reply, {"marker": marker})
        for texts, reply, marker in _messages(True)
        for text in texts
        for typed in dict.fromkeys((text, text.lower(), text[:-1], text[:-1].lower()))
    ]
