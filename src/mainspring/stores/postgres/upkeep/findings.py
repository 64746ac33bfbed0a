"""Judges what ``health.py`` has measured of a PostgreSQL server: one function for each check. Pure."""

import math
import re
from collections.abc import Mapping, Sequence

import msgspec

from mainspring.core.model.base.instant import DAY, HOUR, MILLISECOND, MINUTE, SECOND, Instant, Micros, format_duration
from mainspring.core.model.cluster.diagnosis import (
    Finding,
    above,
    blamed,
    found,
    warned,
)
from mainspring.core.model.cluster.store_health import find_worst
from mainspring.core.model.runs.retention import CLASSES
from mainspring.core.ports.storage.upkeep import Retention
from mainspring.stores import statements
from mainspring.stores.postgres import schema as schemas
from mainspring.stores.postgres.codes import DAYS_AHEAD
from mainspring.stores.postgres.database import PACKAGE
from mainspring.stores.postgres.partitions import FAMILIES, HISTORIES

_MIB = 1 << 20
_OLDEST_SERVER = 140000
#: A slot or a standby that holds back this many transactions is reported, however recent.
_FAR_BACK = 10_000_000
_CREATE_INDEX = re.compile(r"^\s*CREATE (?:UNIQUE )?INDEX (\w+) ON", re.MULTILINE)
_DROP_INDEX = re.compile(r"^\s*DROP INDEX (\w+)", re.MULTILINE)


def check_latency(trip: Micros) -> Finding:
    advice = "bring the processes nearer to the server: every claim and every report waits for it"
    return above(
        "latency", trip, 10 * MILLISECOND, 100 * MILLISECOND, f"a round trip takes {trip / 1_000:.2f} ms", advice
    )


def check_clock(ahead: Micros) -> Finding:
    """Compare the clocks: the store's decides what is due, the local one is used for ids and logs."""
    far = abs(ahead)
    if far < 2 * SECOND:
        return found("clock", f"the store's clock is {ahead / 1_000:+.0f} ms from this machine's")
    where = "ahead of" if ahead > 0 else "behind"
    how = f"the store's clock is {format_duration(far // SECOND * SECOND)} {where} this one"
    return warned("clock", how, "check time synchronization; the store's clock decides what is due")


def check_server(server: Mapping[str, object]) -> list[Finding]:
    findings = []
    version = int(str(server["version"]))
    if version < _OLDEST_SERVER:
        findings.append(blamed("version", f"PostgreSQL {version // 10_000}", "upgrade to 14 or newer"))
    if server["standby"]:
        says = "this server is a standby and refuses to write"
        findings.append(blamed("primary", says, "name the primary, or several hosts with target_session_attrs=primary"))
    unsafe = [name for name in ("fsync", "full_page_writes") if server[name] == "off"]
    if unsafe:
        says = f"{' and '.join(unsafe)} off: a crash can destroy the database"
        findings.append(blamed("durability", says, f"set {unsafe[0]} = on"))
    elif server["synchronous_commit"] == "off":
        says = "synchronous_commit is off: a crash loses what was just accepted"
        findings.append(blamed("durability", says, "set it to on for this role or database"))
    else:
        findings.append(found("durability", f"synchronous_commit {server['synchronous_commit']}"))
    if "off" in (server["autovacuum"], server["track_counts"]):
        says = "autovacuum is off: tables grow without end, and the server stops in the end"
        findings.append(blamed("autovacuum", says, "set autovacuum = on and track_counts = on"))
    else:
        findings.append(found("autovacuum", "on"))
    return [*findings, check_wraparound(int(str(server["xid_age"])), str(server["xid_database"]))]


def check_wraparound(age: int, database: str) -> Finding:
    says = f"the oldest transaction id is {age:,} old, in database {database}; the server stops at 2,146,000,000"
    advice = f"find what holds vacuum back (transactions, replication slots), then VACUUM FREEZE in {database}"
    return above("wraparound", age, 1_000_000_000, 1_800_000_000, says, advice)


def check_pooler(*, by_transaction: bool, keeps_settings: bool) -> Finding:
    if by_transaction:
        says = (
            "there is one in transaction mode: no LISTEN, so workers poll, and every statement takes three trips more"
        )
        return warned("pooler", says, "connect to the server itself, where you can")
    if not keeps_settings:
        says = "there is one that drops the settings of connections: every statement takes three trips more"
        return warned("pooler", says, "connect to the server itself, where you can")
    return found("pooler", "there is one, in session mode")


