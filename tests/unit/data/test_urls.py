import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.errors import UserError
from data.urls import authorization, file_name, request_url, shown_url


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://a.org/b/texts.jsonl.gz", "texts.jsonl.gz"),
        ("https://a.org/b/texts.parquet?download=true", "texts.parquet"),
        ("https://a.org/some%20texts.txt", "some_texts.txt"),
        ("https://a.org/Käse.txt", "K_se.txt"),
        ("https://a.org/..%2f..%2fetc%2fpasswd", "passwd"),
        ("https://a.org/..%5cx.txt", "x.txt"),
        ("https://a.org/folder/", "folder"),
        ("https://a.org", "file"),
        ("https://a.org/%00", "_"),
        ("https://a.org/" + "x" * 500 + ".txt", "x" * 96 + ".txt"),
    ],
)
def test_names(url: str, name: str) -> None:
    assert re.sub("^[0-9a-f]{16}-", "", file_name(url)) == name


@given(st.text(max_size=40), st.text(max_size=10))
def test_any_path_makes_a_safe_name(path: str, query: str) -> None:
    try:
        name = file_name(f"https://a.org/{path}?{query}")
    except UserError:
        return
    assert re.fullmatch(r"[0-9a-f]{16}-[A-Za-z0-9._-]{1,100}", name)


def test_names_differ_where_urls_do() -> None:
    urls = [
        f"{scheme}://{host}/{path}{query}"
        for scheme in ("http", "https")
        for host in ("a.org", "b.org", "a.org:8080")
        for path in ("x.txt", "y/x.txt", "x%20.txt", "x_.txt")
        for query in ("", "?a=1", "?a=2")
    ]
    assert len({file_name(url) for url in urls}) == len(urls)


def test_names_are_the_same_whoever_asks() -> None:
    names = {file_name(f"https://{user}a.org/x.txt") for user in ("", "u@", "u:p@")}
    assert names == {file_name("HTTPS://A.org/x.txt#part")}
    assert len(names) == 1


@pytest.mark.parametrize(
    ("url", "sent"),
    [
        ("https://user:pass@a.org:81/x?y#z", "https://a.org:81/x?y"),
        ("https://a.org/ä b%20c", "https://a.org/%C3%A4%20b%20c"),
        ("https://käse.de/", "https://xn--kse-qla.de/"),
        ("http://[::1]:8000/x", "http://[::1]:8000/x"),
        ("http://a.org", "http://a.org/"),
    ],
)
def test_what_is_sent(url: str, sent: str) -> None:
    assert request_url(url) == sent


@pytest.mark.parametrize(
    "url",
    [
        "",
        "text.jsonl",
        "ftp://secret@a.org/x",
        "file:///etc/passwd",
        "s3://key:secret@bucket/x?secret",
        "https://",
        "https:///x",
        "https://a.org:port/x",
        "https://a..org/x",
        "https://user:sec/ret@a.org/x",
        "https://user:sec#ret@a.org/x",
        "https://user:sec?ret@a.org/x",
        "https://a.org/x\r\nHost: secret",
        "https://[::1/x",
        "https://" + "a" * 70 + ".org/",
    ],
)
def test_what_is_refused(url: str) -> None:
    with pytest.raises(UserError, match=r"expected http") as caught:
        file_name(url)
    message = str(caught.value)
    assert "sec/" not in message and "ret@" not in message and "secret@" not in message and "\n" not in message


def test_what_is_shown() -> None:
    assert shown_url("https://user:pass@a.org:81/@x/y?token=z#w") == "https://a.org:81/@x/y?…"
    assert shown_url("https://a.org/x") == "https://a.org/x"


def test_user_and_password() -> None:
    assert authorization("https://a.org/x") is None
    assert authorization("https://us%40er:pa%3Ass@a.org/x") == "Basic dXNAZXI6cGE6c3M="
    assert authorization("https://user@a.org/x") == "Basic dXNlcjo="
