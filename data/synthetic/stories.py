"""Very short stories in one plan: who, where, what was lost, who helped, how it ended."""

from random import Random

from data.conversation import Conversation, assistant, user
from data.synthetic.draw import listed, pick
from data.synthetic.people import COMMON
from data.synthetic.wording import ask

_HEROES = listed("fox cat dog bird bear mouse rabbit owl frog horse wolf duck king queen farmer baker child sailor")
_ADJECTIVES = ("little", "old", "young", "kind", "brave", "quiet", "clever", "happy")
_PLACES = ("forest", "village", "garden", "valley", "city", "house by the sea", "cave", "field")
_LOST = ("hat", "ball", "key", "ring", "book", "bell", "lamp", "boat", "map", "drum")
_WHERE = ("under a tree", "behind a stone", "in the river", "near the road", "on a hill", "under the snow")
_ENDS = (
    "They became good friends.",
    "They laughed and went home.",
    "They sang all evening.",
    "They ate bread and soup together.",
    "They were very happy.",
)
_WORDINGS = (
    "Tell me a story about a {h}.",
    "Tell me a story.",
    "Write a story about a {h}.",
    "Can you tell me a story about a {h}?",
    "I want a story about a {h}.",
    "Please tell me a short story about a {h}.",
)


def _story(rng: Random, hero: str) -> str:
    name, lost = pick(rng, COMMON), pick(rng, _LOST)
    helper = pick(rng, _HEROES)
    while helper == hero:
        helper = pick(rng, _HEROES)
    return (
        (
            f"Once there was a {pick(rng, _ADJECTIVES)} {hero} called {name}. {name} lived in a {pick(rng, _PLACES)}. "
            f"One day {name} lost a {lost}. A {helper} helped and found the {lost} {pick(rng, _WHERE)}. "
            f"{pick(rng, _ENDS)}"
        )
        .replace(" a old", " an old")
        .replace("A owl", "An owl")
    )


def chat(rng: Random) -> Conversation:
    hero = pick(rng, _HEROES)
    words = ask(rng, _WORDINGS, h=hero).replace(" a owl", " an owl")
    return user(words), assistant(_story(rng, hero))


def line(rng: Random) -> str:
    return _story(rng, pick(rng, _HEROES))
