"""`compactor tokens`: keys and tokens in the form of `bin/pulsar tokens`. Pulsar's brokers accept them, too.

Secrets go to standard output, or to a file that only its owner may read.
"""

from __future__ import annotations

import base64
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from api.cli.kit.output import show
from api.cli.kit.quantity_parsers import duration_option
from api.cli.kit.shared_arguments import OutputFormat
from api.cli.kit.stderr import say
from api.cli.kit.terminal import print_line
from api.settings.settings import Settings
from storage.errors import Conflict, InvalidInput

if TYPE_CHECKING:
    from api.http.tokens import PrivateKey

SecretKey = Annotated[
    str | None,
    typer.Option(metavar="KEY", help="file:///… or data:;base64,… of a secret key (default: auth.token-secret-key)."),
]
Token = Annotated[str | None, typer.Argument(metavar="[TOKEN]", help="The token, or - for standard input.")]


def create_secret_key(
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the key to this file instead of stdout.")
    ] = None,
    base64_: Annotated[bool, typer.Option("--base64", help="As Base64.")] = False,
) -> None:
    """Create a secret key, for tokens signed by HS256."""
    from api.http.tokens import new_secret_key

    key = new_secret_key()
    _write_new_private_file(output, base64.b64encode(key) + (b"" if output else b"\n") if base64_ else key)


def create_key_pair(
    output_private_key: Annotated[Path, typer.Option(metavar="FILE", help="File for the private key.")],
    output_public_key: Annotated[Path, typer.Option(metavar="FILE", help="File for the public key.")],
    signature_algorithm: Annotated[
        Literal["RS256", "ES256"], typer.Option(help="Algorithm of the tokens that the keys are for.")
    ] = "RS256",
) -> None:
    """Create a key pair. The private key signs tokens; services need only the public key."""
    from api.http.tokens import new_key_pair

    private, public = new_key_pair(signature_algorithm)
    _write_new_private_file(output_private_key, private)
    _write_new_private_file(output_public_key, public)


def create_jwks(
    public_keys: Annotated[
        list[str], typer.Argument(metavar="PUBLIC_KEY...", help="file:///…, a path or data:;base64,… of a public key.")
    ],
) -> None:
    """Create a JWKS of public keys, for auth.jwks-file, and print it.

    Tokens of each of its keys are accepted: name the old and the new key while you rotate.
    """
    from api.http.tokens import jwks_of, load_public_key

    show(jwks_of([load_public_key("PUBLIC_KEY", key) for key in public_keys]), OutputFormat.JSON)


def create_token(
    context: typer.Context,
    subject: Annotated[str, typer.Option(metavar="ROLE", help="The role of its bearer.")],
    secret_key: SecretKey = None,
    private_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="file:///… or data:;base64,… of a private key, instead.")
    ] = None,
    expiry_time: Annotated[
        int | None,
        duration_option("--expiry-time", "Time until it expires: 90s, 12h, 30d, 4w, 1y.", least=1000, needs_unit=True),
    ] = None,
) -> None:
    """Create a signed token, and print it."""
    from api.http.tokens import create_token
    from storage.clock import SystemClock

    if not subject or not subject.isprintable():
        raise InvalidInput("the role has no printable name", "give --subject ROLE")
    settings: Settings = context.obj
    key = _signing_key(settings, secret_key, private_key)
    now = SystemClock().now_ms() // 1000
    import secrets

    claims: dict[str, object] = {"iat": now, "jti": secrets.token_hex(16), settings.auth_role_claim: subject}
    if settings.auth_audience:
        claims["aud"] = settings.auth_audience
    if expiry_time is not None:
        claims["exp"] = now + expiry_time // 1000
    else:
        say("compactor: this token never expires: give --expiry-time to limit its life")
    print_line(create_token(key, subject, claims))


def show_token(token: Token = None) -> None:
    """Show header and claims of a token, without a check of its signature."""
    from api.http.tokens import decode_unverified_token

    show(decode_unverified_token(_read_token(token)), OutputFormat.JSON)


def validate_token(
    context: typer.Context,
    token: Token = None,
    secret_key: SecretKey = None,
    public_key: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="file:///… or data:;base64,… of a public key (default: the settings')."),
    ] = None,
) -> None:
    """Check a token as a service does, with the given keys or those of the settings, and show its claims."""
    from api.http.token_key_reloader import TokenKeyReloader
    from api.http.tokens import BadToken
    from storage.clock import SystemClock

    settings: Settings = context.obj
    if secret_key is not None or public_key is not None:
        settings = Settings(
            auth_token_secret_key=secret_key or "",
            auth_token_public_key=public_key or "",
            auth_role_claim=settings.auth_role_claim,
            auth_audience=settings.auth_audience,
            auth_leeway_ms=settings.auth_leeway_ms,
        )
    verifier = TokenKeyReloader(settings, SystemClock()).verifier
    if not verifier.keys:
        raise InvalidInput("there is no key to check the token with", "give --secret-key or --public-key")
    text = _read_token(token)
    try:
        verifier.verified_role(text)
        claims = verifier.verified_claims(text)
    except BadToken as error:
        raise InvalidInput(f"the token is refused: {error}", "create another with `compactor tokens create`") from error
    show(claims, OutputFormat.JSON)


def _signing_key(settings: Settings, secret_key: str | None, private_key: str | None) -> bytes | PrivateKey:
    from api.http import tokens

    if private_key is not None:
        if secret_key is not None:
            raise InvalidInput("a token is signed by one key", "give --secret-key or --private-key")
        return tokens.load_private_key("--private-key", private_key)
    key = secret_key or settings.auth_token_secret_key
    if not key:
        raise InvalidInput(
            "there is no key to sign the token with", "give --secret-key or --private-key, or set auth.token-secret-key"
        )
    return tokens.load_possible_secret_keys("--secret-key" if secret_key else "auth.token-secret-key", key)[0]


def _read_token(token: str | None) -> str:
    """Return the token. `-` and None read it from standard input, so that it is not visible in a list of processes."""
    text = sys.stdin.read() if token in (None, "-") else str(token)
    return text.strip()


def _write_new_private_file(file: Path | None, content: bytes) -> None:
    """Write content to a new file that only its owner may read; None: to stdout. Raises Conflict if the file exists."""
    if file is None:
        sys.stdout.buffer.write(content)
        sys.stdout.flush()
        return
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise Conflict(f"{file} exists already, and keys are never overwritten", "name another file") from error
    with os.fdopen(descriptor, "wb") as target:
        target.write(content)
