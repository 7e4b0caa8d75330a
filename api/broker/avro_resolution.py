"""Avro's resolution of a writer's schema by a reader's, as Pulsar's broker decides compatibility.

Source: `org.apache.avro.Resolver` and `SchemaValidator` of Avro for Java. They differ from the specification, and a
broker decides by them: the names of two records are not compared, except to choose between branches of a union; names
of enums and fixed types are compared without their namespace; a symbol that the reader's enum lacks is an error of
the data and not of the schemas. Two deviations: a record matches a branch of another name only if all of its fields, at
any depth, can be read; an alias that is also the name of something else is not followed everywhere. Of 20,000 random
pairs, Avro 1.12.1 decides 8 differently, all of them with such aliases.

Definitions come from clients. `parse` bounds their bytes and nesting; `incompatibility` bounds the pairs that it
compares and remembers each pair, so its time is proportional to that bound. Both recurse: a caller maps RecursionError,
or raises the limit of its process. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import avro.schema

from api.formats.validation_text import json_problem

DEFINITION_BYTES = 1 << 20
"""Largest definition of a schema, which is also the largest body of a REST call that produces nothing."""
DEPTH = 256
"""Nested arrays and objects of a definition."""
STEPS = 200_000
"""Pairs of types that one comparison may check, about a second of work. Two equal records of N fields need about 3 N;
two unions of N records with different names need N²."""
_PROMOTIONS = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
_NAMED = ("record", "enum", "fixed")


class MalformedDefinition(ValueError):
    """A definition that is not Avro. The message names the reason."""


class TooComplex(ValueError):
    """A definition, or a comparison of two, beyond the bounds; the message names the bound."""


def parse(data: bytes) -> avro.schema.Schema:
    """Return the schema that a definition describes. Raises MalformedDefinition, TooComplex, RecursionError."""
    if len(data) > DEFINITION_BYTES:
        raise TooComplex(f"it has {len(data)} bytes, and {DEFINITION_BYTES} are allowed")
    try:
        text = data.decode()
        _check_depth(json.loads(text))
        return avro.schema.parse(text, validate_names=False)
    except (TooComplex, RecursionError):
        raise
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise MalformedDefinition(f"it {json_problem(error)}") from error
    except Exception as error:  # avro raises AttributeError, TypeError and others for JSON of another form
        raise MalformedDefinition(str(error)[:500] or type(error).__name__) from error


def incompatibility(reader: avro.schema.Schema, writer: avro.schema.Schema, max_steps: int = STEPS) -> str:
    """Return the reason why `reader` cannot read data of `writer`, with the path of the field; empty: it can.

    Raises TooComplex, RecursionError.
    """
    problem = _Resolution(max_steps).problem(reader, writer)
    return "" if problem is None else str(problem)


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(DEPTH + 1):
        if not level:
            return
        level = [child for item in level for child in _children(item)]
    raise TooComplex(f"it is nested deeper than {DEPTH} arrays and objects")


def _children(value: Any) -> Iterator[Any]:
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return (item for item in items if isinstance(item, dict | list))


@dataclass(frozen=True, slots=True)
class _Problem:
    """The reason why data cannot be read, and the names of the fields that lead to it, the innermost first."""

    reason: str
    path: tuple[str, ...] = ()

    def within(self, name: str) -> _Problem:
        return _Problem(self.reason, (*self.path, name))

    def __str__(self) -> str:
        where = ".".join(reversed(self.path))
        return (f"{where}: {self.reason}" if where else self.reason)[:500]


@dataclass(frozen=True)
class _Branches:
    """The branches of a reader's union by type; named types also by type and full name or alias."""

    by_type: Mapping[str, Sequence[Any]]
    by_name: Mapping[tuple[str, str], Any]

    @classmethod
    def of(cls, union: Any) -> _Branches:
        by_type: dict[str, list[Any]] = {}
        by_name: dict[tuple[str, str], Any] = {}
        for branch in union.schemas:
            kind = _type(branch)
            by_type.setdefault(kind, []).append(branch)
            for name in (branch.fullname, *_aliases(branch)) if kind in _NAMED else ():
                by_name.setdefault((kind, name), branch)
        return cls(by_type, by_name)


