"""`compactor tokens` and `compactor config show`, as a user has them."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import jwt
import pytest

from tests.program import Program


def test_a_secret_key_makes_tokens_that_it_validates(program: Program, folder: Path) -> None:
    program("tokens", "create-secret-key", "--output", "secret.key").done()
    program("tokens", "create-secret-key", "--output", "secret.key").refused(4, "secret.key exists already")
    key = folder / "secret.key"
    assert len(key.read_bytes()) == 32
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    created = program("tokens", "create", "--subject", "ops", "--secret-key", key.as_uri(), "--expiry-time", "1y")
    token = created.done().stdout.strip()
    claims = program("tokens", "validate", token, "--secret-key", str(key)).done().json
    assert claims == jwt.decode(token, key.read_bytes(), algorithms=["HS256"])
    assert (claims["sub"], claims["exp"] - claims["iat"]) == ("ops", 365 * 86_400)
    document = program("tokens", "show", token).done().json
    assert document == {"header": {"alg": "HS256"}, "claims": claims}
    other = "data:;base64," + program("tokens", "create-secret-key", "--base64").done().stdout.strip()
    refusal = program("tokens", "validate", token, "--secret-key", other).refused(2, "no key")
    assert token not in refusal


@pytest.mark.parametrize("algorithm", ["RS256", "ES256"])
def test_a_key_pair_makes_tokens_that_the_public_key_validates(
    algorithm: str, program: Program, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = ("--output-private-key", "private.key", "--output-public-key", "public.key")
    program("tokens", "create-key-pair", *files, "--signature-algorithm", algorithm).done()
    program("tokens", "create-key-pair", *files).refused(4, "private.key exists already")
    created = program("tokens", "create", "--subject", "a", "--private-key", "private.key")
    token = created.done().stdout.strip()
    assert "never expires" in created.stderr
    assert jwt.get_unverified_header(token)["alg"] == algorithm
    monkeypatch.setenv("COMPACTOR_AUTH_TOKEN_PUBLIC_KEY", "public.key")
    assert '"sub": "a"' in program("tokens", "validate", token).done().stdout


def test_a_jwks_accepts_the_tokens_of_each_of_its_keys(
    program: Program, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {"RS256": "old", "ES256": "new"}
    for algorithm, name in names.items():
        files = ("--output-private-key", f"{name}.key", "--output-public-key", f"{name}.pub")
        program("tokens", "create-key-pair", *files, "--signature-algorithm", algorithm).done()
    jwks = program("tokens", "create-jwks", "old.pub", (folder / "new.pub").as_uri()).done()
    (folder / "jwks.json").write_text(jwks.stdout)
    monkeypatch.setenv("COMPACTOR_AUTH_JWKS_FILE", "jwks.json")
    for name in names.values():
        token = program("tokens", "create", "--subject", name, "--private-key", f"{name}.key").done().stdout.strip()
        assert program("tokens", "validate", token).done().json["sub"] == name
    program("tokens", "create-jwks", "old.key").refused(5, "holds no public key")


def test_a_token_holds_where_its_settings_do(program: Program, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program("tokens", "create-secret-key", "--output", "secret.key").done()
    monkeypatch.setenv("COMPACTOR_AUTH_TOKEN_SECRET_KEY", "secret.key")
    monkeypatch.setenv("COMPACTOR_AUTH_ROLE_CLAIM", "role")
    monkeypatch.setenv("COMPACTOR_AUTH_AUDIENCE", "compactor")
    token = program("tokens", "create", "--subject", "ops").done().stdout.strip()
    claims = program("tokens", "validate", token).done().json
    assert (claims["role"], claims["aud"]) == ("ops", "compactor")


def test_settings_are_shown_with_their_origins_and_without_secrets(
    program: Program, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "broker.conf").write_text(
        "tokenSecretKey=data:;base64,cGxhbnRlZA==\nbrokerServiceCompactionThresholdInBytes=5\nnumIOThreads=2\n"
    )
    monkeypatch.setenv("COMPACTOR_S3_ENDPOINT", "http://me:planted@s3/")
    created = program("config", "show", "--config", "broker.conf", "--origin", "--output", "json").done()
    document = json.loads(created.stdout)
    assert document["s3-endpoint"] == {"value": "http://me:***@s3/", "origin": "environment COMPACTOR_S3_ENDPOINT"}
    assert document["auth.token-secret-key"] == {"value": "***", "origin": "file broker.conf"}
    assert document["compaction.threshold.bytes"] == {"value": 5, "origin": "file broker.conf"}
    assert document["port"] == {"value": 8080, "origin": "default"}
    assert "numIOThreads" in created.stderr
    assert "planted" not in created.stdout
    plain = program("config", "show", "--data", "here").done().stdout
    assert "http://me:***@s3/" in plain
    assert "planted" not in plain
    monkeypatch.setenv("COMPACTOR_PROT", "1")
    assert "COMPACTOR_PROT is not a setting" in program("config", "show").done().stderr


def test_policies_of_the_file_are_the_brokers_defaults(program: Program, folder: Path) -> None:
    """Below what is set for the broker, and shown as the file's."""
    (folder / "c.toml").write_text('compaction.threshold.bytes = "1M"\n"retention.ms" = "7d"\n')

    def policies_of(*words: str) -> dict[str, object]:
        created = program("topics", "policies", "--config", "c.toml", "--output", "json", *words).done()
        policies = json.loads(created.stdout)["policies"]
        return {name: policies[name] for name in ("compaction.threshold.bytes", "retention.ms")}

    (folder / "in.jsonl").write_text('{"key": "k", "value": "v"}\n')
    program("import", "t", "in.jsonl").done()
    file = {
        "compaction.threshold.bytes": {"value": 1 << 20, "origin": "file"},
        "retention.ms": {"value": 7 * 86_400_000, "origin": "file"},
    }
    for scope in (("--broker",), ("--namespace", "public/default"), ("t",)):
        assert policies_of(*scope) == file
    set_ = policies_of("--broker", "--set", "compaction.threshold.bytes=5")
    assert set_["compaction.threshold.bytes"] == {"value": 5, "origin": "broker"}
    assert policies_of("t")["compaction.threshold.bytes"] == {"value": 5, "origin": "broker"}
    assert policies_of("t")["retention.ms"] == file["retention.ms"]
