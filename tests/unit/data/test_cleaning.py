import base64
import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from data.cleaning import CHANGED, DROPPED, Cleaning, clean, is_duplicate, is_mojibake, text_share
from data.conversation import Conversation, Document, Part, assistant, user

PROSE = {
    "French": "L'été dernier, la fenêtre était fermée… « Ça va être très près », a dit l'élève à Noël. À bientôt ! "
    * 3,
    "German": "»Spaß« und „Größe“ – Äpfel, Öl, Übermut, süß… Der Käfer fährt über die Straße zum Schloß. " * 3,
    "Portuguese": "«AMANHû, NÃO… SÃO «MAÇû e “IRMÔ – coração, ação, pão e também você. " * 3,
    "Russian": "Привет, как дела? «Хорошо», ответил он… и ушёл. ЁЛКА. " * 3,
    "Arabic": "مرحبا، كيف حالك؟ أنا بخير، شكرا لك. " * 3,
}
SCRIPTS = {
    **PROSE,
    "Hindi": "मुझे हिन्दी में पढ़ना अच्छा लगता है। " * 3,
    "Thai": "ภาษาไทยเขียนติดกันโดยไม่มีช่องว่างระหว่างคำ" * 5,
    "Japanese": "吾輩は猫である。名前はまだ無い。" * 20,
    "code": "def f(x):\n\treturn {k: v**2 for k, v in x.items() if v > 0}  # <= 3 | 4 & 5\n" * 3,
}
ALL = Cleaning(1, 1 << 20, True, 0.01, "drop", 0.7)

contents = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"])),
    st.lists(st.text(max_size=20), min_size=2, max_size=2).map(lambda pair: (user(pair[0]), assistant(pair[1]))),
)


def _clean(content: str | Conversation, **options: object) -> tuple[str | Conversation | None, dict[str, int]]:
    counts: Counter[str] = Counter()
    document = clean(Document(content, "s"), Cleaning(**options), counts)
    return document and document.content, dict(counts)


@given(contents)
def test_nothing_happens_unless_asked(content: str | Conversation) -> None:
    document, counts = Document(content, "s"), Counter[str]()
    assert clean(document, Cleaning(), counts) is document
    assert not counts


@given(contents)
def test_a_clean_document_is_left_alone_and_reasons_are_the_named_ones(content: str | Conversation) -> None:
    counts: Counter[str] = Counter()
    first = clean(Document(content, "s"), ALL, counts)
    assert set(counts) <= {*DROPPED, *CHANGED}
    assert sum(counts[reason] for reason in DROPPED) == (first is None)
    if first is not None:
        again: Counter[str] = Counter()
        assert clean(first, replace(ALL, min_text_share=None, mojibake="ignore"), again) is first
        assert not again


def test_lengths_are_of_all_the_characters() -> None:
    chat = (user("ab"), assistant("c", Part("calculator", "1+1"), Part("output", "2")))
    for content in ("ü" * 7, chat):
        assert _clean(content, min_characters=7, max_characters=7) == (content, {})
        assert _clean(content, min_characters=8) == (None, {"too short": 1})
        assert _clean(content, max_characters=6) == (None, {"too long": 1})


def test_length_counts_after_stripping() -> None:
    assert _clean("ab\0\0\0", strip_controls=True, min_characters=3) == (None, {"too short": 1})
    assert _clean("ab\0\0\0", strip_controls=True, max_characters=2) == ("ab", {"control characters stripped": 1})


@given(st.text())
def test_controls_are_gone_and_nothing_else(text: str) -> None:
    cleaned, _ = _clean(text, strip_controls=True)
    lines = text.replace("\r\n", "\n").translate(dict.fromkeys((11, 12, 13), "\n"))
    wanted = "".join(c for c in lines if c in "\n\t" or not (ord(c) < 32 or 127 <= ord(c) < 160))
    assert cleaned == (wanted if wanted.strip() else None)


