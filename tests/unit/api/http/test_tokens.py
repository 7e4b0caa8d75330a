"""Tokens: who bears them, and the many ways in which one is refused; keys as Pulsar keeps them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from api.http.token_key_reloader import TokenKeyReloader
from api.http.tokens import (
    ES256,
    HS256,
    RS256,
    BadToken,
    TokenVerifier,
    create_token,
    decode_unverified_token,
    jwks_of,
    load_private_key,
    load_public_key,
    new_key_pair,
    new_secret_key,
)
from api.settings.settings import Settings
from storage.errors import InvalidInput, Misconfigured
from tests.clocks import ManualClock

SECRET = bytes(range(32))
RSA_PRIVATE, RSA_PUBLIC = new_key_pair(RS256)
EC_PRIVATE, EC_PUBLIC = new_key_pair(ES256)
NOW = 1_700_000_000


def inline(key: bytes) -> str:
    return "data:;base64," + base64.b64encode(key).decode()


def pem(public: bytes) -> bytes:
    loaded = serialization.load_der_public_key(public)
    return loaded.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def verifier(**settings: Any) -> TokenVerifier:
    return TokenKeyReloader(Settings(**settings), ManualClock(NOW * 1000)).verifier


def all_keys() -> TokenVerifier:
    secret = verifier(auth_token_secret_key=inline(SECRET), auth_token_public_key=inline(RSA_PUBLIC))
    return TokenVerifier([*secret.keys, *verifier(auth_token_public_key=inline(EC_PUBLIC)).keys], secret.clock)


def signer(algorithm: str) -> Any:
    pairs = {RS256: RSA_PRIVATE, ES256: EC_PRIVATE}
    return SECRET if algorithm == HS256 else load_private_key("key", inline(pairs[algorithm]))


@pytest.mark.parametrize("algorithm", [HS256, RS256, ES256])
def test_a_token_says_who_bears_it(algorithm: str) -> None:
    token = create_token(signer(algorithm), "ops", {"iat": NOW, "exp": NOW + 10})
    assert all_keys().verified_role(token) == "ops"
    assert decode_unverified_token(token) == {
        "header": {"alg": algorithm},
        "claims": {"sub": "ops", "iat": NOW, "exp": NOW + 10},
    }


def test_a_token_made_by_pulsar() -> None:
    """Signed by `bin/pulsar tokens create` of 4.2 with this secret key: header of `alg` alone, `sub` alone."""

    def part(value: object) -> bytes:
        return base64.urlsafe_b64encode(json.dumps(value, separators=(",", ":")).encode()).rstrip(b"=")

    signed = part({"alg": "HS256"}) + b"." + part({"sub": "test-user"})
    signature = base64.urlsafe_b64encode(hmac.new(SECRET, signed, hashlib.sha256).digest()).rstrip(b"=")
    assert all_keys().verified_role((signed + b"." + signature).decode()) == "test-user"


@pytest.mark.parametrize(
    ("claims", "leeway_ms", "refused"),
    [
        ({"exp": NOW + 1}, 0, ""),
        ({"exp": NOW}, 0, "expired"),
        ({"exp": NOW - 4}, 5000, ""),
        ({"exp": NOW - 5}, 5000, "expired"),
        ({"nbf": NOW}, 0, ""),
        ({"nbf": NOW + 1}, 0, "not hold yet"),
        ({"nbf": NOW + 5}, 5000, ""),
        ({"exp": "tomorrow"}, 0, "no time"),
        ({"exp": True}, 0, "no time"),
        ({"nbf": [1]}, 0, "no time"),
        ({"exp": 1e300}, 0, "no time"),
        ({"iat": NOW + 1000}, 0, ""),
    ],
)
def test_times_go_by_the_clock(claims: dict[str, object], leeway_ms: int, refused: str) -> None:
    checked = verifier(auth_token_secret_key=inline(SECRET), auth_leeway_ms=leeway_ms)
    token = jwt.encode({"sub": "r", **claims}, SECRET, HS256)
    if refused:
        with pytest.raises(BadToken, match=refused):
            checked.verified_role(token)
    else:
        assert checked.verified_role(token) == "r"


def test_a_token_without_a_signature_is_refused() -> None:
    token = jwt.encode({"sub": "root"}, None, "none")
    for item in (token, token.rstrip("."), token.replace("none", "None")):
        with pytest.raises(BadToken):
            all_keys().verified_role(item)


def test_a_public_key_is_never_taken_for_a_secret() -> None:
    """The algorithm that a token names is worth nothing: each key has its own."""
    public_only = verifier(auth_token_public_key=inline(RSA_PUBLIC))
    header = base64.urlsafe_b64encode(b'{"alg":"HS256","typ":"JWT"}').rstrip(b"=")
    body = base64.urlsafe_b64encode(b'{"sub":"root"}').rstrip(b"=")
    for key in (RSA_PUBLIC, pem(RSA_PUBLIC), base64.b64encode(RSA_PUBLIC)):
        signature = hmac.new(key, header + b"." + body, hashlib.sha256).digest()
        forged = b".".join((header, body, base64.urlsafe_b64encode(signature).rstrip(b"=")))
        with pytest.raises(BadToken, match="no key"):
            public_only.verified_role(forged.decode())


@pytest.mark.parametrize("algorithm", ["HS384", "HS512", "RS512", "PS256", "ES384"])
def test_other_algorithms_are_refused(algorithm: str) -> None:
    keys: dict[str, Any] = {"HS": SECRET * 2, "RS": signer(RS256), "PS": signer(RS256)}
    keys["ES"] = ec.generate_private_key(ec.SECP384R1())
    with pytest.raises(BadToken, match="no key"):
        all_keys().verified_role(jwt.encode({"sub": "r"}, keys[algorithm[:2]], algorithm))


@pytest.mark.parametrize(
    "token", ["", "x", "a.b.c", "..", "é" * 10, "A" * 20_000, "eyJhbGciOiJIUzI1NiJ9.e30", "[" * 5000, "\0.\0.\0"]
)
def test_what_is_no_token_is_refused(token: str) -> None:
    with pytest.raises(BadToken):
        all_keys().verified_role(token)


@pytest.mark.parametrize("claims", [{}, {"sub": ""}, {"sub": 1}, {"sub": None}, {"sub": []}, {"sub": "a\nb"}])
def test_a_token_without_a_role_is_refused(claims: dict[str, object]) -> None:
    with pytest.raises(BadToken):
        all_keys().verified_role(jwt.encode(claims, SECRET, HS256, headers={"typ": None}))


def test_the_role_may_stand_in_another_claim() -> None:
    checked = verifier(auth_token_secret_key=inline(SECRET), auth_role_claim="role")
    assert checked.verified_role(jwt.encode({"sub": "a", "role": "b"}, SECRET, HS256)) == "b"
    assert checked.verified_role(jwt.encode({"role": ["first", "second"]}, SECRET, HS256)) == "first"
    with pytest.raises(BadToken, match="role"):
        checked.verified_role(jwt.encode({"sub": "a"}, SECRET, HS256))


def test_the_audience_counts_if_it_is_set() -> None:
    checked = verifier(auth_token_secret_key=inline(SECRET), auth_audience="here")
    for audience in ("here", ["there", "here"]):
        assert checked.verified_role(jwt.encode({"sub": "a", "aud": audience}, SECRET, HS256)) == "a"
    for claims in ({"aud": "there"}, {}):
        with pytest.raises(BadToken, match="audience"):
            checked.verified_role(jwt.encode({"sub": "a", **claims}, SECRET, HS256))
    assert all_keys().verified_role(jwt.encode({"sub": "a", "aud": "any"}, SECRET, HS256)) == "a"


def test_keys_stand_in_files_raw_as_base64_or_pem(tmp_path: Path) -> None:
    secret = create_token(SECRET, "r", {})
    public = create_token(signer(ES256), "r", {})
    for number, content in enumerate((SECRET, base64.b64encode(SECRET), base64.urlsafe_b64encode(SECRET) + b"\n")):
        file = tmp_path / f"secret {number}.key"
        file.write_bytes(content)
        assert verifier(auth_token_secret_key=file.as_uri()).verified_role(secret) == "r"
        assert verifier(auth_token_secret_key=str(file)).verified_role(secret) == "r"
    for number, content in enumerate((EC_PUBLIC, base64.b64encode(EC_PUBLIC), pem(EC_PUBLIC))):
        file = tmp_path / f"public{number}"
        file.write_bytes(content)
        assert verifier(auth_token_public_key=file.as_uri()).verified_role(public) == "r"
    assert verifier(auth_token_secret_key=base64.b64encode(SECRET).decode()).verified_role(secret) == "r"


def test_a_secret_key_in_base64_that_pulsar_took_as_it_is(tmp_path: Path) -> None:
    """A broker reads a file's bytes as the key, whatever they mean; its tokens hold here."""
    file = tmp_path / "key"
    file.write_bytes(base64.b64encode(SECRET))
    token = jwt.encode({"sub": "r"}, base64.b64encode(SECRET), HS256)
    assert verifier(auth_token_secret_key=file.as_uri()).verified_role(token) == "r"


