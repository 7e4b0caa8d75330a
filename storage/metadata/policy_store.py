"""PolicyStore: policies that somebody has set, by scope. Reached as MetadataStore.policies.

Scopes: the broker, a namespace, a topic's life (its uid, so a topic made again begins without). What is set is
checked here and kept as JSON under the policy's own name; how a topic's policies are resolved is said in
storage/policies.py. Below them all are the broker's defaults, which the settings file of a process says and SQL never
holds; processes with different files see different ones. Nothing but the table of policies is written, so no policy
ever touches a cursor (A2).

Each method is one transaction, may be called again, and may raise Unavailable and Misconfigured. A policy of a name
that this version does not know is left alone and counts for nothing.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping

from sqlalchemy import Connection, RowMapping, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from storage import policies
from storage.errors import TopicNotFound
from storage.metadata import topics
from storage.metadata.engine import Database
from storage.metadata.records import TopicRecord
from storage.metadata.tables import policies as policies_table
from storage.metadata.tables import topics as topics_table
from storage.model import TopicName
from storage.policies import Origin, TopicPolicies

BROKER = "broker"
_NAMESPACE = "namespace:"
_TOPIC = "topic:"


def namespace_scope(namespace: str) -> str:
    """The scope of `tenant/namespace`. Raises InvalidInput."""
    tenant, local = topics.parse_namespace(namespace)
    TopicName(tenant, local, "any")  # which knows the characters that either may have
    return f"{_NAMESPACE}{tenant}/{local}"


def topic_scope(topic: TopicRecord) -> str:
    return f"{_TOPIC}{topic.uid}"


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
            return _remove(connection, scope, [known]) > 0

    def change(
        self, scopes: Collection[str], values: Mapping[str, object], removed: Collection[str] | None = ()
    ) -> None:
        """Set policies in each of these scopes, and let go of others, all or nothing; texts or JSON values, by name.

        `removed` None: all that the scope has. Raises InvalidInput for a name or value that is not allowed, or values
        that contradict each other or what a scope keeps; TopicNotFound if the topic of a scope is gone.
        """
        wanted = dict(policies.parse(name, value) for name, value in values.items())
        gone = None if removed is None else {policies.policy(name).name for name in removed}
        with self._database.write() as connection:
            for scope in sorted(scopes):
                _check_scope(connection, scope)
                _remove(connection, scope, gone)
                if wanted:
                    policies.check({**_of_scopes(connection, [scope])[scope], **wanted})
                for name, value in wanted.items():
                    _put(connection, scope, name, policies.shown(name, value))

    def of_scope(self, scope: str) -> dict[str, object]:
        """What is set in that scope, by name."""
        with self._database.read() as connection:
            return _of_scopes(connection, [scope])[scope]

    def effective(self, topic: TopicRecord) -> TopicPolicies:
        """The policies of the topic, as they are now."""
        return policies.effective(*self._settings(topic), self.broker_defaults)

    def effective_with_origins(self, topic: TopicRecord) -> tuple[TopicPolicies, dict[str, Origin]]:
        """The policies of the topic, and where each comes from, by name."""
        settings = (*self._settings(topic), self.broker_defaults)
        return policies.effective(*settings), policies.origins(*settings)

    def effective_of_scope(self, scope: str) -> tuple[TopicPolicies, dict[str, Origin]]:
        """What a topic has that sets nothing itself, in a namespace's scope or anywhere (BROKER); with origins."""
        with self._database.read() as connection:
            found = _of_scopes(connection, {BROKER, scope})
        namespace = {} if scope == BROKER else found[scope]
        settings = (found[BROKER], namespace, dict[str, object](), self.broker_defaults)
        return policies.effective(*settings), policies.origins(*settings)

    def resolver(self) -> PolicyResolver:
        """The policies of all topics, of one moment: one statement, however many topics are asked for then."""
        with self._database.read() as connection:
            stored = connection.execute(select(policies_table)).mappings().all()
        by_scope: dict[str, dict[str, object]] = {}
        for row in stored:
            by_scope.setdefault(row["scope"], {})[row["name"]] = row["value"]
        return PolicyResolver(by_scope, self.broker_defaults)

    def _settings(self, topic: TopicRecord) -> tuple[Mapping[str, object], Mapping[str, object], Mapping[str, object]]:
        """Of the broker, of the topic's namespace, of the topic; in one statement, so of one moment."""
        namespace = f"{_NAMESPACE}{topic.name.tenant}/{topic.name.namespace}"
        with self._database.read() as connection:
            found = _of_scopes(connection, [BROKER, namespace, topic_scope(topic)])
        return found[BROKER], found[namespace], found[topic_scope(topic)]


