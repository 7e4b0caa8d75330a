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

from api.formats.validation_text import json_problem_text

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
    """A schema definition that is not valid Avro. The message names the reason."""


class TooComplex(ValueError):
    """A schema definition, or a comparison of two, that exceeds a limit. The message names the limit."""


def parse(data: bytes) -> avro.schema.Schema:
    """Parse an Avro schema from JSON text. Raises MalformedDefinition, TooComplex, RecursionError."""
    if len(data) > DEFINITION_BYTES:
        raise TooComplex(f"it has {len(data)} bytes, and {DEFINITION_BYTES} are allowed")
    try:
        text = data.decode()
        _check_depth(json.loads(text))
        return avro.schema.parse(text, validate_names=False)
    except (TooComplex, RecursionError):
        raise
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise MalformedDefinition(f"it {json_problem_text(error)}") from error
    except Exception as error:  # avro raises AttributeError, TypeError and others for JSON of another form
        raise MalformedDefinition(str(error)[:500] or type(error).__name__) from error


def incompatibility(reader: avro.schema.Schema, writer: avro.schema.Schema, max_steps: int = STEPS) -> str:
    """Return the reason why the schema `reader` cannot read data of the schema `writer`; empty: it can.

    The reason has the path of the field. Raises TooComplex, RecursionError.
    """
    problem = _Resolution(max_steps).find_problem(reader, writer)
    return "" if problem is None else str(problem)


def _check_depth(value: Any) -> None:
    """Raise TooComplex for a JSON value with more than `DEPTH` nested arrays and objects."""
    level = [value]
    for _ in range(DEPTH + 1):
        if not level:
            return
        level = [child for item in level for child in _nested_containers(item)]
    raise TooComplex(f"it is nested deeper than {DEPTH} arrays and objects")


def _nested_containers(value: Any) -> Iterator[Any]:
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return (item for item in items if isinstance(item, dict | list))


@dataclass(frozen=True, slots=True)
class _Problem:
    """An incompatibility of two schemas: the reason, and the names of the fields that lead to it, innermost first."""

    reason: str
    path: tuple[str, ...] = ()

    def within(self, name: str) -> _Problem:
        return _Problem(self.reason, (*self.path, name))

    def __str__(self) -> str:
        where = ".".join(reversed(self.path))
        return (f"{where}: {self.reason}" if where else self.reason)[:500]


@dataclass(frozen=True)
class _Branches:
    """The branches of an Avro union: by type, and for named types also by type and full name or alias."""

    by_type: Mapping[str, Sequence[Any]]
    by_name: Mapping[tuple[str, str], Any]

    @classmethod
    def of(cls, union: Any) -> _Branches:
        by_type: dict[str, list[Any]] = {}
        by_name: dict[tuple[str, str], Any] = {}
        for branch in union.schemas:
            kind = _type_name(branch)
            by_type.setdefault(kind, []).append(branch)
            for name in (branch.fullname, *_aliases(branch)) if kind in _NAMED else ():
                by_name.setdefault((kind, name), branch)
        return cls(by_type, by_name)


class _Resolution:
    """A comparison of a reader's schema with a writer's, with a limit of steps. Each pair of types is compared once;
    a pair that occurs again during its own comparison counts as readable."""

    def __init__(self, max_steps: int) -> None:
        self._steps_left = max_steps
        self._max_steps = max_steps
        self._results: dict[tuple[int, int], _Problem | None] = {}
        self._unions: dict[int, _Branches] = {}

    def find_problem(self, reader: Any, writer: Any) -> _Problem | None:
        """Return the first incompatibility of two schemas; None: `reader` can read `writer`. Raises TooComplex."""
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
        read, written = _type_name(reader), _type_name(writer)
        if written == "union":
            return next(filter(None, (self.find_problem(reader, branch) for branch in writer.schemas)), None)
        if read == "union":
            return self._compare_with_reader_union(reader, writer)
        if read != written:
            if read in _PROMOTIONS.get(written, ()):
                return None
            return _Problem(f"{_description(writer)} cannot be read as {_description(reader)}")
        if read == "array":
            return self._compare_nested("items", reader.items, writer.items)
        if read == "map":
            return self._compare_nested("values", reader.values, writer.values)
        if read == "record":
            return self._compare_records(reader, writer)
        if read in _NAMED and not _is_named_as(reader, writer):
            return _Problem(f"{_description(writer)} cannot be read as {_description(reader)}: the names differ")
        if read == "fixed" and reader.size != writer.size:
            return _Problem(f"{_description(writer)} of {writer.size} bytes cannot be read with {reader.size} bytes")
        return None

    def _compare_with_reader_union(self, reader: Any, writer: Any) -> _Problem | None:
        written = _type_name(writer)
        branches = self._unions.get(id(reader))
        if branches is None:
            branches = self._unions[id(reader)] = _Branches.of(reader)
        named = branches.by_name.get((written, writer.fullname)) if written in _NAMED else None
        alike = branches.by_type.get(written, ())
        if named is not None:
            return self.find_problem(named, writer)
        if alike and written not in _NAMED:
            return self.find_problem(alike[0], writer)
        if written == "record" and any(self.find_problem(branch, writer) is None for branch in alike):
            return None
        if any(promoted in branches.by_type for promoted in _PROMOTIONS.get(written, ())):
            return None
        return _Problem(f"no branch of the union reads {_description(writer)}")

    def _compare_records(self, reader: Any, writer: Any) -> _Problem | None:
        fields = writer.fields_dict
        for field in reader.fields:
            names = (field.name, *_aliases(field))
            source = next((fields[name] for name in names if name in fields), None)
            if source is not None:
                if problem := self._compare_nested(field.name, field.type, source.type):
                    return problem
            elif not field.has_default:
                return _Problem("the field is not written, and has no default value", (field.name[:100],))
        return None

    def _compare_nested(self, name: str, reader: Any, writer: Any) -> _Problem | None:
        problem = self.find_problem(reader, writer)
        return None if problem is None else problem.within(name[:100])


def _type_name(schema: Any) -> str:
    return {"error": "record", "error_union": "union"}.get(schema.type, str(schema.type))


def _is_named_as(reader: Any, writer: Any) -> bool:
    return bool(reader.name == writer.name) or not {writer.fullname, writer.name}.isdisjoint(_aliases(reader))


def _aliases(item: Any) -> list[str]:
    aliases = item.props.get("aliases")
    return [alias for alias in aliases if isinstance(alias, str)] if isinstance(aliases, list) else []


def _description(schema: Any) -> str:
    kind = _type_name(schema)
    return f"{kind} {schema.fullname[:100]}" if kind in _NAMED else kind
