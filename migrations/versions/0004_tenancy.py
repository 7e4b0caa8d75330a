"""Tenants, namespaces, permissions, partitioned topics, properties of topics, and deleted topics.

storage/metadata/tables.py describes the tables. Every existing topic keeps its tenant and namespace: they are inserted
here, beside `public` and `public/default`.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

BIG_KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_DOMAIN = "persistent://"


def upgrade() -> None:
    op.add_column("topics", sa.Column("properties", sa.JSON(), nullable=False, server_default="{}"))
    op.create_table(
        "deleted_topics",
        sa.Column("uid", sa.String(length=32), nullable=False),
        sa.Column("topic_id", BIG_KEY, nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("deleted_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("uid", name=op.f("pk_deleted_topics")),
        sa.UniqueConstraint("topic_id", name=op.f("uq_deleted_topics_topic_id")),
    )
    tenants = op.create_table(
        "tenants",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("admin_roles", sa.JSON(), nullable=False),
        sa.Column("allowed_clusters", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_tenants")),
    )
    namespaces = op.create_table(
        "namespaces",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("tenant", sa.String(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["tenant"], ["tenants.name"], name=op.f("fk_namespaces_tenant_tenants")),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_namespaces")),
    )
    op.create_index(op.f("ix_namespaces_tenant"), "namespaces", ["tenant"], unique=False)
    op.create_table(
        "permissions",
        sa.Column("scope", sa.String(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("actions", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("scope", "role", name=op.f("pk_permissions")),
    )
    op.create_table(
        "partitioned_topics",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("namespace", sa.String(), nullable=False),
        sa.Column("partitions", sa.BigInteger(), nullable=False),
        sa.Column("properties", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["namespace"], ["namespaces.name"], name=op.f("fk_partitioned_topics_namespace_namespaces")
        ),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_partitioned_topics")),
    )
    op.create_index(op.f("ix_partitioned_topics_namespace"), "partitioned_topics", ["namespace"], unique=False)
    _seed(tenants, namespaces)


def _seed(tenants: sa.Table, namespaces: sa.Table) -> None:
    """Insert `public/default`, and the namespace of every topic; each as old as its oldest topic."""
    born = {("public", "default"): 0}
    for name, created_at in op.get_bind().execute(sa.text("SELECT name, created_at FROM topics")):
        tenant, namespace, _ = name.removeprefix(_DOMAIN).split("/", 2)
        born[tenant, namespace] = min(created_at, born.get((tenant, namespace), created_at))
    oldest: dict[str, int] = {}
    for (tenant, _), created_at in born.items():
        oldest[tenant] = min(created_at, oldest.get(tenant, created_at))
    op.bulk_insert(
        tenants,
        [
            {"name": tenant, "admin_roles": [], "allowed_clusters": ["standalone"], "created_at": created_at}
            for tenant, created_at in sorted(oldest.items())
        ],
    )
    op.bulk_insert(
        namespaces,
        [
            {"name": f"{tenant}/{namespace}", "tenant": tenant, "created_at": created_at}
            for (tenant, namespace), created_at in sorted(born.items())
        ],
    )
