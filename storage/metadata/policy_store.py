"""Policies that users have set, by scope.

Scopes: the broker, a namespace, an incarnation of a topic (its uid, so a topic created again begins without). A value
that is set is checked here and kept as JSON under the policy's own name; storage/options/resolution.py resolves the
policies of a topic. Below all scopes are the broker's defaults, which the settings file of a process holds and SQL
never does; processes with different files see different ones.

Whether compaction is enabled for a topic follows from all of them (PolicyResolution.compaction_enabled). The
transaction that creates a topic, or sets its own policies, creates its cursor `__compaction`, and a trim checks for it
(S9). Policies of a namespace or the broker concern any number of topics, and create no cursor. No policy ever moves a
cursor (A2).

Each function may be called again. A policy of a name that this version does not know is left alone and counts for
nothing. A stored value that this version cannot read is UnreadableStoredValue: it stops nothing, and
`unreadable_policies` lists it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from sqlalchemy import Connection, delete, select, true

from storage.advice import Advice, AdviceKind
from storage.errors import TopicNotFound
from storage.metadata import cursors, queries, topic_work, topics
from storage.metadata.records import COMPACTION_CURSOR, TopicRecord
from storage.metadata.tables import policies as policies_table, topics as topics_table
from storage.metadata.transactions import Context
from storage.model import DOMAIN, TopicName
from storage.options import policies
from storage.options.policies import TopicPolicies, UnreadableStoredValue
from storage.options.resolution import PolicyResolution, resolve

BROKER = "broker"
_NAMESPACE = "namespace:"
_TOPIC = "topic:"
_NOTHING: Mapping[str, object] = MappingProxyType({})


def namespace_scope(namespace: str) -> str:
    """Return the scope of `tenant/namespace`. Raises InvalidInput."""
    tenant, local = topics.parse_namespace(namespace)
    TopicName(tenant, local, "any")  # checks the characters of both
    return f"{_NAMESPACE}{tenant}/{local}"


def enclosing_scope(name: TopicName) -> str:
    """Return the scope of the namespace of a topic's name."""
    return f"{_NAMESPACE}{name.tenant}/{name.namespace}"


def topic_scope(topic: TopicRecord) -> str:
    """Return the scope of a topic's own policies, in this incarnation."""
    return f"{_TOPIC}{topic.uid}"


@dataclass(frozen=True)
class UnreadablePolicy:
    """A stored value that this version cannot read. `scope`: as text, `the broker` or `the namespace a/b`."""

    scope: str
    name: str
    stored: UnreadableStoredValue


def change(
    connection: Connection,
    context: Context,
    scopes: Collection[str],
    values: Mapping[str, object],
    removed: Collection[str] | None = (),
) -> None:
    """Set policies in each of these scopes, and remove others, all or nothing.

    `values` as `parse_values` returns them; `removed` by the policies' own names, None: all that a scope has. Raises
    InvalidInput for values that contradict each other or the policies that stay in a scope, or a limit above the
    broker's; TopicNotFound if the topic of a scope was deleted.
    """
    topics_by_scope = _lock_topics_of_scopes(connection, scopes)
    for scope in sorted(scopes):
        if scope.startswith(_TOPIC) and scope not in topics_by_scope:
            uid = scope.removeprefix(_TOPIC)
            raise TopicNotFound(f"the topic with uid {uid} does not exist (any more)", Advice(AdviceKind.LIST_TOPICS))
    _queue_compaction_checks(connection, scopes, topics_by_scope.values())
    _delete_values(connection, scopes, removed)
    put(connection, context, scopes, values)
    ensure_compaction_cursors(connection, context, topics_by_scope.values())


def of_scope(connection: Connection, scope: str) -> dict[str, object]:
    """Return the policies that are set in a scope, by name.

    A value that this version cannot read is an UnreadableStoredValue.
    """
    return of_scopes(connection, [scope])[scope]


def readable_of_scope(connection: Connection, scope: str) -> dict[str, object]:
    """Return the policies that are set in a scope, by name, without those that this version cannot read."""
    return readable_of_scopes(connection, [scope])[scope]


def readable_of_scopes(connection: Connection, scopes: Collection[str]) -> dict[str, dict[str, object]]:
    """Return the policies that are set in each of the scopes and that this version can read, by scope and name."""
    return {
        scope: {name: value for name, value in values.items() if not isinstance(value, UnreadableStoredValue)}
        for scope, values in of_scopes(connection, scopes).items()
    }


def effective(connection: Connection, context: Context, topic: TopicRecord) -> TopicPolicies:
    """Return the values of the topic's policies as they are now, from all scopes."""
    return resolve_policies(connection, context, topic).policies


