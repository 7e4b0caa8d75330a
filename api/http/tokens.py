"""Tokens: JSON Web Tokens in the form of Pulsar's `bin/pulsar tokens` and brokers.

They are signed with HS256 (a secret key), or with RS256 or ES256 (a key pair). A setting names a key as Pulsar's
settings do: `file:///path`, a path, `data:;base64,…`, or the key in Base64. A file holds it raw, in Base64 or in PEM
(key pairs also in DER).

Invariants: a key works with the one algorithm of its kind, so a token cannot choose another (`none`, or a public key
used as a secret); `exp` and `nbf` are compared with the injected clock; an error never contains the token. Raises
Misconfigured for keys, BadToken for tokens. Must not know: HTTP, roles' permissions.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.types import Options

from api.settings.settings import Settings
from storage.clock import Clock
from storage.errors import InvalidInput, Misconfigured

HS256, RS256, ES256 = "HS256", "RS256", "ES256"
SECRET_BYTES = 32
MAX_TOKEN_BYTES = 16 << 10
_RSA_BITS = 2048

PublicKey = rsa.RSAPublicKey | ec.EllipticCurvePublicKey
PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey
_FIX = "give file:///… of a key, or data:;base64,…; `compactor tokens create-secret-key` or `create-key-pair` make one"
_UNCHECKED: Options = {
    "verify_signature": True,
    "verify_exp": False,
    "verify_nbf": False,
    "verify_iat": False,
    "verify_aud": False,
    "verify_iss": False,
    "verify_sub": False,
    "verify_jti": False,
}
"""PyJWT verifies the signature only; this module checks the claims, with the injected clock."""


class BadToken(Exception):
    """A token that does not prove its bearer's role; the text is the reason, without the token."""


@dataclass(frozen=True)
class TokenKey:
    """A key that verifies tokens of one algorithm. `key_id`: tokens that name another key id are not verified by it;
    None: it verifies tokens with any key id."""

    algorithm: str
    key: bytes | PublicKey
    key_id: str | None = None


@dataclass(frozen=True)
class TokenVerifier:
    """A verifier of JSON Web Tokens: their signature by a set of keys, their times, their audience, their
    revocation."""

    keys: Sequence[TokenKey]
    clock: Clock
    role_claim: str = "sub"
    audience: str = ""
    leeway_ms: int = 0
    revoked: frozenset[str] = frozenset()
    """Ids (`jti`) of tokens that were revoked."""

    def verified_role(self, token: str) -> str:
        """Verify a token, and return its role, from the claim `role_claim`. Raise BadToken."""
        role = self.verified_claims(token).get(self.role_claim)
        if isinstance(role, list) and role:
            role = role[0]  # as Pulsar does
        if not isinstance(role, str) or not role or not role.isprintable():
            raise BadToken(f"the token has no role in its claim {self.role_claim!r}")
        return role

    def verified_claims(self, token: str) -> Mapping[str, Any]:
        """Verify a token: signature, times, audience and revocation. Return its claims. Raise BadToken."""
        claims = self._claims_with_valid_signature(token)
        now = self.clock.now_ms()
        if (expires := _time_claim(claims, "exp")) is not None and now >= expires * 1000 + self.leeway_ms:
            raise BadToken("the token has expired")
        if (begins := _time_claim(claims, "nbf")) is not None and now < begins * 1000 - self.leeway_ms:
            raise BadToken("the token does not hold yet")
        audience = claims.get("aud")
        if self.audience and self.audience not in (audience if isinstance(audience, list) else [audience]):
            raise BadToken("the token is for another audience")
        if self.revoked and str(claims.get("jti")) in self.revoked:
            raise BadToken("the token was revoked")
        return claims

    def _claims_with_valid_signature(self, token: str) -> Mapping[str, Any]:
        """Return the claims of a token that one of the keys has signed; no claim is checked. Raise BadToken."""
        if len(token) > MAX_TOKEN_BYTES:
            raise BadToken("the token is too long")
        try:
            header = jwt.get_unverified_header(token)
        except (jwt.PyJWTError, ValueError, RecursionError) as error:
            raise BadToken("it is no JSON Web Token") from error
        algorithm, key_id = header.get("alg"), header.get("kid")
        for key in self.keys:
            if key.algorithm != algorithm or (key_id and key.key_id and key_id != key.key_id):
                continue
            try:
                return jwt.decode(token, key.key, algorithms=[key.algorithm], options=_UNCHECKED)
            except jwt.InvalidSignatureError:
                continue
            except (jwt.PyJWTError, ValueError, RecursionError) as error:
                raise BadToken("the token cannot be read") from error
        raise BadToken("no key of this service has signed the token")