def check_room(connected: int, most: int) -> Finding:
    says = f"{connected} of {most} are open"
    advice = "raise max_connections, or see in pg_stat_activity which clients hold them"
    return above("connections", connected / most, 0.8, 0.95, says, advice)


def check_pools(processes: int, each: int, most: int) -> Finding:
    """Warn if all processes and one more may open more connections than allowed; they may never open that many."""
    wanted = (processes + 1) * each
    says = f"{processes} processes of up to {each} connections each may want {wanted} of {most}"
    if wanted <= most:
        return found("planned connections", says)
    advice = "raise max_connections, lower connections in the settings, or start fewer processes"
    return warned("planned connections", says, advice)


def check_transactions(rows: Sequence[Mapping[str, object]], *, sees_all: bool) -> Finding:
    """Return the worst transaction that holds back vacuum, which keeps all rows that one may still see."""
    hidden = "" if sees_all else "; those of other roles cannot be seen without pg_read_all_stats"
    if not rows:
        return found("transactions", f"none holds vacuum back{hidden}")
    worst = find_worst(_check_transaction(row) for row in rows)["transactions"]
    return msgspec.structs.replace(worst, says=worst.says + hidden)


def _check_transaction(row: Mapping[str, object]) -> Finding:
    who, state, age, xids = str(row["who"]), str(row["state"]), int(str(row["age"])), int(str(row["xids"]))
    how = "" if state in ("", "active", "standby") else f", {state},"
    lasts = f" for {format_duration(max(age // SECOND, 1) * SECOND)}" if age else ""
    says = f"{who}{how} has kept the dead rows of {xids:,} transactions{lasts}"
    ends = {
        "prepared": "COMMIT PREPARED or ROLLBACK PREPARED it",
        "standby": "end that query there, or set hot_standby_feedback = off there",
    }
    advice = f"{ends.get(state, 'end it: pg_terminate_backend(…)')}; rows that died since it began are not vacuumed"
    limit = MINUTE if state.startswith("idle in transaction") else 5 * MINUTE
    # On the first look, it is unknown how long a standby has been reading.
    if state == "standby" and xids >= _FAR_BACK:
        limit = 0
    return msgspec.structs.replace(above("transactions", age, limit, HOUR, says, advice), who=who)