def resolve_policies(connection: Connection, context: Context, topic: TopicRecord) -> PolicyResolution:
    """Return the topic's policies as they are now, from all scopes, with the origin of each."""
    stored = _stored_values(connection, [BROKER, enclosing_scope(topic.name), topic_scope(topic)])
    return PolicyResolver(stored, context.broker_defaults).resolve(topic)


def policies_inherited_from(connection: Connection, context: Context, scope: str) -> PolicyResolution:
    """Return the policies that a topic without policies of its own inherits from `scope` and the scopes above it.

    `scope`: of its namespace; BROKER: any namespace without policies.
    """
    by_scope = of_scopes(connection, {BROKER, scope})
    around = _NOTHING if scope == BROKER else by_scope[scope]
    return resolve(by_scope[BROKER], around, _NOTHING, context.broker_defaults)


def smallest_value(connection: Connection, context: Context, name: str) -> int:
    """Return the smallest value, a number, that a policy has in any scope or by default.

    Raises InvalidInput for an unknown name.
    """
    known = policies.policy(name)
    stored = connection.execute(select(policies_table.c.value).where(policies_table.c.name == known.name))
    values = [*stored.scalars(), context.broker_defaults.get(known.name, known.default)]
    return min(value for value in values if isinstance(value, int))


def resolver(connection: Connection, context: Context) -> PolicyResolver:
    """Return a resolver of the policies of all topics, of one moment. It executes no further statement."""
    return PolicyResolver(_stored_values(connection), context.broker_defaults)


def resolver_of(connection: Connection, context: Context, records: Collection[TopicRecord]) -> PolicyResolver:
    """Return a resolver of the policies of these topics, of one moment. It executes no further statement."""
    scopes = {scope for topic in records for scope in (enclosing_scope(topic.name), topic_scope(topic))}
    return PolicyResolver(_stored_values(connection, {BROKER, *scopes}), context.broker_defaults)


def unreadable_policies(connection: Connection) -> list[UnreadablePolicy]:
    """Return all stored values that this version cannot read, of scopes that exist, in order."""
    values = [
        (scope, name, value)
        for scope, stored in sorted(_stored_values(connection).items())
        for name, value in decode_stored_values(stored).items()
        if isinstance(value, UnreadableStoredValue)
    ]
    words = {scope: _scope_in_words(connection, scope) for scope, _, _ in values}
    return [UnreadablePolicy(words[scope], name, value) for scope, name, value in values if words[scope]]


class PolicyResolver:
    """A resolver of the policies of many topics, as they were set at one moment. It caches; for one thread."""

    def __init__(self, stored: Mapping[str, Mapping[str, object]], broker_defaults: Mapping[str, object]) -> None:
        """Keep the values. `stored`: JSON values by scope and name."""
        self._stored_values = stored
        self._broker_defaults = broker_defaults
        self._known: dict[tuple[str, str], PolicyResolution] = {}

    def resolve(self, topic: TopicRecord) -> PolicyResolution:
        """Return the policies of the topic with the origin of each."""
        around_scope = enclosing_scope(topic.name)
        own = self._stored_values.get(topic_scope(topic), {})
        key = around_scope, json.dumps(own, sort_keys=True) if own else ""
        if key not in self._known:
            stored = (self._stored_values.get(BROKER, {}), self._stored_values.get(around_scope, {}), own)
            broker, around, topics_own = map(decode_stored_values, stored)
            self._known[key] = resolve(broker, around, topics_own, self._broker_defaults)
        return self._known[key]


def parse_values(values: Mapping[str, object]) -> dict[str, object]:
    """Return the parsed values of policies, by their own names. `values`: texts or JSON values, by name or alias.

    Raises InvalidInput for an unknown name or a value that is not allowed.
    """
    return dict(policies.parse(name, value) for name, value in values.items())


def put(connection: Connection, context: Context, scopes: Collection[str], values: Mapping[str, object]) -> None:
    """Set policies in each of these scopes; `values` as `parse_values` returns them.

    Raises InvalidInput if they contradict each other or the other policies of a scope, or exceed a limit of the broker.
    """
    if not values or not scopes:
        return
    for stored in of_scopes(connection, scopes).values():
        policies.check_consistent({**stored, **values})
    stored_values = {name: policies.to_json(name, value) for name, value in values.items()}
    rows = [{"scope": scope, "name": name, "value": value} for scope in scopes for name, value in stored_values.items()]
    queries.put(connection, policies_table, *rows)
    if any(scope != BROKER for scope in scopes):
        policies.check_below_broker(values, policies_inherited_from(connection, context, BROKER).policies)