class PolicyResolver:
    """Resolves the policies of many topics from what was set at one moment. Remembers; for one thread."""

    def __init__(self, stored: Mapping[str, Mapping[str, object]], broker_defaults: Mapping[str, object]) -> None:
        """`stored`: by scope and name, as JSON has it."""
        self._stored = stored
        self._broker_defaults = broker_defaults
        self._known: dict[tuple[str, str], tuple[TopicPolicies, dict[str, Origin]]] = {}

    def effective(self, topic: TopicRecord) -> tuple[TopicPolicies, dict[str, Origin]]:
        """The policies of the topic, and where each comes from, by name."""
        namespace = f"{_NAMESPACE}{topic.name.tenant}/{topic.name.namespace}"
        own = self._stored.get(topic_scope(topic))
        alike = namespace, json.dumps(own, sort_keys=True) if own else ""
        if alike not in self._known:
            settings = (*map(self._of, (BROKER, namespace, topic_scope(topic))), self._broker_defaults)
            self._known[alike] = policies.effective(*settings), policies.origins(*settings)
        return self._known[alike]

    def _of(self, scope: str) -> dict[str, object]:
        stored = self._stored.get(scope, {})
        return {name: policies.parse(name, stored[name])[1] for name in policies.POLICIES if name in stored}


def _check_scope(connection: Connection, scope: str) -> None:
    """Scopes come from the functions above. Raises TopicNotFound."""
    if scope.startswith(_TOPIC):
        uid = scope.removeprefix(_TOPIC)
        there = select(topics_table.c.id).where(topics_table.c.uid == uid)
        # Until the end: a policy must not be set for a topic that is being deleted.
        if connection.execute(there.with_for_update(read=True, key_share=True)).first() is None:
            raise TopicNotFound(f"the topic with uid {uid} does not exist (any more)", "see `compactor topics list`")
    elif scope != BROKER and not scope.startswith(_NAMESPACE):
        raise AssertionError(f"{scope!r} is not a scope; make it with BROKER, namespace_scope or topic_scope")


def _of_scopes(connection: Connection, scopes: Collection[str]) -> dict[str, dict[str, object]]:
    """What is set, by scope and name, in the order of the policies' table."""
    statement = select(policies_table).where(policies_table.c.scope.in_(scopes))
    return {scope: {} for scope in scopes} | _parsed(connection.execute(statement).mappings())


def _parsed(rows: Iterable[RowMapping]) -> dict[str, dict[str, object]]:
    """By scope and name; of the scopes that have set something."""
    stored: dict[str, dict[str, object]] = {}
    for row in rows:
        stored.setdefault(row["scope"], {})[row["name"]] = row["value"]
    return {
        scope: {name: policies.parse(name, values[name])[1] for name in policies.POLICIES if name in values}
        for scope, values in stored.items()
    }


def _remove(connection: Connection, scope: str, names: Collection[str] | None) -> int:
    """How many there were. `names` None: all that are known here; one of another version is left alone."""
    these = policies_table.c.name.in_(policies.POLICIES if names is None else names)
    return connection.execute(delete(policies_table).where(policies_table.c.scope == scope, these)).rowcount


def _put(connection: Connection, scope: str, name: str, value: object) -> None:
    changed = update(policies_table).where(policies_table.c.scope == scope, policies_table.c.name == name)
    if connection.execute(changed.values(value=value)).rowcount:
        return
    try:
        with connection.begin_nested():
            connection.execute(insert(policies_table).values(scope=scope, name=name, value=value))
    except IntegrityError:
        # Somebody else set it between our look and our insert; the last one counts.
        connection.execute(changed.values(value=value))
