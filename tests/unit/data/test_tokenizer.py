import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import data.tokenizer as module
from config.errors import UserError
from data.tokenizer import SPECIALS, StreamDecoder, Tokenizer, pieces

ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]))
ROOT = Path(__file__).resolve().parents[3]


@given(text=ANY_TEXT)
def test_any_text_comes_back(tok: Tokenizer, text: str) -> None:
    ids = tok.encode(text)
    assert tok.decode(ids) == text
    assert tok.encode_batch([text, "", text]) == [ids, [], ids]


@given(text=ANY_TEXT)
def test_byte_lengths_sum_to_the_utf8_length(tok: Tokenizer, text: str) -> None:
    assert tok.byte_lengths[tok.encode(text)].sum() == len(text.encode())


@given(ids=st.lists(st.integers(0, 299)))
def test_streamed_text_equals_the_whole(tok: Tokenizer, ids: list[int]) -> None:
    stream = StreamDecoder(tok)
    assert "".join([stream.feed(index) for index in ids]) + stream.finish() == tok.decode(ids)


def test_stream_never_emits_half_a_character(tok: Tokenizer) -> None:
    stream = StreamDecoder(tok)
    ids = tok.encode("é𓀀🙃")  # none of them was in the training text: several tokens each
    assert len(ids) > 6
    assert [text for index in ids if (text := stream.feed(index))] == ["é", "𓀀", "🙃"]


def test_lone_surrogates_become_replacement_characters(tok: Tokenizer) -> None:
    assert tok.decode(tok.encode("a\ud83d b")) == "a\ufffd b"
    assert tok.decode(tok.encode("\ud83d\ude42")) == "🙂"


@pytest.mark.parametrize("mark", SPECIALS)
def test_a_typed_mark_stays_text(tok: Tokenizer, mark: str) -> None:
    text = f"say {mark} or {mark}{mark}"
    ids = tok.encode(text)
    assert not tok.special_ids & set(ids)
    assert tok.decode(ids) == text


def test_marks_are_dropped_in_decoding(tok: Tokenizer) -> None:
    assert tok.decode([tok.bos, *tok.encode("hi"), tok.assistant_end]) == "hi"
    assert all(tok.token_bytes(index) == b"" and tok.byte_lengths[index] == 0 for index in tok.special_ids)
    assert len(tok.special_ids) == 9


def test_digits_are_single_tokens(tok: Tokenizer) -> None:
    assert [tok.decode([index]) for index in tok.encode("2042")] == ["2", "0", "4", "2"]


@given(text=st.text(st.sampled_from("ab1 .\n\r\t'sé猫"), max_size=300))
def test_pieces_give_the_ids_of_the_whole(tok: Tokenizer, text: str) -> None:
    whole = tok._backend.encode(text).ids
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_PIECE_CHARACTERS", 40)
        patch.setattr(module, "_CUT_WINDOW", 30)
        cut = list(pieces(text))
        ids = tok.encode(text)
        assert tok.encode_batch([text]) == [ids]
    assert "".join(cut) == text
    assert tok.decode(ids) == text
    if all(module._SAFE_CUT.match(text, len("".join(cut[:number]))) for number in range(1, len(cut))):
        assert ids == whole


def test_saved_and_loaded_are_equal(tok: Tokenizer, tmp_path: Path) -> None:
    tok.save(tmp_path / "deep" / "tokenizer.json")
    loaded = Tokenizer.load(tmp_path / "deep" / "tokenizer.json")
    assert loaded.sha256 == tok.sha256
    assert loaded.encode("the cat über 猫") == tok.encode("the cat über 猫")
    assert loaded.vocab_size == tok.vocab_size == 300
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["tokenizer.json"]


def test_training_is_the_same_in_every_process_and_order() -> None:
    code = (
        "import sys; from data.tokenizer import Tokenizer;"
        "texts = ['abab cdcd abcd', 'efef abab', 'cdcd efgh ghgh'] * 3;"
        "print(Tokenizer.train(texts[::int(sys.argv[1])], 270).sha256)"
    )
    hashes = {
        subprocess.run([sys.executable, "-c", code, order], cwd=ROOT, check=True, capture_output=True, text=True).stdout
        for order in ("1", "-1")
    }
    assert len(hashes) == 1


def test_a_vocabulary_beyond_the_text_is_an_error_that_says_how_much_it_supports() -> None:
    with pytest.raises(
        UserError, match=r"tokenizer\.vocab_size is 32,768, the text supports 2\d\d.*at most (2\d\d)"
    ) as caught:
        Tokenizer.train(["hello hello world"], 32768)
    supported = int(str(caught.value).split("at most ")[1].split(",")[0])
    assert supported == 256 + 9 + 4  # he, hel, hell, hello: no other pair occurs twice
    assert Tokenizer.train(["hello hello world"], supported).vocab_size == supported
    with pytest.raises(UserError):
        Tokenizer.train(["hello hello world"], supported + 1)


@pytest.mark.parametrize("content", [None, "", "{}", "not json", '{"model": {"vocab": {}}}'])
def test_a_bad_file_is_one_clear_error(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError, match=r"tokenizer\.json: n.*dvc repro"):
        Tokenizer.load(path)
