"""Whether an object store is the one that a database uses: asked before anything is written to it, or deleted there.

The object `store.uid` holds 32 hex digits, drawn when a store is first written to, and their CRC32C; the database holds
the digits, too. Without them a mistyped URL, or a fresh database before another one's store, would cost messages: rows
that name objects elsewhere, local segments removed, all objects of the other database collected as unknown.

    the database's uid   the store's uid   what it means                                   writing
    none                 none              neither was used, or both by an older version   binds the two, see below
    X                    X                 they belong together                            continues
    X                    none, or Y        the store is another place, or another's        refused
    none                 Y                 the database is another one, or lost            refused
    X, unconfirmed       none              the process that bound them was cut off         finishes it

Before the two are bound, the store must have an object that the database names; if it names none, the database must
know the topic of the store's first object, if there is one. `adopt` binds them on purpose.
`check` creates nothing and is for the beginning of a process; `require` is for writers and deleters, and binds.
Either costs one small GET a process. Readers do neither: a store that cannot be written to can be read.

May go wrong: WrongStore, ObjectDamaged, and any error of store and database.
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
class Adoption:
    """What binds a database to a store on purpose. `ours`, `theirs`: the uids before, of database and store; `some`: an
    object that the database names, and whether the store has it (`has_it`); None: it names none."""

    url: str
    ours: str | None
    theirs: str | None
    some: str | None
    has_it: bool

    @property
    def is_bound(self) -> bool:
        """Whether the two belong together already."""
        return self.ours is not None and self.ours == self.theirs


@dataclass(frozen=True)
class StoreIdentity:
    """The identity of one store, as one database knows it."""

    metadata: MetadataStore
    store: ObjectStore

    def check(self) -> None:
        """Raises WrongStore if the store is known to be another one. Creates nothing."""
        binding = self.metadata.store_binding
        if repr(self.store.location) in binding.verified:
            return
        # A process that binds the two writes the database's uid, then the store's, then confirms: in between, look in
        # the opposite order, or two processes that start at once refuse each other's store.
        theirs, ours = self._uid(), binding.find()
        if theirs is None and ours is not None and ours.confirmed:
            theirs = self._uid()
        if self._checked(ours, theirs) and ours is not None and ours.confirmed:
            binding.verified.add(repr(self.store.location))

    def require(self) -> None:
        """Raises WrongStore unless the store is the database's; binds the two if neither was used before."""
        self.check()
        binding = self.metadata.store_binding
        if repr(self.store.location) in binding.verified:
            return
        some = binding.some_object()
        if some is not None and not self._has(some):
            raise WrongStore(
                f"the object store {self.store.url} does not have the object {some}, which the database names",
                f"check the store's URL; or {_ADOPT}",
            )
        if some is None:
            self._refuse_unknown_topic()
        ours = binding.begin(self.store.url)
        self._put(ours.uid)
        if not self._checked(ours, self._uid()):
            raise Misconfigured(
                f"the object store {self.store.url} does not keep what is written to it", "use another one"
            )
        binding.bind(ours.uid, self.store.url)
        binding.verified.add(repr(self.store.location))

    def adoption(self) -> Adoption:
        """What `adopt` would bind. Creates nothing."""
        ours = self.metadata.store_binding.find()
        some = self.metadata.store_binding.some_object()
        return Adoption(
            self.store.url,
            None if ours is None else ours.uid,
            self._uid(),
            some,
            some is None or self._has(some),
        )

    def adopt(self, *, force: bool = False) -> Adoption:
        """Bind database and store, whatever they belonged to; returns them as they were before.

        Raises Misconfigured, unless forced, if the store does not have an object that the database names.
        """
        before = self.adoption()
        if before.is_bound:
            return before
        if not before.has_it and not force:
            raise Misconfigured(
                f"the object store {before.url} does not have the object {before.some}, which the database names",
                "move the objects there first, or force it: what the database names is lost then",
            )
        ours = self.metadata.store_binding.begin(before.url)
        if before.theirs is None:
            # A uid of its own: the store that this one was copied from is another one from now on.
            self._put(new_uid() if ours.confirmed else ours.uid)
        self.metadata.store_binding.bind(self._uid() or ours.uid, before.url)
        return before

    def _checked(self, ours: StoreBindingRecord | None, theirs: str | None) -> bool:
        """Whether the two belong together; False: they are to be bound. Raises WrongStore."""
        if ours is not None and theirs == ours.uid:
            return True
        if theirs is None and (ours is None or not ours.confirmed):
            return False
        if ours is None or not ours.confirmed:
            raise WrongStore(
                f"the object store {self.store.url} belongs to another database (its uid is {theirs}), and this one "
                f"({self.metadata.url}) has none yet",
                f"check the URLs of store and database, and use a store, or a prefix, for each database; or {_ADOPT}",
            )
        found = "has no uid" if theirs is None else f"is another one (its uid is {theirs})"
        raise WrongStore(
            f"the object store {self.store.url} {found}: this database ({self.metadata.url}) uses the store with the "
            f"uid {ours.uid}, which was at {ours.url}",
            f"check the store's URL; or {_ADOPT}",
        )

    def _refuse_unknown_topic(self) -> None:
        """Raises WrongStore if the store has objects, and the topic of the first is none of this database's."""
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

    def _uid(self) -> str | None:
        try:
            data = self.store.get(STORE_UID)
        except ObjectMissing:
            return None
        uid = data[:_UID_BYTES].decode("ascii", "replace")
        if data != _encoded(uid):
            raise ObjectDamaged(
                f"the object {STORE_UID} of the object store {self.store.url} holds {data[:50]!r}, which is no uid "
                "with its checksum",
                "restore it; or delete it and adopt the store: the database holds the uid (table store_bindings)",
            )
        return uid

    def _put(self, uid: str) -> None:
        with suppress(ObjectExists):  # another process was first: the next check finds out whose it is
            self.store.put(STORE_UID, _encoded(uid))

    def _has(self, name: str) -> bool:
        try:
            self.store.size(name)
        except ObjectMissing:
            return False
        return True


def _encoded(uid: str) -> bytes:
    """What the object holds."""
    data = uid.encode("ascii", "replace")
    return data + b" %08x\n" % crc32c(data)
