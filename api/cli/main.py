"""`compactor`: the commands, their help and their exit codes.

Data goes to stdout, messages to stderr. Heavy libraries (Spark, boto3, SQLAlchemy, Arrow) are imported inside the
command that uses them, so `compactor --help` imports none. An error is one line: the event, its object, the remedy.
`--debug` adds its traceback.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Annotated

import typer

from api.cli.kit import exit_codes
from api.cli.kit.program import add_group, create_program, run_program
from api.cli.kit.shared_arguments import VersionFlag
from api.cli.kit.stderr import say
from api.cli.local import (
    compact_command,
    compactions_commands,
    config_command,
    cursor_commands,
    export_command,
    gc_command,
    import_command,
    log_commands,
    mirror_commands,
    objects_command,
    policies_command,
    produce_command,
    query_command,
    read_command,
    service_commands,
    table_command,
    tokens_commands,
    topics_commands,
    verify_command,
)
from api.settings.settings import Settings
from api.settings.sources import unknown_variable_notes

_GROUPS = {
    "topics": "Topics: contents, policies, trim and roll.",
    "compactions": "Runs of compactions.",
    "log": "The log: segments and raw ledgers.",
    "store": "The object store.",
    "cursor": "Cursors of a topic.",
    "mirror": "Mirrors of Kafka's topics.",
    "db": "The metadata database.",
    "config": "Settings.",
    "tokens": "Tokens, and keys that sign them.",
}
_COMMANDS: Mapping[str, Callable[..., None]] = {
    "serve": service_commands.serve,
    "import": import_command.import_files,
    "export": export_command.export_topic,
    "compact-topic": compact_command.compact_topic,
    "produce": produce_command.produce_messages,
    "read": read_command.read_topic,
    "get": read_command.get_value,
    "query": query_command.query_topic,
    "gc": gc_command.collect_garbage,
    "verify": verify_command.verify_topic,
    "topics list": topics_commands.list_topics,
    "topics stats": topics_commands.show_stats,
    "topics objects": objects_command.list_objects,
    "topics table": table_command.show_table_location,
    "topics policies": policies_command.show_or_change_policies,
    "topics trim": topics_commands.trim_topic,
    "topics roll": log_commands.roll_topic,
    "topics create": topics_commands.create_topic,
    "topics delete": topics_commands.delete_topic,
    "topics release-lease": topics_commands.release_lease,
    "compactions list": compactions_commands.list_compactions,
    "compactions show": compactions_commands.show_compaction,
    "compactions cancel": compactions_commands.cancel_compaction,
    "log dump": log_commands.dump_log,
    "log seal": log_commands.seal_segments,
    "store check": service_commands.check_store,
    "store adopt": service_commands.adopt_store,
    "cursor create": cursor_commands.create_cursor,
    "cursor list": cursor_commands.list_cursors,
    "cursor show": cursor_commands.show_cursor,
    "cursor reset": cursor_commands.reset_cursor,
    "cursor delete": cursor_commands.delete_cursor,
    "mirror add": mirror_commands.add_mirror,
    "mirror list": mirror_commands.list_mirrors,
    "mirror show": mirror_commands.show_mirror,
    "mirror pause": mirror_commands.pause_mirror,
    "mirror resume": mirror_commands.resume_mirror,
    "mirror remove": mirror_commands.remove_mirror,
    "mirror run": mirror_commands.run_mirror,
    "db upgrade": service_commands.upgrade_database,
    "config show": config_command.show_settings,
    "tokens create": tokens_commands.create_token,
    "tokens create-secret-key": tokens_commands.create_secret_key,
    "tokens create-key-pair": tokens_commands.create_key_pair,
    "tokens create-jwks": tokens_commands.create_jwks,
    "tokens show": tokens_commands.show_token,
    "tokens validate": tokens_commands.validate_token,
}

app = create_program(
    "compactor",
    "Two-phase compaction of keyed logs: import, compact, read raw or compacted.",
    exit_codes.HELP,
)
_groups = {"": app} | {name: add_group(app, name, about) for name, about in _GROUPS.items()}
for _words, _command in _COMMANDS.items():
    _group, _, _name = _words.rpartition(" ")
    _groups[_group].command(_name)(_command)


@app.callback()
def read_global_options(
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
    compaction_engine: Annotated[
        str | None, typer.Option("--engine", help="auto, in-process or spark [COMPACTOR_COMPACTION_ENGINE]")
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: VersionFlag = False,
) -> None:
    context.obj = Settings.load(
        **{name: value for name, value in context.params.items() if name not in ("debug", "version")}
    )
    # The service logs them itself, and `config` shows them.
    notes = () if context.invoked_subcommand in ("serve", "config") else unknown_variable_notes(os.environ)
    for note in (*context.obj.notes, *notes):
        say(f"compactor: {note}")


def main() -> None:
    """Run `compactor`. Exits with a code of `exit_codes`."""
    run_program(app, "compactor", "the reported steps are complete, and no incomplete result is visible")


if __name__ == "__main__":
    main()