@pytest.mark.parametrize(
    "secret", ["file:///nowhere/key", "data:;base64,", "data:,abc", "no base64!", inline(b"short"), "data:;base64,%%"]
)
def test_secret_keys_that_cannot_be_used(secret: str) -> None:
    with pytest.raises(Misconfigured) as refused:
        verifier(auth_token_secret_key=secret)
    assert "auth.token-secret-key" in refused.value.message
    assert "c2hvcnQ" not in str(refused.value)


def test_public_keys_that_cannot_be_used() -> None:
    weak = rsa.generate_private_key(public_exponent=65_537, key_size=1024).public_key()
    other = ec.generate_private_key(ec.SECP384R1()).public_key()
    encoded = [
        item.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
        for item in (weak, other)
    ]
    for key in (*encoded, RSA_PRIVATE, SECRET):
        with pytest.raises(Misconfigured, match=r"auth\.token-public-key"):
            verifier(auth_token_public_key=inline(key))


def jwk(key: bytes, **others: object) -> dict[str, object]:
    loaded = serialization.load_der_public_key(key)
    created = jwt.algorithms.RSAAlgorithm if isinstance(loaded, rsa.RSAPublicKey) else jwt.algorithms.ECAlgorithm
    return {**created.to_jwk(loaded, as_dict=True), **others}  # type: ignore[arg-type]


