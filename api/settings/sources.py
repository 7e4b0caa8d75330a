"""Sources of settings: a file, the environment, flags. This module parses texts to typed values by setting's name.

A file is TOML, in which every name must be known. If its name ends in `.conf` or `.properties`, it has Java properties,
as Pulsar's `broker.conf` and Kafka's `server.properties`; unknown names are then ignored and listed in one note. A name
is that of a setting, an alias (Pulsar's and Kafka's, each in its own unit), or that of a policy, whose value then is
the broker's default. Two names of one option with different values are refused.

Errors: Misconfigured, which names the file, the name and the allowed values. It does not repeat values of secrets.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from api.settings.setting import ENVIRONMENT, ExternalName, Setting
from api.settings.settings import SETTINGS
from storage.errors import CompactorError, InvalidInput, Misconfigured
from storage.options import policies
from storage.options.kinds import Duration
from storage.options.option import closest_name

_PROPERTIES = (".conf", ".properties")
_NAMES_SHOWN = 8
_OF_OTHERS = (
    "COMPACTOR_ADMIN_",
    "COMPACTOR_CA_CERT",
    "COMPACTOR_MAVEN_REPOSITORY",
    "COMPACTOR_SOAK",
    "COMPACTOR_TEST_",
    "COMPACTOR_TOKEN",
)
"""Beginnings of variables that are no settings: of `compactor-admin`, tests, and the installation of Spark."""
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)


@dataclass(frozen=True)
class SettingsFile:
    """The parsed content of a settings file: settings and policies by name. `notes`: lines about ignored names."""

    settings: Mapping[str, object]
    policies: Mapping[str, object]
    notes: tuple[str, ...]


class Overrides(NamedTuple):
    """The settings that flags or environment variables set: value by name, and origin by name."""

    values: dict[str, object]
    origins: dict[str, str]


def read_overrides(environment: Mapping[str, str], flags: Mapping[str, object]) -> Overrides:
    """Return the parsed values of settings from flags and environment. A flag has priority over the environment.

    `flags`: by attribute of the setting; None: not set. An empty value counts as not set. Raises InvalidInput for a
    flag, Misconfigured for a variable of the environment.
    """
    values: dict[str, object] = {}
    origins: dict[str, str] = {}
    value: object
    for setting in SETTINGS.values():
        flag = flags.get(setting.attribute)
        value, origin = flag, "flag"
        if flag is None:
            value, origin = environment.get(setting.environment_variable), f"environment {setting.environment_variable}"
        if value not in (None, "", (), []):
            values[setting.name] = _parse_value(
                setting,
                value if isinstance(value, list | bool | int) else str(value),
                setting.flag if flag is not None else origin,
                error_kind=Misconfigured if flag is None else InvalidInput,
            )
            origins[setting.name] = origin
    return Overrides(values, origins)


def unknown_variable_notes(environment: Mapping[str, str]) -> list[str]:
    """Return a line of advice for each variable that has the prefix of settings but is no setting: a typing error."""
    known = {
        setting.environment_variable.removeprefix(ENVIRONMENT): setting.environment_variable
        for setting in SETTINGS.values()
    }
    notes = []
    for name in sorted(environment):
        typed = name.removeprefix(ENVIRONMENT)
        if typed == name or typed in (*known, "CONFIG") or name.startswith(_OF_OTHERS):
            continue
        near = closest_name(typed, known)
        advice = f"did you mean {known[near]}?" if near else "see docs/settings.md"
        notes.append(f"{name} is not a setting, and is ignored: {advice}")
    return notes


def read_file(path: Path) -> SettingsFile:
    """Read a settings file, TOML or Java properties. Raises Misconfigured if it cannot be read, or has a wrong name or
    value."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Misconfigured(
            f"the settings file {path} cannot be read ({getattr(error, 'strerror', None) or 'it is not UTF-8'})",
            "name one that can be, with --config or COMPACTOR_CONFIG",
        ) from error
    if path.suffix in _PROPERTIES:
        # Such a file lists all names. An empty value means the default.
        return _parse_content(
            path, {name: value for name, value in _parse_properties(text).items() if value}, strict=False
        )
    try:
        return _parse_content(path, dict(_flatten("", tomllib.loads(text))), strict=True)
    except tomllib.TOMLDecodeError as error:
        raise Misconfigured(
            f"the settings file {path} is not TOML ({error})",
            "correct it; Java properties are read from names that end in .conf or .properties",
        ) from error


