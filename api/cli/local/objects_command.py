"""`compactor topics objects`: the locations of a topic's raw ledgers, for other readers of Parquet.

A folder of the store also has objects of failed attempts, of other topics and of ledgers that were trimmed: only the
database knows which ones count. Parts of a compacted ledger are not listed: they hold superseded rows, which only a
reader of their manifest leaves out (docs/format.md).
"""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

import typer

from api.cli.kit.output import show
from api.cli.kit.shared_arguments import Output, OutputFormat, Topic
from api.cli.kit.stderr import counted, say
from api.cli.kit.terminal import print_line
from api.cli.local.opening import open_topic
from api.components import open_for_reading
from storage.ledger import names
from storage.model import LedgerRecord


def list_objects(context: typer.Context, topic: Topic, output: Output = OutputFormat.TABLE) -> None:
    """List the Parquet objects of a topic's raw ledgers.

    A line each, in the order of offsets: a path, or a URL. Messages that are not sealed yet are in no object.
    """
    with open_for_reading(context.obj) as environment:
        snapshot = open_topic(environment, topic).snapshot()
        store = environment.store.url
    documents = [
        {
            "object": object_location(store, ledger.rows.name),
            "ledger_id": ledger.ledger_id,
            "first_offset": ledger.first_offset,
            "last_offset": ledger.last_offset,
            "messages": ledger.messages,
            "bytes": ledger.rows.size,
            "offset_base": ledger.first_offset if has_relative_offsets(ledger) else 0,
        }
        for ledger in snapshot.ledgers
    ]
    if relative := sum(map(has_relative_offsets, snapshot.ledgers)):
        say(
            f"{counted(relative, 'object')} that Spark wrote: the columns offset and ledger_id count from 0 there; "
            "add offset_base, which `--output json` has, to offset"
        )
    start = snapshot.topic.start_offset
    if snapshot.ledgers and snapshot.ledgers[0].first_offset < start:
        say(f"A trim removed offsets below {start}: the first ledger still holds their rows")
    if snapshot.segments:
        unsealed = counted(len(snapshot.segments), "segment")
        say(f"{unsealed} of {topic} not sealed yet, in no object: `compactor topics roll TOPIC --seal` seals them")
    if output is OutputFormat.JSON:
        show(documents, output)
        return
    for document in documents:
        print_line(str(document["object"]))


def has_relative_offsets(ledger: LedgerRecord) -> bool:
    """Return whether the offsets of a ledger's rows count from 0 instead of its first offset, as in ledgers that Spark
    wrote."""
    parsed = names.parse(ledger.rows.name)
    return parsed is not None and parsed.is_of_task


def object_location(store_url: str, name: str) -> str:
    """Return the path of the object `name` in a local store, or its URL in another."""
    parts = urlsplit(store_url)
    base = unquote(parts.path) if parts.scheme == "file" else store_url
    return f"{base.rstrip('/')}/{name}"