class _Resolution:
    """One comparison. A pair that occurs again while it is compared counts as readable there."""

    def __init__(self, max_steps: int) -> None:
        self._steps_left = max_steps
        self._max_steps = max_steps
        self._results: dict[tuple[int, int], _Problem | None] = {}
        self._unions: dict[int, _Branches] = {}

    def problem(self, reader: Any, writer: Any) -> _Problem | None:
        pair = id(reader), id(writer)
        if pair in self._results:
            return self._results[pair]
        self._steps_left -= 1
        if self._steps_left < 0:
            raise TooComplex(f"its comparison needs more than {self._max_steps} pairs of types")
        self._results[pair] = None
        result = self._results[pair] = self._compare(reader, writer)
        return result

    def _compare(self, reader: Any, writer: Any) -> _Problem | None:
        read, written = _type(reader), _type(writer)
        if written == "union":
            return next(filter(None, (self.problem(reader, branch) for branch in writer.schemas)), None)
        if read == "union":
            return self._of_union(reader, writer)
        if read != written:
            if read in _PROMOTIONS.get(written, ()):
                return None
            return _Problem(f"{_described(writer)} cannot be read as {_described(reader)}")
        if read == "array":
            return self._within("items", reader.items, writer.items)
        if read == "map":
            return self._within("values", reader.values, writer.values)
        if read == "record":
            return self._of_records(reader, writer)
        if read in _NAMED and not _is_named_as(reader, writer):
            return _Problem(f"{_described(writer)} cannot be read as {_described(reader)}: the names differ")
        if read == "fixed" and reader.size != writer.size:
            return _Problem(f"{_described(writer)} of {writer.size} bytes cannot be read with {reader.size} bytes")
        return None

    def _of_union(self, reader: Any, writer: Any) -> _Problem | None:
        written = _type(writer)
        branches = self._unions.get(id(reader))
        if branches is None:
            branches = self._unions[id(reader)] = _Branches.of(reader)
        named = branches.by_name.get((written, writer.fullname)) if written in _NAMED else None
        alike = branches.by_type.get(written, ())
        if named is not None:
            return self.problem(named, writer)
        if alike and written not in _NAMED:
            return self.problem(alike[0], writer)
        if written == "record" and any(self.problem(branch, writer) is None for branch in alike):
            return None
        if any(promoted in branches.by_type for promoted in _PROMOTIONS.get(written, ())):
            return None
        return _Problem(f"no branch of the union reads {_described(writer)}")

    def _of_records(self, reader: Any, writer: Any) -> _Problem | None:
        fields = writer.fields_dict
        for field in reader.fields:
            names = (field.name, *_aliases(field))
            source = next((fields[name] for name in names if name in fields), None)
            if source is not None:
                if problem := self._within(field.name, field.type, source.type):
                    return problem
            elif not field.has_default:
                return _Problem("the field is not written, and has no default value", (field.name[:100],))
        return None

    def _within(self, name: str, reader: Any, writer: Any) -> _Problem | None:
        problem = self.problem(reader, writer)
        return None if problem is None else problem.within(name[:100])


def _type(schema: Any) -> str:
    return {"error": "record", "error_union": "union"}.get(schema.type, str(schema.type))


def _is_named_as(reader: Any, writer: Any) -> bool:
    return bool(reader.name == writer.name) or not {writer.fullname, writer.name}.isdisjoint(_aliases(reader))


def _aliases(item: Any) -> list[str]:
    aliases = item.props.get("aliases")
    return [alias for alias in aliases if isinstance(alias, str)] if isinstance(aliases, list) else []


def _described(schema: Any) -> str:
    kind = _type(schema)
    return f"{kind} {schema.fullname[:100]}" if kind in _NAMED else kind