def test_controls_of_a_conversation() -> None:
    call = Part("calculator", "1+\x001")
    chat = (user("a\x1b\r\nb"), assistant("c\0", call))
    counts = {"control characters stripped": 1}
    assert _clean(chat, strip_controls=True) == ((user("a\nb"), assistant("c", call)), counts)
    assert _clean("\0\0 ", strip_controls=True) == (None, {"empty": 1})


def test_broken_encodings() -> None:
    text = "x" * 98 + "\ufffd\ud800"
    assert _clean(text, max_broken_share=0.02) == (text, {})
    assert _clean(text, max_broken_share=0.019) == (None, {"broken encoding": 1})
    assert _clean((user("q" * 8), assistant("\ufffd\ufffd")), max_broken_share=0.1) == (None, {"broken encoding": 1})


@pytest.mark.parametrize("language", PROSE)
def test_mojibake_is_told_from_prose(language: str) -> None:
    text = PROSE[language]
    misread = text.encode().decode("latin-1")
    assert not is_mojibake(text)
    assert is_mojibake(misread)
    assert _clean(misread, mojibake="drop") == (None, {"mojibake": 1})
    assert _clean(misread, mojibake="count") == (misread, {"mojibake kept": 1})
    assert _clean(misread) == (misread, {})


def test_mojibake_of_windows() -> None:
    text = "It’s “quoted” — isn’t it? That’s all. " * 3
    assert is_mojibake(text.encode().decode("cp1252", "replace").replace("\ufffd", "\x9d"))
    assert not is_mojibake(text)


def test_a_quoted_example_of_mojibake_is_none() -> None:
    assert not is_mojibake('Latin-1 shows "Ã©" for "é", and "Ã¨" for "è".')
    assert not is_mojibake("Ã© Ã¨ Ã¼ Ã¶ " + "words " * 2000)


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_script_is_text(name: str) -> None:
    assert text_share(SCRIPTS[name]) > 0.95
    assert _clean(SCRIPTS[name], min_text_share=0.8)[1] == {}


@pytest.mark.parametrize("kind", ["base64", "wrapped", "binary", "boxes"])
def test_what_is_no_text(kind: str) -> None:
    noise = random.Random(0).randbytes(3000)
    text = {
        "base64": base64.b64encode(noise).decode(),
        "wrapped": base64.encodebytes(noise).decode(),
        "binary": noise.decode("utf-8", "replace"),
        "boxes": "┌──┐ │██│ └──┘\n" * 20,
    }[kind]
    assert _clean(text, min_text_share=0.8) == (None, {"not text": 1})


@given(st.text())
def test_a_share_is_one(text: str) -> None:
    assert 0 <= text_share(text) <= 1


def test_a_text_of_words_is_whole() -> None:
    assert text_share("") == 1
    assert text_share("a" * 59) == 1
    assert text_share("a" * 60) == 0
    assert text_share("a b█☃") == pytest.approx(3 / 5)


@given(st.lists(st.binary(min_size=1, max_size=1)))
def test_duplicates_are_those_met_before(digests: list[bytes]) -> None:
    seen: set[bytes] = set()
    counts: Counter[str] = Counter()
    kept = [digest for digest in digests if not is_duplicate(digest, seen, counts)]
    assert kept == list(dict.fromkeys(digests))
    assert counts["duplicate"] == len(digests) - len(kept)


@given(st.integers(-3, 3), st.integers(-3, 3))
def test_impossible_lengths_are_refused(least: int, most: int) -> None:
    assume(least < 1 or most < least)
    with pytest.raises(ValueError, match="_characters"):
        Cleaning(min_characters=least, max_characters=most)


@pytest.mark.parametrize("bad", [{"max_broken_share": 1.0}, {"max_broken_share": -0.1}, {"min_text_share": 0.0}])
def test_impossible_shares_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="_share"):
        Cleaning(**bad)