def check_idle(rows: Sequence[Mapping[str, object]]) -> list[Finding]:
    """Report idle transactions that hold back no vacuum: each keeps its connection, and perhaps locks others need."""
    findings = []
    for row in rows:
        age, who = int(str(row["age"])), str(row["who"])
        lasts = format_duration(max(age // SECOND, 1) * SECOND)
        says = f"{who} has done nothing in one for {lasts}: it keeps its connection and its locks, and no dead rows"
        advice = f"see that it commits; if it is forgotten: pg_terminate_backend({row['pid']})"
        findings.append(msgspec.structs.replace(above("idle transactions", age, HOUR, math.inf, says, advice), who=who))
    return findings or [found("idle transactions", "none")]


def check_slots(rows: Sequence[Mapping[str, object]]) -> list[Finding]:
    findings = []
    for row in rows:
        xids, kept = int(str(row["xids"])), int(str(row["kept"]))
        if xids >= _FAR_BACK or (not row["active"] and kept >= 1024 * _MIB):
            says = f"{row['name']} holds back {xids:,} transactions and {kept // _MIB:,} MiB of log"
            advice = f"if it has no reader: SELECT pg_drop_replication_slot('{row['name']}')"
            findings.append(above("replication slots", xids, 0, 200_000_000, says, advice))
    return findings or [found("replication slots", f"{len(rows)}, none holds anything back")]


def check_standbys(rows: Sequence[Mapping[str, object]]) -> list[Finding]:
    """Report lagging standbys: what one has not applied is lost with the primary, or waited for when it takes over."""
    findings = []
    for row in rows:
        late, size = int(str(row["late"])), int(str(row["bytes"]))
        if late >= MINUTE or size >= 1024 * _MIB:
            says = f"{row['name']} is {format_duration(late // SECOND * SECOND)} and {size // _MIB:,} MiB behind"
            advice = "see its log and the network between: what it has not received is lost with the primary"
            findings.append(above("standbys", late, 0, HOUR, says, advice))
    return findings or [found("standbys", f"{len(rows)} seen, none is behind")]


def check_vacuum(rows: Sequence[Mapping[str, object]]) -> list[Finding]:
    """Report dead rows and bloat of the live tables. Dead rows make claims slow, so they must be few at any moment."""
    findings = []
    for row in rows:
        dead, live, size = (int(str(row[name] or 0)) for name in ("dead", "live", "size"))
        ago = (
            "never vacuumed"
            if row["ago"] is None
            else f"vacuumed {format_duration(int(str(row['ago'])) // SECOND * SECOND)} ago"
        )
        advice = "a scheduler vacuums every few seconds, if one is live; see transactions for what holds it back"
        if dead >= 100_000 and dead > live // 5:
            says = f"{row['name']} has {dead:,} dead rows beside {live:,}, {ago}"
            findings.append(above("vacuum", dead, 0, 1_000_000, says, advice))
        # A row takes about 300 bytes; far more than that is space left from a larger table.
        elif size >= 512 * _MIB and size > 20 * 300 * max(live + dead, 1):
            says = f"{row['name']} takes {size // _MIB:,} MiB for {live:,} rows, {ago}"
            findings.append(warned("bloat", says, f"when it is quiet: VACUUM FULL {row['name']}, or pg_repack"))
    return findings or [found("vacuum", "few dead rows in the live tables")]


def check_partitions(days: Mapping[str, set[int]], now: Instant, retention: Retention) -> list[Finding]:
    today = now // DAY
    missing = sorted(
        (day, family)
        for family in days
        # Partitions of a retention class are made when a run or tenant first chooses it.
        if family not in HISTORIES.values() or days[family]
        for day in range(today, today + DAYS_AHEAD - 1)
        if day * DAY // _span(family) not in days[family]
    )
    findings = [found("partitions", f"created for the next {DAYS_AHEAD - 1} days")]
    if missing:
        day, family = missing[0]
        words = "today" if day == today else f"in {day - today} days"
        says = f"{len(missing)} are missing, the first of {family} for {words}"
        soon = blamed if day <= today + 1 else warned
        findings = [soon("partitions", says, "start a scheduler, which makes them every hour, or mainspring migrate")]
    kept = {
        "history_succeeded": retention.succeeded,
        "history_unsuccessful": retention.unsuccessful,
        "attempt": retention.unsuccessful,
        "ledger": retention.ledger,
        **{family: retention.of(CLASSES[number]) for number, family in HISTORIES.items()},
    }
    # One day of grace: partitions are dropped once an hour, and only as a whole.
    old = sorted(
        f"{family}_d{day}"
        for family, span in kept.items()
        for day in days.get(family, ())
        if (day + 1) * _span(family) + DAY <= now - span
    )
    if old:
        says = f"{len(old)} are past their retention, such as {old[0]}"
        return [*findings, warned("retention", says, "a scheduler drops them: check that one is live, and its log")]
    return [*findings, found("retention", "nothing is kept beyond its retention")]


def _span(family: str) -> Micros:
    """Return the time that one partition of a parent table spans."""
    return max(FAMILIES[family], DAY)


def list_expected_indexes() -> set[str]:
    """Return the names of the indexes that exist after all migrations."""
    names: set[str] = set()
    for _, _, text in statements.migrations(PACKAGE):
        names |= set(_CREATE_INDEX.findall(text))
        dropped = set(_DROP_INDEX.findall(text))
        # An index that is dropped and made again in the same file exists afterwards.
        names -= {name for name in dropped if text.rfind(f"DROP INDEX {name}") > text.rfind(f"INDEX {name} ON")}
    return names


def check_indexes(there: Mapping[str, bool], schema: str) -> Finding:
    missing = sorted(list_expected_indexes() - there.keys())
    invalid = sorted(name for name, valid in there.items() if not valid)
    if missing:
        says = f"{len(missing)} are missing: {', '.join(missing[:5])}"
        return blamed(
            "indexes", says, "create them again as the migrations do; without them every claim reads the table"
        )
    if invalid:
        says = f"{len(invalid)} are not valid: {', '.join(invalid[:5])}"
        return blamed("indexes", says, f"REINDEX INDEX {schema}.{invalid[0]}")
    return found("indexes", f"all {len(list_expected_indexes())} are there and valid")


def check_schema(version: int, needs: int) -> Finding:
    known, wanted = schemas.newest(), schemas.oldest()
    if needs > known:
        return blamed("schema", f"version {version}; this program knows up to {known}", "upgrade the program")
    if version > known:
        says = f"version {version}; this program knows up to {known}, and still works on it"
        return warned("schema", says, "upgrade the program soon: the next version may need it")
    if version >= wanted:
        return found("schema", f"version {version}")
    says = f"version {version}, {wanted} is the newest" if version else "there is none yet"
    return warned("schema", says, "mainspring migrate, or start any process: it does that first")
