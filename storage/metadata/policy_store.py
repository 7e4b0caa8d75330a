"""PolicyStore: policies that users have set, by scope.

Scopes: the broker, a namespace, an incarnation of a topic (its uid, so a topic created again begins without). What is
set is checked here and kept as JSON under the policy's own name; how a topic's policies are resolved is in
storage/options/resolution.py. Below them all are the broker's defaults, which the settings file of a process holds and
SQL never does; processes with different files see different ones.

Whether compaction is enabled for a topic follows from all of them (PolicyResolution.compaction_enabled). The
transaction that creates a topic, or sets its own policies, creates its cursor `__compaction`, and a trim checks for it
(S9). What is set for a namespace or the broker concerns any number of topics, and creates none. No policy ever moves a
cursor (A2).

Each method is one transaction, may be called again, and may raise Unavailable and Misconfigured. A policy of a name
that this version does not know is left alone and counts for nothing. A stored value that this version cannot read is
UnreadableStoredValue: it stops nothing, and is named (`unreadable`).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from sqlalchemy import Connection, delete, select, update

from storage.errors import TopicNotFound
from storage.metadata import cursors, queries, topics
from storage.metadata.engine import Database
from storage.metadata.records import COMPACTION_CURSOR, TopicRecord
from storage.metadata.tables import policies as policies_table, topics as topics_table
from storage.model import TopicName
from storage.options import policies
from storage.options.policies import TopicPolicies, UnreadableStoredValue
from storage.options.resolution import PolicyResolution, resolve

BROKER = "broker"
_NAMESPACE = "namespace:"
_TOPIC = "topic:"
_NOTHING: Mapping[str, object] = MappingProxyType({})


def namespace_scope(namespace: str) -> str:
    """The scope of `tenant/namespace`. Raises InvalidInput."""
    tenant, local = topics.parse_namespace(namespace)
    TopicName(tenant, local, "any")  # which knows the characters that either may have
    return f"{_NAMESPACE}{tenant}/{local}"


def scope_around(name: TopicName) -> str:
    """The scope of a topic's namespace."""
    return f"{_NAMESPACE}{name.tenant}/{name.namespace}"


def topic_scope(topic: TopicRecord) -> str:
    return f"{_TOPIC}{topic.uid}"


@dataclass(frozen=True)
class UnreadablePolicy:
    """A stored value that this version cannot read. `scope`: in words, as `the broker` or `the namespace a/b`."""

    scope: str
    name: str
    stored: UnreadableStoredValue