def of_scopes(connection: Connection, scopes: Collection[str]) -> dict[str, dict[str, object]]:
    """Return the policies that are set in scopes, by scope and name, in the order of the policies' table.

    A value that this version cannot read is an UnreadableStoredValue. A scope without policies is empty.
    """
    return {scope: decode_stored_values(stored) for scope, stored in _stored_values(connection, scopes).items()}


def decode_stored_values(stored: Mapping[str, object]) -> dict[str, object]:
    """Return the values of policies, by name, from stored JSON values.

    A value that this version cannot read is an UnreadableStoredValue.
    """
    return {name: policies.decode_stored(name, stored[name]) for name in policies.POLICIES if name in stored}


def ensure_compaction_cursors(connection: Connection, context: Context, records: Collection[TopicRecord]) -> None:
    """Create the cursors `__compaction` of those of the topics for which compaction is enabled (S9). Idempotent."""
    resolver = resolver_of(connection, context, records)
    enabled = [topic.id for topic in records if resolver.resolve(topic).compaction_enabled]
    cursors.ensure_all(connection, enabled, COMPACTION_CURSOR)


def _lock_topics_of_scopes(connection: Connection, scopes: Collection[str]) -> dict[str, TopicRecord]:
    """Lock the topics that are scopes, and return them by scope; a topic that was deleted is left out."""
    uids = []
    for scope in scopes:
        if scope.startswith(_TOPIC):
            uids.append(scope.removeprefix(_TOPIC))
        else:
            assert scope == BROKER or scope.startswith(_NAMESPACE), (
                f"{scope!r} is not a scope; make it with BROKER, namespace_scope or topic_scope"
            )
    if not uids:
        return {}
    ids = [
        topic_id
        for batch in queries.batches(uids)
        for topic_id in connection.execute(select(topics_table.c.id).where(topics_table.c.uid.in_(batch))).scalars()
    ]
    # By id and before all else, in the order of locks of topics.py: `ensure_compaction_cursors` locks them, too.
    return {topic_scope(topic): topic for topic in topics.lock_all(connection, ids)}


def _queue_compaction_checks(
    connection: Connection, scopes: Collection[str], topics_of_scopes: Collection[TopicRecord]
) -> None:
    """Queue the topics of scopes for a check whether compaction is due, since their policies change.

    `topics_of_scopes`: the topics that are scopes themselves.
    """
    topic_work.mark(connection, topic_work.WorkKind.COMPACT, [topic.id for topic in topics_of_scopes])
    if BROKER in scopes:
        topic_work.mark_where(connection, topic_work.WorkKind.COMPACT, true())
        return
    for scope in sorted(scopes):
        if scope.startswith(_NAMESPACE):
            inside = topics_table.c.name.startswith(
                f"{DOMAIN}://{scope.removeprefix(_NAMESPACE)}/", autoescape=True
            )  # SQLite's LIKE folds case: a mark too many does no harm
            topic_work.mark_where(connection, topic_work.WorkKind.COMPACT, inside)


def _stored_values(connection: Connection, scopes: Collection[str] | None = None) -> dict[str, dict[str, object]]:
    """Return the stored JSON values by scope and name. `scopes` None: all scopes that have values."""
    everything = select(policies_table)
    statements = [everything]
    if scopes is not None:
        statements = [everything.where(policies_table.c.scope.in_(batch)) for batch in queries.batches(scopes)]
    stored: dict[str, dict[str, object]] = {scope: {} for scope in scopes or ()}
    for statement in statements:
        for row in connection.execute(statement).mappings():
            stored.setdefault(row["scope"], {})[row["name"]] = row["value"]
    return stored


def _scope_in_words(connection: Connection, scope: str) -> str:
    """Return a scope as text, `the broker` or `the namespace a/b`; empty: the scope's topic was deleted."""
    if scope.startswith(_TOPIC):
        named = select(topics_table.c.name).where(topics_table.c.uid == scope.removeprefix(_TOPIC))
        name = connection.execute(named).scalar_one_or_none()
        return "" if name is None else f"the topic {name}"
    return f"the namespace {scope.removeprefix(_NAMESPACE)}" if scope.startswith(_NAMESPACE) else "the broker"


def _delete_values(connection: Connection, scopes: Collection[str], names: Collection[str] | None) -> None:
    """Delete the policies `names` in scopes. `names` None: all policies that this version knows."""
    named = policies_table.c.name.in_(policies.POLICIES if names is None else names)
    for batch in queries.batches(sorted(scopes)):
        connection.execute(delete(policies_table).where(policies_table.c.scope.in_(batch), named))