class KeyPair(NamedTuple):
    """A key pair in DER, Pulsar's format."""

    private: bytes
    public: bytes


class KeySource(NamedTuple):
    """The value of a setting that names keys, and the function that reads them. It raises Misconfigured."""

    value: str
    read: Callable[[], list[TokenKey]]


def key_sources(settings: Settings) -> list[KeySource]:
    """Return a source for each setting that names keys which verify tokens, and has a value."""
    secret, public, key_set = settings.auth_token_secret_key, settings.auth_token_public_key, settings.auth_jwks_file
    previous = settings.auth_token_previous_secret_key

    def previous_secrets() -> list[TokenKey]:
        file = named_file(previous)
        if file is not None and not file.exists():
            return []  # no key is being rotated
        return [TokenKey(HS256, key) for key in load_possible_secret_keys("auth.token-previous-secret-key", previous)]

    def secrets() -> list[TokenKey]:
        return [TokenKey(HS256, key) for key in load_possible_secret_keys("auth.token-secret-key", secret)]

    def publics() -> list[TokenKey]:
        key = load_public_key("auth.token-public-key", public)
        return [TokenKey(algorithm_of(key), key)]

    # The previous key is first: while both files change, tokens of that key stay valid at every moment.
    sources = (
        (previous, previous_secrets),
        (secret, secrets),
        (public, publics),
        (key_set, lambda: read_jwks(key_set)),
    )
    return [KeySource(value, read) for value, read in sources if value]


def _time_claim(claims: Mapping[str, Any], name: str) -> float | None:
    """Return the claim `name`, a time in seconds; None: there is none. Raise BadToken for a value that is no time."""
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e15:
        raise BadToken(f"the token's {name} is no time")
    return value


def create_token(key: bytes | PrivateKey, subject: str, claims: Mapping[str, object]) -> str:
    """Return a signed token for the role `subject`, with `claims`. A secret (bytes) signs with HS256, a private key
    with RS256 or ES256."""
    algorithm = HS256 if isinstance(key, bytes) else algorithm_of(key.public_key())
    return jwt.encode({"sub": subject, **claims}, key, algorithm=algorithm, headers={"typ": None})


def decode_unverified_token(token: str) -> dict[str, object]:
    """Return the `header` and the `claims` of a token, without a check of its signature. Raise InvalidInput if it is no
    token."""
    try:
        return {
            "header": jwt.get_unverified_header(token),
            "claims": jwt.decode(token, options={"verify_signature": False}),
        }
    except (jwt.PyJWTError, ValueError, RecursionError) as error:
        raise InvalidInput("that is no JSON Web Token", "give one as `compactor tokens create` prints it") from error


# Keys


def new_secret_key() -> bytes:
    """Return a new random secret key for HS256."""
    return os.urandom(SECRET_BYTES)


