"""The source of a mirror: what its URL and options may be, and where its password comes from."""

from __future__ import annotations

from pathlib import Path

import pytest

from api.broker.mirroring.source import MirrorOptions, MirrorSource
from storage.errors import InvalidInput, Misconfigured

LOGIN = {"sasl": "SCRAM-SHA-256", "username": "u", "password_from": "env:MIRROR_PASSWORD"}


def test_a_url_names_brokers_and_topic() -> None:
    source = MirrorSource.parse("kafka://a.example,[::1]:9,10.0.0.1:9093/a.topic-1_x", MirrorOptions())
    assert source.brokers == (("a.example", 9092), ("::1", 9), ("10.0.0.1", 9093))
    assert source.topic == "a.topic-1_x"
    assert source.url == "kafka://a.example:9092,[::1]:9,10.0.0.1:9093/a.topic-1_x"
    assert MirrorSource.parse(source.url, MirrorOptions()) == source


@pytest.mark.parametrize(
    "url",
    [
        "", "kafka://", "kafka://host", "kafka://host/", "http://host/t", "kafka://host/t/u", "kafka://host/ü",
        "kafka://ho st/t", "kafka://host:0/t", "kafka://host:65536/t", "kafka://a,,b/t", "kafka://host/..",
        "kafka://user:secret@host/t", "kafka://host/t?x=1",
    ],
)  # fmt: skip
def test_no_other_url_is_taken(url: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        MirrorSource.parse(url, MirrorOptions())
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "options",
    [
        {"tls_ca": "/ca.pem"},
        {"sasl": "PLAIN"},
        {"username": "u", "password_from": "env:X"},
        {**LOGIN, "sasl": "GSSAPI"},
        {**LOGIN, "password_from": "secret"},
        {"empty_values": "keep"},
    ],
)
def test_options_must_fit(options: dict[str, str]) -> None:
    with pytest.raises(InvalidInput) as refused:
        MirrorOptions.from_json(options)
    assert "secret" not in str(refused.value)


def test_protocols_have_the_names_of_kafka() -> None:
    assert MirrorOptions().security_protocol == "PLAINTEXT"
    assert MirrorOptions(tls=True).security_protocol == "SSL"
    assert MirrorOptions(**LOGIN).security_protocol == "SASL_PLAINTEXT"
    assert MirrorOptions(tls=True, **LOGIN).security_protocol == "SASL_SSL"
    assert MirrorOptions().ssl_context() is None
    context = MirrorOptions(tls=True).ssl_context()
    assert context is not None
    assert context.check_hostname


def test_a_password_is_read_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = MirrorOptions(**LOGIN)
    with pytest.raises(Misconfigured, match="MIRROR_PASSWORD"):
        options.password()
    monkeypatch.setenv("MIRROR_PASSWORD", "secret")
    assert options.password() == "secret"
    assert "secret" not in str(options.to_json())
    file = tmp_path / "password"
    for reference in (f"file:{file}", f"file://{file}"):
        in_file = MirrorOptions(**LOGIN | {"password_from": reference})
        file.unlink(missing_ok=True)
        with pytest.raises(Misconfigured, match="cannot be read"):
            in_file.password()
        file.write_text("of the file\n")
        assert in_file.password() == "of the file"
    with pytest.raises(Misconfigured, match="/none"):
        MirrorOptions(tls=True, tls_ca="/none").ssl_context()
