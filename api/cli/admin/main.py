"""`compactor-admin`: the commands, their help and the options that all of them have.

Its verbs are those of Pulsar's `pulsar-admin`; what Pulsar has not (runs, policies, verify, …) stands beside them.
"""

from __future__ import annotations

from typing import Annotated

import typer

from api.cli.admin import compaction_commands as compaction
from api.cli.admin import compactions_commands as runs
from api.cli.admin import exit_codes, policies_commands
from api.cli.admin import maintenance_commands as upkeep
from api.cli.admin import message_commands as messages
from api.cli.admin import subscription_commands as subscriptions
from api.cli.admin import tenancy_commands as tenancy
from api.cli.admin import topics_commands as topic
from api.cli.admin.session import OutputName, Session
from api.cli.kit.program import run

NAME = "compactor-admin"
GLOBAL_OPTIONS = ("--admin-url", "--token", "--token-file", "--ca-cert", "--config", "--timeout", "--output")
GLOBAL_FLAGS = ("--debug",)


def _group(name: str, about: str) -> typer.Typer:
    group = typer.Typer(help=about, no_args_is_help=True, rich_markup_mode=None)
    app.add_typer(group, name=name)
    return group


app = typer.Typer(
    name=NAME,
    help="Administer a running compactor service, with the verbs of pulsar-admin.",
    epilog=exit_codes.HELP,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
tenants = _group("tenants", "Tenants.")
namespaces = _group("namespaces", "Namespaces of a tenant.")
topics = _group("topics", "Topics: contents, subscriptions, compaction.")
brokers = _group("brokers", "The processes of the service.")
clusters = _group("clusters", "The cluster.")
compactions = _group("compactions", "Runs of compactions, and what decides about them.")
policies = _group("policies", "Policies of a topic, a namespace or the broker.")

tenants.command("list")(tenancy.list_tenants)
tenants.command("get")(tenancy.get_tenant)
tenants.command("create")(tenancy.create_tenant)
tenants.command("update")(tenancy.update_tenant)
tenants.command("delete")(tenancy.delete_tenant)

namespaces.command("list")(tenancy.list_namespaces)
namespaces.command("create")(tenancy.create_namespace)
namespaces.command("delete")(tenancy.delete_namespace)
namespaces.command("policies")(tenancy.namespace_policies)
namespaces.command("topics")(tenancy.namespace_topics)
namespaces.command("permissions")(tenancy.namespace_permissions)
namespaces.command("grant-permission")(tenancy.grant_permission)
namespaces.command("revoke-permission")(tenancy.revoke_permission)
namespaces.command("set-compaction-threshold")(compaction.set_namespace_threshold)
namespaces.command("get-compaction-threshold")(compaction.get_namespace_threshold)
namespaces.command("remove-compaction-threshold")(compaction.remove_namespace_threshold)
namespaces.command("set-retention")(compaction.set_namespace_retention)
namespaces.command("get-retention")(compaction.get_namespace_retention)
namespaces.command("remove-retention")(compaction.remove_namespace_retention)

topics.command("list")(topic.list_topics)
topics.command("list-partitioned-topics")(topic.list_partitioned_topics)
topics.command("create")(topic.create_topic)
topics.command("create-partitioned-topic")(topic.create_partitioned_topic)
topics.command("update-partitioned-topic")(topic.update_partitioned_topic)
topics.command("get-partitioned-topic-metadata")(topic.get_partitioned_topic_metadata)
topics.command("delete")(topic.delete_topic)
topics.command("delete-partitioned-topic")(topic.delete_partitioned_topic)
topics.command("permissions")(tenancy.topic_permissions)
topics.command("grant-permission")(tenancy.grant_topic_permission)
topics.command("revoke-permission")(tenancy.revoke_topic_permission)
topics.command("get-properties")(topic.get_properties)
topics.command("update-properties")(topic.update_properties)
topics.command("remove-properties")(topic.remove_properties)
topics.command("stats")(topic.stats)
topics.command("stats-internal")(topic.stats_internal)
topics.command("info-internal")(topic.info_internal)
topics.command("partitioned-stats")(topic.partitioned_stats)
topics.command("partitioned-stats-internal")(topic.partitioned_stats_internal)
topics.command("lookup")(topic.lookup)
topics.command("unload")(topic.unload)
topics.command("truncate")(topic.truncate)
topics.command("compact")(compaction.compact)
topics.command("compaction-status")(compaction.compaction_status)
topics.command("set-compaction-threshold")(compaction.set_topic_threshold)
topics.command("get-compaction-threshold")(compaction.get_topic_threshold)
topics.command("remove-compaction-threshold")(compaction.remove_topic_threshold)
topics.command("set-retention")(compaction.set_topic_retention)
topics.command("get-retention")(compaction.get_topic_retention)
topics.command("remove-retention")(compaction.remove_topic_retention)
topics.command("subscriptions")(subscriptions.list_subscriptions)
topics.command("create-subscription")(subscriptions.create_subscription)
topics.command("unsubscribe")(subscriptions.unsubscribe)
topics.command("get-subscription-properties")(subscriptions.get_subscription_properties)
topics.command("update-subscription-properties")(subscriptions.update_subscription_properties)
topics.command("reset-cursor")(subscriptions.reset_cursor)
topics.command("skip")(subscriptions.skip)
topics.command("skip-all")(subscriptions.skip_all)
topics.command("clear-backlog", hidden=True)(subscriptions.skip_all)  # as pulsar-admin calls it
topics.command("peek-messages")(subscriptions.peek_messages)
topics.command("get-message-by-id")(subscriptions.get_message_by_id)
topics.command("last-message-id")(subscriptions.last_message_id)

topics.command("produce")(messages.produce)
topics.command("read")(messages.read)
topics.command("get-key")(messages.get_key)
topics.command("verify")(upkeep.verify)
topics.command("trim")(upkeep.trim)
topics.command("release-lease")(upkeep.release_lease)

brokers.command("list")(tenancy.list_brokers)
brokers.command("leader-broker")(tenancy.leader_broker)
brokers.command("healthcheck")(tenancy.healthcheck)
brokers.command("version")(tenancy.broker_version)
brokers.command("get-runtime-config")(tenancy.runtime_configuration)
brokers.command("list-dynamic-config")(tenancy.dynamic_configuration)

clusters.command("list")(tenancy.list_clusters)
clusters.command("get")(tenancy.get_cluster)

compactions.command("list")(runs.list_runs)
compactions.command("show")(runs.show_run)
compactions.command("watch")(runs.watch_run)
compactions.command("cancel")(runs.cancel_run)
compactions.command("pause")(runs.pause)
compactions.command("resume")(runs.resume)
compactions.command("abort")(runs.abort)
compactions.command("control")(runs.control)
compactions.command("scheduler")(runs.scheduler)

policies.command("get")(policies_commands.get_policies)
policies.command("set")(policies_commands.set_policies)
policies.command("remove")(policies_commands.remove_policies)

app.command("gc")(upkeep.collect_garbage)


@app.callback()
def options(
    context: typer.Context,
    admin_url: Annotated[
        str | None, typer.Option(metavar="URL", help="The service: http://host:port [COMPACTOR_ADMIN_URL]")
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(metavar="TOKEN", help="Token, which others can see in `ps` [COMPACTOR_TOKEN]"),
    ] = None,
    token_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="File with the token [COMPACTOR_TOKEN_FILE]")
    ] = None,
    ca_cert: Annotated[
        str | None, typer.Option(metavar="FILE", help="Authorities to trust, PEM [COMPACTOR_CA_CERT]")
    ] = None,
    config: Annotated[
        str | None, typer.Option(metavar="FILE", help="admin.toml or a client.conf [COMPACTOR_ADMIN_CONFIG]")
    ] = None,
    timeout: Annotated[
        str | None, typer.Option(metavar="SECONDS", help="How long an answer may take [COMPACTOR_ADMIN_TIMEOUT]")
    ] = None,
    output: Annotated[OutputName, typer.Option(help="For people, or for scripts.")] = OutputName.TABLE,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    flags = {"admin-url": admin_url, "token": token, "token-file": token_file, "ca-cert": ca_cert, "timeout": timeout}
    context.obj = Session(flags, config, output)
    context.call_on_close(context.obj.close)


def main() -> None:
    """The program. Exits with a code of `exit_codes`."""
    run(app, NAME, GLOBAL_OPTIONS, GLOBAL_FLAGS, "the service goes on with what it was told")


if __name__ == "__main__":
    main()
