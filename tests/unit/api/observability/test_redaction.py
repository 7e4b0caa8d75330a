"""Secrets are hidden in whatever text they stand, and what is none is left as it was."""

from __future__ import annotations

import pytest

from api.observability.redaction import redacted, redacted_excerpt, redacted_url

TOKEN = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJvcHMifQ.c2lnbmF0dXJl"


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("postgresql://me:hunter2@db/c", "hunter2"),
        ("postgresql://db/c?scram_client_key=hunter2&scram_server_key=hunter2", "hunter2"),
        ("host=db scram_client_key=hunter2", "hunter2"),
        ("postgresql+psycopg://me:p%40ss:word@db:5432/c", "p%40ss:word"),
        ("postgresql://me:wJalr/XU+tnFEMI@db/c", "XU+tnFEMI"),
        ("postgresql://me:hunter2?x#y@db/c", "hunter2"),
        ("http://:hunter2@host/", "hunter2"),
        (f"Authorization: Bearer {TOKEN}", TOKEN),
        ("authorization: basic cm9vdDpyb290", "cm9vdDpyb290"),
        (f"refused {TOKEN}, try again", "c2lnbmF0dXJl"),
        (f"{{'token': '{TOKEN[:40]}'}}", "eyJhbGciOiJIUzI1NiJ9"),
        ("key data:;base64,c2VjcmV0c2VjcmV0", "c2VjcmV0"),
        ("aws AKIAIOSFODNN7EXAMPLE here", "AKIAIOSFODNN7EXAMPLE"),
        ("aws_secret_access_key=wJalrXUtnFEMI/K7MDENG", "wJalrXUtnFEMI"),
        ('{"SecretAccessKey": "wJalrXUtnFEMI/K7MDENG"}', "wJalrXUtnFEMI"),
        ("https://b.s3/x?X-Amz-Signature=abcdef&x=1", "abcdef"),
        ("PGPASSWORD=hunter2 psql", "hunter2"),
        ("postgresql://me:1234@db/c", "1234"),
        ('connect to "http://user:password@minio:9000/b/x" failed', "password@"),
        ("host=db user=me password=hunter2 dbname=c", "hunter2"),
        ("host=db password='hunt er\\'2 secret' dbname=c", "er"),
        ("host=db password = 'x' dbname=c", "'x'"),
        ("password: hunter2", "hunter2"),
        ("host=db password=pw dbname=c", "=pw"),
        ("postgresql://db/c?password=p&sslmode=require", "=p&"),
        ("postgresql://db/c?sslpassword=a%20b", "a%20b"),
        ("https://h/x?access_key=abc&signature=s", "abc"),
        ("https://h/x?a=1&AWSSecretKey=abc/def+g", "abc/def"),
        ("the key wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY was refused", "wJalrXUtnFEMI"),
        ("url?password=hunter2&x=1", "hunter2"),
        ("-----BEGIN EC PRIVATE KEY-----\nMHcCAQ\n-----END EC PRIVATE KEY-----", "MHcCAQ"),
        ("-----BEGIN PRIVATE KEY-----\nMHcCAQ cut off", "MHcCAQ"),
    ],
)
def test_a_secret_is_hidden(text: str, secret: str) -> None:
    assert secret in text
    assert secret not in redacted(text)
    assert "***" in redacted(text)
    assert redacted(redacted(text)) == redacted(text)


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://db/compactor",
        "persistent://tenant/ns/topic@x: 1 message",
        "http://127.0.0.1:8080/a@b",
        "see https://example.org/path: it has more",
        "tokenSecretKey=file:///etc/secret.key",
        "the token has expired",
        "a token is needed, in the header Authorization: Bearer TOKEN"[:37],
        "keys 12, keyed log",
        "data: 12 bytes",
        "commit 8f14e45fceea167a5a36dedd4bea2543c3d9f0aa",
        "GET /messages?key=k&keyEncoding=base64",
        "topics/0f5b71556d0548a39920bd6cb7b0b33a/compacted/00000000000000000007/part",
        "a token: give one",
        "password authentication failed for user me",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redacted(text) == text


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("unit", ["://x:", "://a:b", "eyJaaaaaa-", "token:aaaa,"])
def test_a_long_text_is_gone_through_once(unit: str) -> None:
    """In quadratic time this takes minutes."""
    text = unit * (250_000 // len(unit))
    assert redacted(text) == text
    assert "hunter2" not in redacted(f"{text} postgresql://me:hunter2@db")


def test_a_long_text_is_cut_between_begin_and_end_and_no_secret_is_cut_open() -> None:
    password = "p" * 700
    text = f"what happened {'x' * 200} http://me:{password}@host {'://x' * 10_000} {TOKEN * 10}: what to do"
    shortened = redacted_excerpt(text)
    assert (len(shortened), shortened[:13], shortened[-10:]) == (1000, "what happened", "what to do")
    assert "ppp" not in shortened
    assert TOKEN[-20:] not in shortened
    assert redacted_excerpt("short") == "short"


@pytest.mark.parametrize(
    ("url", "as_shown"),
    [
        ("postgresql://me:hunter2@db/c", "postgresql://me:***@db/c"),
        ("postgresql://me:1234/5678@db:5432/c", "postgresql://me:***@db:5432/c"),
        ("postgresql://me:p a'ss\"@w@db/c?password=x", "postgresql://me:***@db/c?password=***"),
        ("http://minio:9000", "http://minio:9000"),
        ("http://me@minio:9000/a", "http://me@minio:9000/a"),
        ("s3://bucket/prefix", "s3://bucket/prefix"),
        ("", ""),
    ],
)
def test_a_setting_that_is_a_url_shows_no_password_whatever_it_holds(url: str, as_shown: str) -> None:
    assert redacted_url(url) == as_shown