class PolicyStore:
    """The policies' part of the metadata, over the database of a MetadataStore. Safe to share between threads."""

    def __init__(self, database: Database, broker_defaults: Mapping[str, object]) -> None:
        """`broker_defaults`: values by name, as `policies.parse` gives them."""
        self._database = database
        self.broker_defaults = broker_defaults

    def set(self, scope: str, name: str, value: object) -> tuple[str, object]:
        """Set a policy, from a text or a JSON value; its own name and value. Raises as `change`."""
        known, parsed = policies.parse(name, value)
        self.change([scope], {known: value})
        return known, parsed

    def remove(self, scope: str, name: str) -> bool:
        """Let the next wider scope count again; whether there was something to remove. Raises InvalidInput."""
        known = policies.policy(name).name
        with self._database.write() as connection:
            topic = _topics_of(connection, [scope]).get(scope)
            removed = _remove(connection, scope, [known])
            self._ensure_cursor(connection, topic)
            return removed > 0

    def change(
        self, scopes: Collection[str], values: Mapping[str, object], removed: Collection[str] | None = ()
    ) -> None:
        """Set policies in each of these scopes, and let go of others, all or nothing; texts or JSON values, by name.

        `removed` None: all that the scope has. Raises InvalidInput for a name or value that is not allowed, values that
        contradict each other or what a scope keeps, or a limit above the broker's; TopicNotFound if the topic of a
        scope is gone.
        """
        wanted = parsed(values)
        gone = None if removed is None else {policies.policy(name).name for name in removed}
        with self._database.write() as connection:
            found = _topics_of(connection, scopes)
            for scope in sorted(scopes):
                topic = found.get(scope)
                if topic is None and scope.startswith(_TOPIC):
                    uid = scope.removeprefix(_TOPIC)
                    raise TopicNotFound(
                        f"the topic with uid {uid} does not exist (any more)", "see `compactor topics list`"
                    )
                _remove(connection, scope, gone)
                put(connection, scope, wanted, self.broker_defaults)
                self._ensure_cursor(connection, topic)

    def of_scope(self, scope: str) -> dict[str, object]:
        """What is set in that scope, by name, as far as it can be read."""
        return {
            name: value for name, value in self.settings(scope).items() if not isinstance(value, UnreadableStoredValue)
        }

    def settings(self, scope: str) -> dict[str, object]:
        """What is set in that scope, by name; also UnreadableStoredValue."""
        with self._database.read() as connection:
            return of_scopes(connection, [scope])[scope]

    def effective(self, topic: TopicRecord) -> TopicPolicies:
        """The policies of the topic, as they are now."""
        return self.resolved(topic).policies

    def resolved(self, topic: TopicRecord) -> PolicyResolution:
        """The policies of the topic, and where each comes from, as they are now."""
        with self._database.read() as connection:
            return resolved(connection, topic, self.broker_defaults)

    def resolved_around(self, scope: str) -> PolicyResolution:
        """What a topic has that sets nothing itself, in a namespace's scope or anywhere (BROKER)."""
        with self._database.read() as connection:
            return resolved_around(connection, scope, self.broker_defaults)

    def least(self, name: str) -> int:
        """The smallest value of a policy, a number, that any topic may have. Raises InvalidInput for its name."""
        known = policies.policy(name)
        with self._database.read() as connection:
            stored = connection.execute(select(policies_table.c.value).where(policies_table.c.name == known.name))
            values = [*stored.scalars(), self.broker_defaults.get(known.name, known.default)]
        return min(value for value in values if isinstance(value, int))

    def resolver(self) -> PolicyResolver:
        """The policies of all topics, of one moment: one statement, however many topics are asked for then."""
        with self._database.read() as connection:
            return PolicyResolver(_stored(connection), self.broker_defaults)

    def unreadable(self) -> list[UnreadablePolicy]:
        """All stored values that this version cannot read, of what there is, in order."""
        with self._database.snapshot() as connection:
            found = [
                (scope, name, value)
                for scope, stored in sorted(_stored(connection).items())
                for name, value in values_of(stored).items()
                if isinstance(value, UnreadableStoredValue)
            ]
            words = {scope: _in_words(connection, scope) for scope, _, _ in found}
        return [UnreadablePolicy(words[scope], name, value) for scope, name, value in found if words[scope]]

    def _ensure_cursor(self, connection: Connection, topic: TopicRecord | None) -> None:
        if topic is not None:
            ensure_compaction_cursor(connection, topic, self.broker_defaults)


class PolicyResolver:
    """Resolves the policies of many topics from what was set at one moment. Remembers; for one thread."""

    def __init__(self, stored: Mapping[str, Mapping[str, object]], broker_defaults: Mapping[str, object]) -> None:
        """`stored`: by scope and name, as JSON has it."""
        self._stored = stored
        self._broker_defaults = broker_defaults
        self._known: dict[tuple[str, str], PolicyResolution] = {}

    def resolved(self, topic: TopicRecord) -> PolicyResolution:
        """The policies of the topic, and where each comes from."""
        scopes = BROKER, scope_around(topic.name), topic_scope(topic)
        own = self._stored.get(topic_scope(topic))
        alike = scope_around(topic.name), json.dumps(own, sort_keys=True) if own else ""
        if alike not in self._known:
            broker, around, topics_own = (values_of(self._stored.get(scope, {})) for scope in scopes)
            self._known[alike] = resolve(broker, around, topics_own, self._broker_defaults)
        return self._known[alike]


def parsed(values: Mapping[str, object]) -> dict[str, object]:
    """Values by the policies' own names, from texts or JSON values by name. Raises InvalidInput."""
    return dict(policies.parse(name, value) for name, value in values.items())


def put(connection: Connection, scope: str, values: Mapping[str, object], defaults: Mapping[str, object]) -> None:
    """Set policies in a scope; `values` as `parsed` gives them. Raises InvalidInput if they contradict each other or
    what the scope keeps, or exceed a limit of the broker. `defaults`: the broker's, by name."""
    if values:
        policies.check({**of_scopes(connection, [scope])[scope], **values})
    if values and scope != BROKER:
        policies.check_below_broker(values, resolved_around(connection, BROKER, defaults).policies)
    for name, value in values.items():
        _put(connection, scope, name, policies.shown(name, value))


