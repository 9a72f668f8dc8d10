"""Names of people: real ones, and ones made of syllables; training never sees some of each.

Most names in training are made up and hardly ever come twice. So a model can only repeat a name by copying it from
the conversation, and then it can copy any.
"""

from functools import cache
from random import Random

from data.synthetic.draw import listed, pick
from data.synthetic.reserve import is_reserved

# In stories and word problems, and as users' names in training.
COMMON = listed("Tom Anna Ben Lucy Sam Emma Max Mia Leo Nora Jack Ella Paul Rosa Carl Lily Omar Ruth Adam Jane")
# Users' names in training only.
_REAL = listed(
    "Aaron Abdul Ahmed Aisha Albert Alex Alice Alma Amir Amy Andrew Angela Anton Arjun Astrid Barbara Betty Boris "
    "Brian Carla Carlos Carmen Chen Chloe Chris Clara Claire Colin Daniel Daria David Deborah Diana Diego Dmitri "
    "Donna Edith Edward Elena Elias Elif Emil Eric Esther Eva Fatima Felix Fiona Freya George Gina Grace Greta "
    "Hana Harry Hassan Heidi Helen Henry Hiro Ian Ida Igor Ingrid Isabel Ivan Jacob James Janet Jason Joan John "
    "Jonas Jose Joseph Julia Karen Karl Kate Keiko Kim Klaus Kofi Kurt Laura Lena Leon Linda Lisa Liu Lorenzo Lukas "
    "Magda Marco Maria Mark Martha Martin Mary Matteo Michael Mina Mohammed Molly Monika Nadia Nancy Nathan Nico "
    "Nina Noah Oscar Otto Pablo Pamela Paula Pedro Peter Petra Philip Ralph Rebecca Richard Rita Robert Robin Roland "
    "Sandra Sara Sergio Simon Sofia Sonja Steven Susan Tanja Thomas Tina Tobias Tony Ursula Valentin Victor Viola "
    "Walid Werner William Xenia Yara Yuki Yusuf Zoe"
)
# Users' names in the evaluation only.
_REAL_RESERVED = listed(
    "Agnes Arthur Bella Bruno Cora Dennis Dora Edgar Erin Frank Gloria Hugo Irene Isaac Jasmin Kevin Lara Louis "
    "Manuel Miriam Natalie Oliver Olga Patrick Priya Rachel Ravi Samuel Stella Teresa Vera Walter Wendy"
)
_STARTS = listed("B Br C Ch D Dr F Fl G Gr H J K Kl L M N P Pr R S Sh St T Th Tr V W Y Z")
_VOWELS = listed("a a a e e e i i i o o o u u y ee oo")
_MIDDLES = listed("b ck d g k l ll ld lm m mb n nn nd ng p r rr rk rt rv s ss st t tt th v w z")
_ENDS = ("", "", "", "n", "r", "s", "l", "k", "x", "m", "t", "d", "sh", "lf", "nd")


def made_up(rng: Random, held_out: bool) -> str:
    """A name of one to three syllables: Zorvik, Malden, Tristor. A tenth of all is held out."""
    while True:
        syllables = 1 + (rng.random() < 0.8) + (rng.random() < 0.1)
        name = pick(rng, _STARTS) if rng.random() < 0.95 else ""
        for position in range(syllables):
            name += (pick(rng, _MIDDLES) if position else "") + pick(rng, _VOWELS)
        name = (name + pick(rng, _ENDS)).capitalize()
        if len(name) > 2 and name not in _real() and is_reserved("name", name) == held_out:
            return name


def draw_name(rng: Random, held_out: bool) -> str:
    """A user's name: made up in most cases, else a real one."""
    if rng.random() < 0.7:
        return made_up(rng, held_out)
    return pick(rng, _REAL_RESERVED) if held_out else pick(rng, COMMON + _REAL)


@cache
def _real() -> frozenset[str]:
    return frozenset(COMMON + _REAL + _REAL_RESERVED)


def family_name(rng: Random, held_out: bool) -> str:
    """A family name; other names than the first names, and a tenth of them held out."""
    while True:
        name = made_up(rng, held_out=False)
        if is_reserved("family", name) == held_out:
            return name