def test_keys_of_a_jwks_file_are_chosen_by_their_id(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    encryption = jwk(RSA_PUBLIC, kid="e", use="enc")
    secret = {"kty": "oct", "k": base64.urlsafe_b64encode(SECRET).decode(), "kid": "s"}
    file.write_text(json.dumps({"keys": [jwk(RSA_PUBLIC, kid="one"), jwk(EC_PUBLIC, kid="two"), encryption, secret]}))
    checked = verifier(auth_jwks_file=str(file))
    assert [key.key_id for key in checked.keys] == ["one", "two"]
    for key_id, algorithm in (("one", RS256), ("two", ES256)):
        assert (
            checked.verified_role(jwt.encode({"sub": "r"}, signer(algorithm), algorithm, headers={"kid": key_id}))
            == "r"
        )
        assert checked.verified_role(create_token(signer(algorithm), "r", {})) == "r", "a token need not name its key"
        with pytest.raises(BadToken, match="no key"):
            checked.verified_role(jwt.encode({"sub": "r"}, signer(algorithm), algorithm, headers={"kid": "three"}))
    with pytest.raises(BadToken, match="no key"):
        checked.verified_role(create_token(SECRET, "r", {}))


def test_a_key_set_is_a_jwks_file(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    keys = [load_public_key("key", inline(key)) for key in (RSA_PUBLIC, EC_PUBLIC)]
    file.write_text(json.dumps(jwks_of(keys)))
    checked = verifier(auth_jwks_file=str(file))
    ids = [key.key_id for key in checked.keys]
    assert ids == [item["kid"] for item in jwks_of(keys)["keys"]]
    assert len({*ids, None}) == 3
    for key_id, algorithm in zip(ids, (RS256, ES256), strict=True):
        assert checked.verified_role(create_token(signer(algorithm), "r", {})) == "r"
        assert (
            checked.verified_role(jwt.encode({"sub": "r"}, signer(algorithm), algorithm, headers={"kid": key_id}))
            == "r"
        )


def test_the_id_of_a_key_is_its_thumbprint() -> None:
    """The example of RFC 7638, section 3.1."""
    modulus = (
        "0vx7agoebGcQSuuPiLJXZptN9nndrQmbXEps2aiAFbWhM78LhWx4cbbfAAtVT86zwu1RK7aPFFxuhDR1L6tSoc_BJECPebWKRXjBZCiFV4n3oknj"
        "hMstn64tZ_2W-5JsGY4Hc5n9yBXArwl93lqt7_RN5w6Cf0h4QyQ5v-65YGjQR0_FDW2QvzqY368QQMicAtaSqzs8KJZgnYb9c7d0zgdAZHzu6qMQ"
        "vRL5hajrn1n91CbOpbISD08qNLyrdkt-bFTWhAI4vMQFh6WeZu0fM4lFd2NcRwr3XPksINHaQ-G_xBniIqbw0Ls1jF44-csFCur-kEgU8awapJzK"
        "nqDKgw"
    )
    key = jwt.PyJWK({"kty": "RSA", "n": modulus, "e": "AQAB"}, RS256).key
    assert jwks_of([key])["keys"][0]["kid"] == "NzbLsXh8uDCcd-6MNwXF4W_7noWXFZAfHkxZsRGC9Xs"


@pytest.mark.parametrize("text", ["", "[]", '{"keys": []}', '{"keys": [{"kty": "RSA"}]}', '{"keys": {"a": 1}}'])
def test_jwks_files_that_cannot_be_used(text: str, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_text(text)
    with pytest.raises(Misconfigured, match=r"auth\.jwks-file"):
        verifier(auth_jwks_file=str(file))


def test_what_is_no_token_cannot_be_shown() -> None:
    with pytest.raises(InvalidInput):
        decode_unverified_token("nothing")


def test_a_new_secret_key_is_long_enough_and_new() -> None:
    assert len(new_secret_key()) == 32
    assert new_secret_key() != new_secret_key()


@pytest.mark.parametrize("encoded", ["der", "pem", "base64", "private"])
@pytest.mark.parametrize("algorithm", [RS256, ES256])
def test_a_key_of_a_pair_is_no_secret_key(tmp_path: Path, algorithm: str, encoded: str) -> None:
    """Everybody may know the public one, and could make tokens with it."""
    private, public = (RSA_PRIVATE, RSA_PUBLIC) if algorithm == RS256 else (EC_PRIVATE, EC_PUBLIC)
    file = tmp_path / "key"
    contents = {"der": public, "pem": pem(public), "base64": base64.b64encode(public), "private": private}
    file.write_bytes(contents[encoded])
    with pytest.raises(Misconfigured, match="it is no secret"):
        verifier(auth_token_secret_key=file.as_uri())