def of_scopes(connection: Connection, scopes: Collection[str]) -> dict[str, dict[str, object]]:
    """What is set, by scope and name, in the order of the policies' table; also UnreadableStoredValue."""
    return {scope: values_of(found) for scope, found in _stored(connection, scopes).items()}


def values_of(stored: Mapping[str, object]) -> dict[str, object]:
    """Values by name, or UnreadableStoredValue, from those of one scope as JSON has them."""
    return {name: policies.read(name, stored[name]) for name in policies.POLICIES if name in stored}


def resolved(connection: Connection, topic: TopicRecord, defaults: Mapping[str, object]) -> PolicyResolution:
    """The policies of a topic, from what is set at one moment. `defaults`: the broker's, by name."""
    scopes = BROKER, scope_around(topic.name), topic_scope(topic)
    found = of_scopes(connection, scopes)
    broker, around, own = (found[scope] for scope in scopes)
    return resolve(broker, around, own, defaults)


def resolved_around(connection: Connection, scope: str, defaults: Mapping[str, object]) -> PolicyResolution:
    """The policies of a topic that sets nothing itself, in a namespace's scope or anywhere (BROKER)."""
    found = of_scopes(connection, {BROKER, scope})
    return resolve(found[BROKER], _NOTHING if scope == BROKER else found[scope], _NOTHING, defaults)


def ensure_compaction_cursor(connection: Connection, topic: TopicRecord, defaults: Mapping[str, object]) -> None:
    """A topic for which compaction is enabled has its cursor `__compaction` (S9). Raises TopicNotFound."""
    if cursors.find(connection, topic.id, COMPACTION_CURSOR) is not None:
        return
    if resolved(connection, topic, defaults).compaction_enabled:
        cursors.ensure(connection, topic.id, COMPACTION_CURSOR)


def _topics_of(connection: Connection, scopes: Collection[str]) -> dict[str, TopicRecord]:
    """By scope, the topics whose lives those scopes are, locked; a scope of no topic, or of one that is gone, is not
    there."""
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
    ids = connection.execute(select(topics_table.c.id).where(topics_table.c.uid.in_(uids))).scalars().all()
    # By id and before all else, in the order of locks of topics.py: `ensure_compaction_cursor` locks them, too.
    return {topic_scope(topic): topic for topic in topics.all_locked(connection, ids)}


def _stored(connection: Connection, scopes: Collection[str] | None = None) -> dict[str, dict[str, object]]:
    """What is set, by scope and name, as JSON has it. `scopes` None: all that have something."""
    these = select(policies_table)
    if scopes is not None:
        these = these.where(policies_table.c.scope.in_(scopes))
    stored: dict[str, dict[str, object]] = {scope: {} for scope in scopes or ()}
    for row in connection.execute(these).mappings():
        stored.setdefault(row["scope"], {})[row["name"]] = row["value"]
    return stored


def _in_words(connection: Connection, scope: str) -> str:
    """A scope for people; empty: its topic is gone."""
    if scope.startswith(_TOPIC):
        named = select(topics_table.c.name).where(topics_table.c.uid == scope.removeprefix(_TOPIC))
        name = connection.execute(named).scalar_one_or_none()
        return "" if name is None else f"the topic {name}"
    return f"the namespace {scope.removeprefix(_NAMESPACE)}" if scope.startswith(_NAMESPACE) else "the broker"


def _remove(connection: Connection, scope: str, names: Collection[str] | None) -> int:
    """How many there were. `names` None: all that are known here; one of another version is left alone."""
    these = policies_table.c.name.in_(policies.POLICIES if names is None else names)
    return connection.execute(delete(policies_table).where(policies_table.c.scope == scope, these)).rowcount


def _put(connection: Connection, scope: str, name: str, value: object) -> None:
    changed = update(policies_table).where(policies_table.c.scope == scope, policies_table.c.name == name)
    if connection.execute(changed.values(value=value)).rowcount:
        return
    if not queries.insert_new(connection, policies_table, scope=scope, name=name, value=value):
        # Another caller set it between the update and the insert; the last one counts.
        connection.execute(changed.values(value=value))
