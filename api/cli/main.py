"""`compactor`: the commands, their help and their exit codes.

Data goes to stdout, talk to stderr. Heavy libraries (Spark, boto3, SQLAlchemy, Arrow) are imported inside the command
that uses them: `compactor --help` needs none. An error is one line that says what happened, to what, and what to do;
`--debug` shows where it came from.
"""

from __future__ import annotations

from typing import Annotated

import typer

from api.cli.kit import exit_codes
from api.cli.kit.program import run
from api.cli.kit.stderr import say
from api.cli.local.compact_command import compact_topic
from api.cli.local.compactions_commands import cancel_compaction, list_compactions, show_compaction
from api.cli.local.config_command import show_settings
from api.cli.local.cursor_commands import (
    create_cursor,
    delete_cursor,
    list_cursors,
    reset_cursor,
    show_cursor,
)
from api.cli.local.gc_command import collect_garbage
from api.cli.local.get_command import get_value
from api.cli.local.import_command import import_files
from api.cli.local.log_commands import dump_log, roll_topic, seal_segments
from api.cli.local.policies_command import topic_policies
from api.cli.local.produce_command import produce_messages
from api.cli.local.read_command import read_topic
from api.cli.local.serve_command import serve
from api.cli.local.service_commands import adopt_store, check_store, upgrade_database
from api.cli.local.tokens_commands import (
    create_key_pair,
    create_secret_key,
    create_token,
    show_token,
    validate_token,
)
from api.cli.local.topic_commands import create_topic, delete_topic, release_lease
from api.cli.local.topics_commands import list_topics, show_stats
from api.cli.local.trim_command import trim_topic
from api.cli.local.verify_command import verify_topic
from api.settings.settings import Settings

GLOBAL_OPTIONS = ("--config", "--data", "--store", "--s3-endpoint", "--database", "--log", "--spark-master")
GLOBAL_FLAGS = ("--debug",)

app = typer.Typer(
    name="compactor",
    help="Two-phase compaction of keyed logs: import, compact, read raw or compacted.",
    epilog=exit_codes.HELP,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
topics = typer.Typer(help="Topics: contents, policies, trim and roll.", no_args_is_help=True, rich_markup_mode=None)
log = typer.Typer(help="The log: segments and raw ledgers.", no_args_is_help=True, rich_markup_mode=None)
store = typer.Typer(help="The object store.", no_args_is_help=True, rich_markup_mode=None)
compactions = typer.Typer(help="Runs of compactions.", no_args_is_help=True, rich_markup_mode=None)
cursor = typer.Typer(help="Cursors of a topic.", no_args_is_help=True, rich_markup_mode=None)
db = typer.Typer(help="The metadata database.", no_args_is_help=True, rich_markup_mode=None)
config = typer.Typer(help="Settings.", no_args_is_help=True, rich_markup_mode=None)
tokens = typer.Typer(help="Tokens, and keys that sign them.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(topics, name="topics")
app.add_typer(compactions, name="compactions")
app.add_typer(log, name="log")
app.add_typer(store, name="store")
app.add_typer(cursor, name="cursor")
app.add_typer(db, name="db")
app.add_typer(config, name="config")
app.add_typer(tokens, name="tokens")

app.command("serve")(serve)
app.command("import")(import_files)
app.command("compact-topic")(compact_topic)
app.command("produce")(produce_messages)
app.command("read")(read_topic)
app.command("get")(get_value)
app.command("gc")(collect_garbage)
app.command("verify")(verify_topic)
topics.command("list")(list_topics)
topics.command("stats")(show_stats)
topics.command("policies")(topic_policies)
topics.command("trim")(trim_topic)
topics.command("roll")(roll_topic)
topics.command("create")(create_topic)
topics.command("delete")(delete_topic)
topics.command("release-lease")(release_lease)
log.command("dump")(dump_log)
log.command("seal")(seal_segments)
compactions.command("list")(list_compactions)
compactions.command("show")(show_compaction)
compactions.command("cancel")(cancel_compaction)
store.command("check")(check_store)
store.command("adopt")(adopt_store)
cursor.command("create")(create_cursor)
cursor.command("list")(list_cursors)
cursor.command("show")(show_cursor)
cursor.command("reset")(reset_cursor)
cursor.command("delete")(delete_cursor)
db.command("upgrade")(upgrade_database)
config.command("show")(show_settings)
tokens.command("create")(create_token)
tokens.command("create-secret-key")(create_secret_key)
tokens.command("create-key-pair")(create_key_pair)
tokens.command("show")(show_token)
tokens.command("validate")(validate_token)


@app.callback()
def options(
    context: typer.Context,
    config: Annotated[
        str | None, typer.Option(help="File of settings: TOML, or .conf and .properties [COMPACTOR_CONFIG]")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Directory of the embedded store and database [COMPACTOR_DATA]")
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(help="Object store: file:///… or s3://bucket/prefix [COMPACTOR_STORE]"),
    ] = None,
    s3_endpoint: Annotated[
        str | None,
        typer.Option(help="Endpoint URL of an S3 server other than AWS [COMPACTOR_S3_ENDPOINT]"),
    ] = None,
    database: Annotated[str | None, typer.Option(help="Database URL [COMPACTOR_DATABASE]")] = None,
    log: Annotated[
        str | None, typer.Option(help="Directory of the unsealed segments, on a local disk [COMPACTOR_LOG]")
    ] = None,
    spark_master: Annotated[str | None, typer.Option(help="Spark master [COMPACTOR_SPARK_MASTER]")] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    context.obj = Settings.load(
        config=config,
        data=data,
        store=store,
        s3_endpoint=s3_endpoint,
        database=database,
        log=log,
        spark_master=spark_master,
    )
    for note in context.obj.notes:
        say(f"compactor: {note}")


def main() -> None:
    """The program. Exits with a code of `exit_codes`."""
    run(app, "compactor", GLOBAL_OPTIONS, GLOBAL_FLAGS, "what was reported is done, nothing half done is visible")


if __name__ == "__main__":
    main()