def new_key_pair(algorithm: str) -> KeyPair:
    """Return a new key pair for `algorithm`, RS256 or ES256."""
    private: PrivateKey
    if algorithm == RS256:
        private = rsa.generate_private_key(public_exponent=65_537, key_size=_RSA_BITS)
    else:
        private = ec.generate_private_key(ec.SECP256R1())
    encoded = private.private_bytes(
        serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = private.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return KeyPair(encoded, public)


def load_possible_secret_keys(setting: str, value: str) -> list[bytes]:
    """Return the secret keys that `value` may mean: its content decoded from Base64, then its content as it is.

    `value`: a data:;base64, URL, a file, or Base64. `setting`: its name, for the error. Raise Misconfigured for a key
    of a pair, and for a key that is too short.
    """
    content = _key_content(setting, value)
    if _is_asymmetric_key(content):
        raise Misconfigured(f"{setting} holds a key of a pair, which others may know: it is no secret", _FIX)
    keys = [item for item in (_decode_base64(content), content) if item is not None and len(item) >= SECRET_BYTES]
    if not keys:
        problem = f"the secret key of {setting} is shorter than {SECRET_BYTES} bytes"
        if not value.startswith(("data:", "file:")) and not Path(value).exists():
            problem = f"{setting} names no existing file, and as Base64 it is shorter than {SECRET_BYTES} bytes"
        raise Misconfigured(problem, _FIX)
    return keys


def _is_asymmetric_key(content: bytes) -> bool:
    """Return whether the content is a public or private key, which must not be used as a secret key."""
    if b"-----BEGIN" in content:
        return True
    for der in (content, _decode_base64(content) or b""):
        with suppress(ValueError, TypeError, UnsupportedAlgorithm):
            serialization.load_der_public_key(der)
            return True
        with suppress(ValueError, TypeError, UnsupportedAlgorithm):
            serialization.load_der_private_key(der, None)
            return True
    return False


def load_public_key(setting: str, value: str) -> PublicKey:
    """Return the public key for RS256 or ES256 that `value` gives: a data:;base64, URL, a file, or Base64, as PEM or
    DER.

    `setting`: its name, for the error. Raise Misconfigured.
    """
    load = serialization.load_pem_public_key, serialization.load_der_public_key
    return _supported_public_key(setting, _load_asymmetric_key(setting, value, *load, "public key"))


def load_private_key(setting: str, value: str) -> PrivateKey:
    """Return the private key for RS256 or ES256 that `value` gives: a data:;base64, URL, a file, or Base64, as PEM or
    DER without a password.

    `setting`: its name, for the error. Raise Misconfigured.
    """
    pem, der = serialization.load_pem_private_key, serialization.load_der_private_key
    load = partial(pem, password=None), partial(der, password=None)
    key = _load_asymmetric_key(setting, value, *load, "private key without a password")
    if isinstance(key, rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey):
        _supported_public_key(setting, key.public_key())
        return key
    raise _unsupported_key_error(setting)


def _load_asymmetric_key(
    name: str, value: str, pem: Callable[[bytes], object], der: Callable[[bytes], object], what: str
) -> object:
    """Return the public or private key that the value of a setting names. `pem`, `der`: the functions that parse these
    formats; `what`: the kind of key, for an error. Raise Misconfigured."""
    content = _key_content(name, value)
    try:
        return pem(content) if b"-----BEGIN" in content else der(_decode_base64(content) or content)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise Misconfigured(f"{name} holds no {what}", _FIX) from error


def read_jwks(path: str) -> list[TokenKey]:
    """Return the keys of a JWKS file that verify tokens; other keys are skipped. Raise Misconfigured for an invalid
    file, or one without such a key."""
    content = _key_content("auth.jwks-file", path)
    try:
        entries = json.loads(content)["keys"]
        keys = []
        for item in entries:
            if item["kty"] not in ("RSA", "EC") or item.get("use", "sig") != "sig" or "d" in item:
                continue
            public = _supported_public_key(
                "auth.jwks-file", jwt.PyJWK(item, RS256 if item["kty"] == "RSA" else ES256).key
            )
            keys.append(TokenKey(algorithm_of(public), public, item.get("kid")))
    except (ValueError, KeyError, TypeError, RecursionError, UnsupportedAlgorithm, jwt.PyJWTError) as error:
        raise Misconfigured(
            f"auth.jwks-file {path} is no list of keys", 'give a file {"keys": […]} of RSA and P-256 public keys'
        ) from error
    if not keys:
        raise Misconfigured(f"auth.jwks-file {path} has no key that signs tokens", "give RSA or P-256 public keys")
    return keys


def jwks_of(keys: Sequence[PublicKey]) -> dict[str, list[dict[str, str]]]:
    """Return a JWKS of public keys. The id of each is its thumbprint (RFC 7638), so it never changes."""
    return {"keys": [_jwk(key) for key in keys]}


def _jwk(key: PublicKey) -> dict[str, str]:
    if isinstance(key, rsa.RSAPublicKey):
        document = jwt.algorithms.RSAAlgorithm.to_jwk(key, as_dict=True)
    else:
        document = jwt.algorithms.ECAlgorithm.to_jwk(key, as_dict=True)
    members = {name: document[name] for name in sorted(document.keys() & {"crv", "e", "kty", "n", "x", "y"})}
    digest = hashlib.sha256(json.dumps(members, separators=(",", ":")).encode()).digest()
    thumbprint = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
    return {**members, "kid": thumbprint, "use": "sig", "alg": algorithm_of(key)}


def read_revoked_token_ids(value: str) -> frozenset[str]:
    """Return the ids in a file of revoked tokens: one id a line; `#` begins a comment. Raise Misconfigured for no text
    file."""
    try:
        path = named_file(value) or Path(value)
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise Misconfigured(
            f"auth.revoked-tokens-file cannot be read from {value} ({error.strerror})", "name a text file"
        ) from error
    except UnicodeDecodeError as error:
        raise Misconfigured(f"auth.revoked-tokens-file {value} is no text", "give one id (jti) a line") from error
    return frozenset(token_id for line in lines if (token_id := line.partition("#")[0].strip()))


def named_file(value: str) -> Path | None:
    """Return the path of the file that the value of a setting names; None: the value is the key itself."""
    if value.startswith("data:"):
        return None
    path = Path(unquote(urlsplit(value).path) if value.startswith("file:") else value)
    with suppress(OSError, ValueError):
        return path if value.startswith("file:") or "/" in value[:2] or path.exists() else None
    return path


def algorithm_of(key: PublicKey) -> str:
    """Return the algorithm of the tokens that a public key verifies: RS256 or ES256."""
    return RS256 if isinstance(key, rsa.RSAPublicKey) else ES256


def _supported_public_key(name: str, key: object) -> PublicKey:
    """Return the key if it is a public key of a supported kind and size. Raise Misconfigured for another."""
    if isinstance(key, rsa.RSAPublicKey) and key.key_size >= _RSA_BITS:
        return key
    if isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1):
        return key
    raise _unsupported_key_error(name)


