"""The service and the token of a command, from flags, then environment, then file, then defaults.

The file is `admin.toml` in the user's configuration folder, or the one that `--config` or COMPACTOR_ADMIN_CONFIG names;
a file whose name ends in `.conf` is Pulsar's client.conf, of which the keys of `CLIENT_CONF` are used. A token is never
shown.

Raises `Misconfigured`, which names the file or the option and what to do.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from storage.errors import Misconfigured

DEFAULT_URL = "http://127.0.0.1:8080"
DEFAULT_TIMEOUT = 60.0
VARIABLES = {
    "admin-url": "COMPACTOR_ADMIN_URL",
    "token": "COMPACTOR_TOKEN",
    "token-file": "COMPACTOR_TOKEN_FILE",
    "ca-cert": "COMPACTOR_CA_CERT",
    "timeout": "COMPACTOR_ADMIN_TIMEOUT",
}
"""The names in the file, and their environment variables."""
CONFIG_VARIABLE = "COMPACTOR_ADMIN_CONFIG"
CLIENT_CONF = {
    "webServiceUrl": "admin-url",
    "authParams": "token",
    "tlsTrustCertsFilePath": "ca-cert",
}
"""Keys of Pulsar's client.conf that are used; every other key is for Pulsar's tools."""


@dataclass(frozen=True)
class ClientConfig:
    """Connection settings of `compactor-admin`: a service's URL, a token, trusted authorities and a time limit.

    `url`: without a slash at its end. `ca_cert`: the authorities to trust instead of the system's. `timeout`: seconds
    that an answer may take.
    """

    url: str = DEFAULT_URL
    token: str | None = field(default=None, repr=False)
    ca_cert: Path | None = None
    timeout: float = DEFAULT_TIMEOUT


def load_client_config(
    flags: Mapping[str, str | None], config: str | None, environment: Mapping[str, str]
) -> ClientConfig:
    """Return the connection settings by flags, then environment, then file, then defaults. Raises Misconfigured.

    `flags`: values by the names of `VARIABLES`; None: not given. `config`: the path of the file; None: the file that
    COMPACTOR_ADMIN_CONFIG names, or else the default file, which need not exist.
    """
    variables = {name: environment.get(variable) for name, variable in VARIABLES.items()}
    places = [_drop_empty_values(flags), _drop_empty_values(variables), _read_config_file(config, environment)]
    # A token or token file of a nearer place hides both of the places after it.
    tokens = next((place for place in places if {"token", "token-file"} & place.keys()), {})
    merged = {name: next((place[name] for place in places if name in place), None) for name in VARIABLES}
    return ClientConfig(
        _parse_url(merged["admin-url"] or DEFAULT_URL),
        _resolve_token(tokens.get("token"), tokens.get("token-file")),
        Path(merged["ca-cert"]).expanduser() if merged["ca-cert"] else None,
        _parse_timeout(merged["timeout"]),
    )


def _drop_empty_values(place: Mapping[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in place.items() if value}


def _read_text_if_exists(file: Path | str, kind: str, encoding: str, advice: str) -> str | None:
    """Return the text of a file; None if it does not exist. `kind`: the noun for the file in errors; `advice`: the
    remedy for a wrong encoding. Raises Misconfigured."""
    try:
        return Path(file).expanduser().read_text(encoding)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Misconfigured(
            f"the {kind} {file} cannot be read ({error.strerror})", "check its name and permissions"
        ) from error
    except UnicodeDecodeError as error:
        raise Misconfigured(f"the {kind} {file} is not {encoding} text", advice) from error


def _read_config_file(config: str | None, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of the configuration file; empty if the default file does not exist. Raises Misconfigured."""
    name = config or environment.get(CONFIG_VARIABLE)
    folder = environment.get("XDG_CONFIG_HOME") or os.path.join(environment.get("HOME", "~"), ".config")
    file = Path(name or os.path.join(folder, "compactor", "admin.toml")).expanduser()
    text = _read_text_if_exists(file, "configuration file", "UTF-8", "correct the file")
    if text is None:
        if name is None:
            return {}
        raise Misconfigured(f"the configuration file {file} does not exist", "name another with --config")
    return _parse_client_conf(text) if file.suffix == ".conf" else _parse_toml(file, text)


def _parse_toml(file: Path, text: str) -> dict[str, str]:
    import tomllib

    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise Misconfigured(f"{file} is not TOML ({error})", "correct the file") from error
    if unknown := sorted(set(content) - set(VARIABLES)):
        raise Misconfigured(f"{file} has the unknown key {unknown[0]!r}", f"use {', '.join(VARIABLES)}")
    for key, value in content.items():
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise Misconfigured(f"{key} in {file} is not a text", f'write {key} = "…"')
    return {key: str(value) for key, value in content.items() if value != ""}


def _parse_client_conf(text: str) -> dict[str, str]:
    """Return the settings of a Java properties file, as far as Pulsar's client.conf uses the format."""
    settings = {}
    for line in map(str.strip, text.splitlines()):
        key, separator, value = line.partition("=")
        name = CLIENT_CONF.get(key.strip())
        if separator and name and value.strip() and not line.startswith(("#", "!")):
            settings[name] = value.strip()
    if "admin-url" in settings:  # Pulsar takes several hosts, and asks the first that answers; one is enough here
        settings["admin-url"] = settings["admin-url"].partition(",")[0]
    token = settings.pop("token", "")
    if token.startswith("file:"):
        settings["token-file"] = urlsplit(token).path
    elif token.startswith("token:"):
        settings["token"] = token.removeprefix("token:")
    elif token and not token.startswith("{"):
        settings["token"] = token
    return settings


def _parse_url(text: str) -> str:
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise Misconfigured(f"{text!r} is not the URL of a service", f"give one as {DEFAULT_URL} with --admin-url")
    return text.rstrip("/")


def _resolve_token(token: str | None, file: str | None) -> str | None:
    if token and file:
        raise Misconfigured("both a token and a token file are given", "leave one of them out")
    if file:
        token = _read_text_if_exists(file, "token file", "ASCII", "name another with --token-file")
        if token is None:
            raise Misconfigured(f"the token file {file} does not exist", "name another with --token-file")
    token = (token or "").strip()
    if not all(33 <= ord(character) < 127 for character in token):
        raise Misconfigured("the token has characters that no token has", "give it as `compactor tokens create` does")
    return token or None


def _parse_timeout(text: str | None) -> float:
    try:
        seconds = float(text or DEFAULT_TIMEOUT)
    except ValueError:
        seconds = 0
    if not 0 < seconds <= 86_400:
        raise Misconfigured(f"{text!r} is not a time limit", "give seconds with --timeout")
    return seconds
