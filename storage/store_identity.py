"""Identity of an object store: the check, before any write or deletion, that the store is the database's own.

The object `store.uid` holds 32 random hex digits, written with the first write to a store, and their CRC32C; the
database holds the digits, too. Without them a mistyped URL, or a fresh database with the store of another one, would
lose messages: rows would name objects of another store, local segments would be removed, and all objects of the other
database would be collected as garbage.

    the database's uid   the store's uid   meaning                                         a write
    none                 none              neither was used, or both by an older version   binds the two, see below
    X                    X                 they belong together                            continues
    X                    none, or Y        it is another store                             is refused
    none                 Y                 it is another database, or its rows are lost    is refused
    X, unconfirmed       none              the process that bound them was cut off         finishes the binding

Before the two are bound, the store must have an object that the database names; if it names none, the database must
know the topic of the store's first object, if there is one. `adopt` binds them on purpose. `check` creates nothing and
is for the beginning of a process; `check_or_bind` is for writers and deleters, and binds. Each costs one small GET per
process, with a local folder each time: its disk may have been unmounted since, and an empty folder is left. Readers
call neither, so a read-only store can be read.

Errors: WrongStore, ObjectDamaged, and any error of store and database.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from storage.checksums import crc32c
from storage.errors import Misconfigured, ObjectDamaged, ObjectExists, ObjectMissing, WrongStore
from storage.ledger.names import STORE_UID, TOPICS
from storage.metadata.store import MetadataStore
from storage.metadata.store_binding import StoreBindingRecord, new_uid
from storage.objects.interface import ObjectStore

_UID_BYTES = 32
_ADOPT = "adopt the store if it is meant to be this database's, after its objects were moved for example"


@dataclass(frozen=True)
class BindingState:
    """The state of a database and a store before they are bound on purpose.

    `url`: of the store. `database_uid`, `store_uid`: the uids that they hold; None: none. `known_object`: an object
    that the database names; None: it names none. `has_object`: the store has that object, or there is none.
    """

    url: str
    database_uid: str | None
    store_uid: str | None
    known_object: str | None
    has_object: bool

    @property
    def is_bound(self) -> bool:
        """True if database and store hold the same uid."""
        return self.database_uid is not None and self.database_uid == self.store_uid


@dataclass(frozen=True)
class StoreIdentity:
    """The identity of the object store `store`: checks and binds it to the database `metadata`."""

    metadata: MetadataStore
    store: ObjectStore

    def check(self) -> None:
        """Raise WrongStore if the store is known to be another one. Creates nothing.

        ObjectDamaged: its uid is unreadable.
        """
        binding = self.metadata.store_binding
        if not self.store.can_vanish and repr(self.store.location) in binding.verified_locations:
            return
        # A process that binds the two writes the database's uid, then the store's, then confirms. This reads in the
        # opposite order, or two processes that start at once would refuse each other's store.
        uid, record = self._read_store_uid(), binding.find()
        if uid is None and record is not None and record.confirmed:
            uid = self._read_store_uid()
        self._refuse_other_store(record, uid)
        if record is not None and record.confirmed:
            binding.verified_locations.add(repr(self.store.location))

    def check_or_bind(self) -> None:
        """Raise WrongStore unless the store is the database's; bind the two if neither was used before.

        Raises Misconfigured for a store that does not keep what is written. Later calls in this process cost nothing,
        or with a local folder one small GET, as those of `check`.
        """
        self.check()
        binding = self.metadata.store_binding
        if repr(self.store.location) in binding.verified_locations:
            return
        known_object = binding.expected_object()
        if known_object is not None and not self._has_object(known_object):
            raise WrongStore(
                f"the object store {self.store.url} does not have the object {known_object}, which the database names",
                f"check the store's URL; or {_ADOPT}",
            )
        if known_object is None:
            self._refuse_unknown_topic()
        record = binding.ensure(self.store.url)
        self._write_store_uid(record.uid)
        written_uid = self._read_store_uid()
        self._refuse_other_store(record, written_uid)
        if written_uid is None:
            raise Misconfigured(
                f"the object store {self.store.url} does not keep what is written to it", "use another one"
            )
        binding.confirm(record.uid, self.store.url)
        binding.verified_locations.add(repr(self.store.location))

    def binding_state(self) -> BindingState:
        """Return the uids of database and store, and whether the store has the database's objects. Creates nothing."""
        record = self.metadata.store_binding.find()
        known_object = self.metadata.store_binding.expected_object()
        has_object = known_object is None or self._has_object(known_object)
        database_uid = None if record is None else record.uid
        return BindingState(self.store.url, database_uid, self._read_store_uid(), known_object, has_object)

    def adopt(self, *, force: bool = False) -> BindingState:
        """Bind database and store, even if they are bound to others. Returns the state before. Idempotent.

        Raises Misconfigured, unless `force`, if the store does not have an object that the database names.
        """
        before = self.binding_state()
        if before.is_bound:
            return before
        if not before.has_object and not force:
            raise Misconfigured(
                f"the object store {before.url} does not have the object {before.known_object}, which the database "
                "names",
                "move the objects there first, or force it: the objects that the database names are lost then",
            )
        record = self.metadata.store_binding.ensure(before.url)
        if before.store_uid is None:
            # The store gets a uid of its own: from now on it differs from the store that it was copied from.
            self._write_store_uid(new_uid() if record.confirmed else record.uid)
        self.metadata.store_binding.confirm(self._read_store_uid() or record.uid, before.url)
        return before

    def _refuse_other_store(self, record: StoreBindingRecord | None, uid: str | None) -> None:
        """Raise WrongStore unless the store's uid is the database's, or the two can be bound: the store has no uid."""
        if record is not None and uid == record.uid:
            return
        if uid is None and (record is None or not record.confirmed):
            return
        if record is None or not record.confirmed:
            raise WrongStore(
                f"the object store {self.store.url} belongs to another database (its uid is {uid}), and this one "
                f"({self.metadata.url}) has none yet",
                f"check the URLs of store and database, and use a store, or a prefix, for each database; or {_ADOPT}",
            )
        state = "has no uid" if uid is None else f"is another one (its uid is {uid})"
        where = "was there" if record.url == self.store.url else f"was at {record.url}"
        mounted = " and that its disk is mounted" if self.store.can_vanish else ""
        raise WrongStore(
            f"the object store {self.store.url} {state}: this database ({self.metadata.url}) uses the store with the "
            f"uid {record.uid}, which {where}",
            f"check the store's URL{mounted}; or {_ADOPT}",
        )

    def _refuse_unknown_topic(self) -> None:
        """Raise WrongStore if the store has objects, and the topic of the first is none of this database's."""
        first = next(iter(self.store.list(TOPICS)), None)
        if first is None:
            return
        uid = first.name.split("/")[1]
        if not self.metadata.store_binding.knows_topic(uid) and self.metadata.tenancy.deleted_topic(uid) is None:
            raise WrongStore(
                f"the object store {self.store.url} has objects of a topic ({uid}) that this database "
                f"({self.metadata.url}) does not know, and names no object itself",
                f"check the URLs of store and database, and use a store, or a prefix, for each database; or {_ADOPT}",
            )

    def _read_store_uid(self) -> str | None:
        try:
            data = self.store.get(STORE_UID)
        except ObjectMissing:
            return None
        uid = data[:_UID_BYTES].decode("ascii", "replace")
        if data != _encode_uid(uid):
            raise ObjectDamaged(
                f"the object {STORE_UID} of the object store {self.store.url} holds {data[:50]!r}, which is no uid "
                "with its checksum",
                "restore it; or delete it and adopt the store: the database holds the uid (table store_bindings)",
            )
        return uid

    def _write_store_uid(self, uid: str) -> None:
        with suppress(ObjectExists):  # another process was first: the next check compares its uid
            self.store.put(STORE_UID, _encode_uid(uid))

    def _has_object(self, name: str) -> bool:
        try:
            self.store.size(name)
        except ObjectMissing:
            return False
        return True


def _encode_uid(uid: str) -> bytes:
    """Return the content of the object `store.uid`: the uid and its checksum."""
    data = uid.encode("ascii", "replace")
    return data + b" %08x\n" % crc32c(data)
