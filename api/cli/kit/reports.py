"""Runs, trims, verifications and policies for a person, from the documents of `api.reports` or of the REST API."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Mapping, Sequence
from typing import Any

from api.cli.kit.output import as_text, show, show_table
from api.cli.kit.shared_arguments import OutputFormat
from api.cli.kit.stderr import counted, size
from api.cli.kit.terminal import escape_controls, print_line
from api.formats.option_text import value_text

_RUN_COLUMNS = ("run", "topic", "state", "phase", "tasks", "started_at", "last_sign", "compacted_ledger", "error")
TRIM_COLUMNS = ("ledger", "first_offset", "last_offset", "messages", "logical_bytes", "why")
_COMPACTION_CURSOR = "__compaction"


def show_runs(runs: Sequence[Mapping[str, Any]], output: OutputFormat) -> None:
    """Print a list of compaction runs."""
    if output is OutputFormat.JSON:
        show(runs, output)
    else:
        show_table(map(_run_row, runs), _RUN_COLUMNS)


def show_run(run: Mapping[str, Any] | None, output: OutputFormat) -> None:
    """Print all fields of one compaction run, with readable times and sizes.

    `run` None (there is no run): print `null` as JSON, and nothing as text.
    """
    show(run, output, cell=_run_cell_text)


def run_summary(run: Mapping[str, Any]) -> str:
    """Return the line of a run that has ended: `run 7 of persistent://… : SUCCESS in 3 s, kept 2 of 3 messages, …`."""
    text = f"run {run['run']} of {run['topic']}: {run['state']}"
    if run["finished_at"] is not None:
        took = max(0, run["finished_at"] - run["started_at"])
        text += f" in {took} ms" if took < 1_000 else f" in {took / 1000:.1f} s"
    counts = run["statistics"]
    if run["compacted_ledger"] is not None:
        before = counts.get("messages_before", 0) + counts.get("messages_in", 0)
        text += f", kept {counts.get('messages_out', 0):,} of {counted(before, 'message')}"
        text += f", read {size(counts.get('bytes_read', 0))}, wrote {size(counts.get('bytes_written', 0))}"
        text += f"; compacted ledger {run['compacted_ledger']}, up to offset {run['horizon_offset']}"
    return text


def _run_row(run: Mapping[str, Any]) -> dict[str, Any]:
    tasks = run["statistics"].get("tasks")
    if run["tasks_total"] is not None:
        tasks = f"{run['tasks_done']}/{run['tasks_total']}"
    last = as_text("_at", run["finished_at"] or run["heartbeat_at"])
    return {**run, "tasks": tasks, "last_sign": f"{last}, expired" if run["heartbeat_expired"] else last}


def _run_cell_text(name: str, value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        if "bytes" in name:
            return f"{size(value)} ({value:,} bytes)"
        if name.endswith("_ms"):
            return f"{value:,} ms"
    return as_text(name, value)


def verify_lines(report: Mapping[str, Any]) -> list[str]:
    """Return the lines that report a verification to a person: checked objects, unchecked parts, differences."""
    lines = [f"Topic {report['topic']}"]
    if report["compacted_ledger"] is None:
        lines.append("It has no compacted ledger; only its raw ledgers were checked.")
    else:
        lines.append(f"Compacted ledger {report['compacted_ledger']}, generation {report['generation']}")
    checked = (_count_and_noun(noun.replace("_", " "), count) for noun, count in report["checked"].items())
    lines.append(f"Checked: {', '.join(checked)}")
    lines += [f"Not checked: {reason}" for reason in report["unchecked"]]
    lines += map(_difference_line, report["differences"])
    if report["total"] > len(report["differences"]):
        lines.append(f"… and {report['total'] - len(report['differences']):,} more")
    by_kind = ", ".join(f"{count:,} {kind}" for kind, count in report["counts"].items())
    lines.append(f"{counted(report['total'], 'difference')}: {by_kind}" if report["total"] else "No differences")
    return lines


def _count_and_noun(nouns: str, count: int) -> str:
    """Return a number with its noun: 3 part rows compared with raw, 1 index."""
    if count == 1:
        nouns = re.sub(r"(?<=x)es\b|s\b", "", nouns, count=1)
    return f"{count:,} {nouns}"


def _difference_line(difference: Mapping[str, Any]) -> str:
    subject = ""
    if difference["key_base64"] is not None:
        subject = f"key {b64decode(difference['key_base64'])!r}, "
    elif difference["key_hash"] is not None:
        subject = f"a key of hash {difference['key_hash']}, "
    if difference["offset"] is not None:
        subject += f"offset {difference['offset']}, "
    text = f"{difference['kind']}: {subject}{difference['what']}"
    return text if difference["where"] in text else f"{text} ({difference['where']})"


def trim_lines(report: Mapping[str, Any]) -> list[str]:
    """Return the lines that report a trim to a person: its ledgers, and the hold that keeps the rest."""
    ledgers, held = report["ledgers"], report["held"]
    verb = "Would trim" if report["dry_run"] else "Trimmed"
    trimmed = size(sum(ledger["logical_bytes"] for ledger in ledgers))
    begins = f"its raw messages begin at offset {report['first_offset']}"
    lines = [f"{verb} {counted(len(ledgers), 'ledger')}, {trimmed}, of {report['topic']}; {begins}"]
    if held is not None:
        lines.append(_hold_line(held))
    if report["tail_left"]:
        lines.append(f"What is not sealed yet was left: {report['tail_left']}")
    return lines


def _hold_line(held: Mapping[str, Any]) -> str:
    mark = held["mark_delete"]
    where = "which has acknowledged nothing" if mark is None else f"at {mark} (offset {held['mark_delete_offset']})"
    remedy = "let its reader acknowledge, delete the cursor, or give --force"
    if held["cursor"] == _COMPACTION_CURSOR:
        remedy = "compact the topic first, or give --force"
    count = len(held["ledgers"])
    what = counted(count, "more ledger") if count else f"the messages up to offset {held['start_offset'] - 1}"
    return f"The cursor {held['cursor']}, {where}, holds {what} back: {remedy}"


def show_policies(policies: Mapping[str, Mapping[str, Any]]) -> None:
    """Print policies with their values and origins."""
    rows = [
        {"policy": name, "value": value_text(policy["value"]), "from": origin_text(policy)}
        for name, policy in policies.items()
    ]
    show_table(rows, ("policy", "value", "from"))


def origin_text(policy: Mapping[str, Any]) -> str:
    """Return the scope from which a policy's value comes, and the nearer scope whose value cannot be read."""
    unreadable = policy.get("unreadable")
    if unreadable is None:
        return str(policy["origin"])
    return f"{policy['origin']} (the {unreadable['origin']}'s {unreadable['value']} cannot be read)"


def print_lines(lines: Sequence[str]) -> None:
    """Print the lines of a report on stdout."""
    for line in lines:
        print_line(escape_controls(line))
