"""The newest revision is derived from names of files; Alembic must agree."""

from __future__ import annotations

from alembic.script import ScriptDirectory

from storage.metadata import schema


def test_the_newest_revision_is_the_one_head_and_each_follows_the_one_before() -> None:
    scripts = ScriptDirectory.from_config(schema.alembic_config())
    assert scripts.get_heads() == [schema.newest_revision()]
    walked = [revision.revision for revision in scripts.walk_revisions()]
    assert walked == sorted(walked, reverse=True)