def _parse_content(path: Path, values: Mapping[str, object], strict: bool) -> SettingsFile:
    """Parse the values of a settings file by name. `strict`: raise Misconfigured for an unknown name, else note it.

    Raises Misconfigured for a wrong value, for contradictory values, or for policies that contradict each other.
    """
    settings: dict[str, object] = {}
    defaults: dict[str, object] = {}
    unknown: list[str] = []

    def put(into: dict[str, object], name: str, value: object, called: str) -> None:
        if name in into and into[name] != value:
            raise Misconfigured(f"{path}: {called} and another line give {name} different values", "leave one out")
        into[name] = value

    for name, value in values.items():
        named = _BY_NAME.get(name, ())
        for setting, alias in named:
            where = str(path) if alias is None else f"{path}: {name}"  # the reason names the setting
            put(settings, setting.name, _parse_value(setting, _convert_unit(alias, value), where, alias), name)
        if named:
            continue
        try:
            known = policies.policy(name)
        except InvalidInput:
            unknown.append(name)
            continue
        try:
            put(defaults, known.name, policies.parse(name, value)[1], name)
        except InvalidInput as error:
            raise Misconfigured(f"{path}: {error.message}", error.remedy) from error
    if unknown and strict:
        near = closest_name(unknown[0], [*SETTINGS, *policies.POLICIES])
        raise Misconfigured(
            f"{path}: there is no setting or policy {unknown[0]!r}",
            f"{f'did you mean {near}? ' if near else ''}see `compactor config show` and docs/settings.md",
        )
    try:
        policies.check_consistent(defaults)
    except InvalidInput as error:
        raise Misconfigured(f"{path}: {error.message}", error.remedy) from error
    return SettingsFile(settings, defaults, (_unknown_names_note(path, unknown),) if unknown else ())


def _unknown_names_note(path: Path, unknown: list[str]) -> str:
    listed = ", ".join(unknown[:_NAMES_SHOWN])
    more = f" and {len(unknown) - _NAMES_SHOWN} more" if len(unknown) > _NAMES_SHOWN else ""
    return f"{path}: not known here, and ignored: {listed}{more}"


_BY_NAME: dict[str, list[tuple[Setting, ExternalName | None]]] = {}
"""The settings that a name stands for, each with the alias that the name is, or None."""
for _setting in SETTINGS.values():
    _BY_NAME.setdefault(_setting.name, []).append((_setting, None))
    for _alias in _setting.aliases:
        _BY_NAME.setdefault(_alias.name, []).append((_setting, _alias))


def _convert_unit(alias: ExternalName | None, value: object) -> object:
    """Convert a value from the unit of Pulsar's or Kafka's name to that of the setting. `alias` None: no conversion."""
    if alias is None or isinstance(value, bool):
        return value
    text = str(value).strip()
    if alias.unit_ms and re.fullmatch(r"\d{1,15}", text, re.ASCII):
        return f"{int(text) * alias.unit_ms}ms"
    if alias.factor != 1.0:
        try:
            number = float(text) * alias.factor
        except ValueError:
            return value
        return int(number) if 0 <= number < float(1 << 62) else 0  # Kafka's "no limit" is the largest double
    return value


def _parse_value(
    setting: Setting,
    value: object,
    where: str,
    alias: ExternalName | None = None,
    error_kind: type[CompactorError] = Misconfigured,
) -> object:
    try:
        return setting.kind.parse(setting.name, value)
    except InvalidInput as error:
        reason = f"the value of {setting.name} cannot be taken" if setting.secret else error.message
        unit = f" ({alias.name} in its own unit)" if alias and isinstance(setting.kind, Duration) else ""
        raise error_kind(f"{where}: {reason}", f"give {setting.kind.allowed}{unit}") from error


def _flatten(prefix: str, table: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flatten(f"{prefix}{name}.", value)
        else:
            yield f"{prefix}{name}", value


def _parse_properties(text: str) -> dict[str, str]:
    """Parse Java properties to values by name. The last line of a name counts."""
    values: dict[str, str] = {}
    for line in _logical_lines(text):
        match = re.match(r"((?:\\.|[^\\\s=:])*)\s*[=:]?\s*(.*)", line, re.DOTALL)
        assert match, "every line matches"
        values[_unescape(match[1])] = _unescape(match[2]).strip()
    return values


def _logical_lines(text: str) -> Iterator[str]:
    """Yield the logical lines of Java properties: without comments, and joined after a backslash at the end."""
    begun = ""
    for raw in text.splitlines():
        line = raw.lstrip()
        if not begun and (not line or line[0] in "#!"):
            continue
        odd = (len(line) - len(line.rstrip("\\"))) % 2
        begun += line[:-1] if odd else line
        if not odd:
            yield begun
            begun = ""
    if begun:
        yield begun


def _unescape(text: str) -> str:
    named = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}

    def meaning(match: re.Match[str]) -> str:
        escaped = match[1]
        return chr(int(escaped[1:], 16)) if len(escaped) == 5 else named.get(escaped, escaped)

    return _ESCAPE.sub(meaning, text)