def _unsupported_key_error(name: str) -> Misconfigured:
    return Misconfigured(f"the key of {name} cannot be used", "give RSA of 2048 bits or more, or EC P-256")


def _key_content(name: str, value: str) -> bytes:
    """Return the bytes of a key from its setting's value, or from the file that it names. Raise Misconfigured; the
    error does not contain the key."""
    if value.startswith("data:"):
        kind, comma, data = value[5:].partition(",")
        if comma and kind.endswith(";base64"):
            decoded_data = _decode_base64(data.encode())
            if decoded_data is not None:
                return decoded_data
        raise Misconfigured(f"the key of {name} is no data:;base64,…", _FIX)
    path = named_file(value)
    try:
        if path is not None:
            return path.read_bytes().strip(b"\r\n") if path.suffix in (".pem", ".json") else path.read_bytes()
    except (OSError, ValueError) as error:
        if value.startswith("file:") or isinstance(error, PermissionError):
            reason = getattr(error, "strerror", None) or "no such file"
            raise Misconfigured(f"the key of {name} cannot be read from {path} ({reason})", _FIX) from error
    decoded = _decode_base64(value.encode())
    if decoded is None:
        raise Misconfigured(f"the key of {name} is neither a file nor Base64", _FIX)
    return decoded


def _decode_base64(content: bytes) -> bytes | None:
    """Decode a text in Base64 (either alphabet, with line ends), and return the bytes; None for another text."""
    text = b"".join(content.split())
    if not text or not re.fullmatch(rb"[A-Za-z0-9+/_-]+={0,2}", text):
        return None
    try:
        return base64.b64decode(text.replace(b"-", b"+").replace(b"_", b"/") + b"=" * (-len(text) % 4), validate=True)
    except (ValueError, binascii.Error):
        return None
