"""What the targets are fed with: texts and bytes near what is right, far from it, and vast."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import date, timedelta
from typing import Any

from hypothesis import strategies as st

from schemas.codec import BUILT_IN_IDS, Codec, reader_schema
from schemas.commands import COMMANDS
from tests.schemas.avro_records import records

VAST = 100_000  # repetitions; the longest input that an HTTP call or a Kafka record may bring is of a few megabytes

_CODEC = Codec()
_ODD_TEXTS = st.sampled_from(
    ["", "\0", "\n", "\r\n", "\t", " ", "é", "٣", "１", "\u202e", "\U0001f600", "\ud800", "%00", "\\", '"', "'", "${x}"]
)
_EDITS = ("cut", "double", "put", "flip")


def vast(units: Sequence[str], most: int = VAST) -> st.SearchStrategy[str]:
    """One piece over and over, maybe closed by another one as often."""
    pieces = st.sampled_from(units)
    times = st.integers(1, most)
    return st.one_of(
        st.builds(lambda piece, count: piece * count, pieces, times),
        st.builds(lambda one, other, count: one * count + other * count, pieces, pieces, st.integers(1, most // 4)),
    )


def texts_of(pieces: Sequence[str], *, joined: str = "", most: int = VAST) -> st.SearchStrategy[str]:
    """Texts of a language's pieces, of others between them, or of anything."""
    mixed = st.lists(st.sampled_from(pieces) | st.sampled_from(pieces) | _ODD_TEXTS, max_size=30).map(joined.join)
    return st.one_of(mixed, mixed, st.text(max_size=60), vast(pieces, most))


def damaged(whole: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """Bytes that were right, changed in some places."""
    edits = st.lists(st.tuples(st.sampled_from(_EDITS), st.integers(0, 2**16), st.binary(max_size=10)), max_size=5)
    return st.builds(_edited, whole, edits)


def _edited(whole: bytes, edits: Sequence[tuple[str, int, bytes]]) -> bytes:
    for edit, place, put in edits:
        at = place % (len(whole) + 1)
        before, after = whole[:at], whole[at:]
        match edit:
            case "cut":
                whole = before + after[len(put) + 1 :]
            case "double":
                whole = before + after[: len(put)] + after
            case "put":
                whole = before + put + after
            case _:
                whole = before + put + after[len(put) :]
    return whole


# -- command records

_PAYLOADS = vast(["[", "]", '{"a":', '"', '"\\', "[1,", "\\u0000"]).map(lambda text: "[" * 200 + text)


def _with_payload(record: dict[str, Any], payload: str) -> dict[str, Any]:
    return record | ({"payload": payload} if "payload" in record else {})


_single = st.sampled_from(sorted(COMMANDS)).flatmap(
    lambda name: st.builds(
        lambda record, payload: _CODEC.encode(name, _with_payload(record, payload) if payload else record),
        records(reader_schema(name)),
        st.none() | st.none() | st.none() | _PAYLOADS,
    )
)
_batches = records(reader_schema("CommandBatch")).map(lambda record: _CODEC.encode("CommandBatch", record))
_headed = st.builds(
    lambda schema_id, body: b"\0" + schema_id.to_bytes(4) + body,
    st.sampled_from([*BUILT_IN_IDS.values(), 0, 11, 42, 2**32 - 1]),
    st.binary(max_size=300),
)
command_records = st.one_of(_single, _batches, damaged(_single | _batches), _headed, st.binary(max_size=100))

# -- schedules

cron_lines = texts_of(
    [
        "*", "*", "*", " ", " ", " ", " ", "0", "1", "5", "7", "9", "23", "29", "30", "31", "59", "60", "99999999999",
        "-", "/", ",", "#", "L", "l5", "H", "h(0-29)", "H(3-5)/2", "?", "W", "MON", "sun", "FEB", "dec", "1-5", "*/7",
        "0 0 29 2 *", "0 0 31 2,4 *", "0 0 * * 1#5", "30 2 * * *", "@hourly", "@daily", "@reboot", "TZ=UTC",
    ]
)  # fmt: skip
zone_names = st.sampled_from(
    ["UTC", "Europe/Berlin", "America/New_York", "Pacific/Apia", "Africa/Casablanca", "Europe/Dublin", "Mars/Phobos"]
) | texts_of(["Europe", "/", "..", "tzdata", "UTC", "posix", "Etc/GMT+5", "localtime"])

_NUMBERS = st.one_of(
    st.integers(-5, 5), st.integers(), st.floats(), st.sampled_from([1e300, 2**63, 10**30, 3_162_240_000, 86_400])
)
_INSTANT_TEXTS = st.one_of(
    st.datetimes().map(lambda instant: instant.isoformat() + "Z"),
    texts_of(["2026", "-", "01", "02", "29", "T", ":", "00", "Z", "+00:00", "+23:59", "9999", "0001", "."]),
)
_JSON = st.recursive(
    st.none() | st.booleans() | _NUMBERS | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)
_NEW_YEAR = date(2026, 1, 1)
_DATES = st.one_of(
    st.lists(st.dates().map(str), max_size=1_100),
    st.integers(1, 1_000).map(lambda days: [str(_NEW_YEAR + timedelta(day)) for day in range(days)]),
    st.lists(texts_of(["2026", "-", "12", "25"]), max_size=3),
)  # fmt: skip
_ANY = _JSON | _INSTANT_TEXTS
_WINDOW = {"startAt": _ANY, "endAt": _ANY, "excludeDates": _DATES}
schedules = st.one_of(
    st.fixed_dictionaries(
        {"cron": cron_lines},
        optional={"zone": zone_names, "jitterSeconds": _NUMBERS} | _WINDOW,
    ),
    st.fixed_dictionaries({"everySeconds": _NUMBERS}, optional={"anchor": _ANY} | _WINDOW),
    st.fixed_dictionaries({"runAt": _ANY}, optional={"zone": zone_names}),
    st.fixed_dictionaries({"delaySeconds": _ANY}),
    st.dictionaries(st.sampled_from(["cron", "everySeconds", "runAt", "zone", "anchor", "x"]), _ANY, max_size=4),
    _JSON,
)  # fmt: skip

job_files = st.one_of(
    texts_of(
        [
            "set: a\n", "jobs:\n", "  a:\n", "    queue: q\n", "    schedule: {cron: '0 9 * * *'}\n", "    payload: ",
            "&a ", "*a", "[", "]", "{", "}", ", ", ": ", "- ", "<<: *a\n", "!!python/object:os.system x", "? ", "|\n",
            "'", '"', "#", "%YAML 1.1\n", "---\n", "1e9999", "0x1F", "2026-01-01", "1:30:00", "!!int x", "\t",
        ],
        most=1_000,  # a file of one's own, which PyYAML reads at 100 KB/s
    ),
    # Each line refers to the one before it several times: a few hundred characters that stand for billions.
    st.integers(2, 40).map(
        lambda depth: "jobs: {a: {queue: q, schedule: {everySeconds: 60}, payload: [&a0 [x]"
        + "".join(f", &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, depth))
        + "]}}"
    ),
)  # fmt: skip

# -- HTTP

tokens = st.one_of(
    st.none(),
    st.binary(max_size=200),
    texts_of(["Bearer", "bearer", "Basic", " ", "fp_", "_", "0123456789ab", "=", ",", "\t"]).map(
        lambda text: text.encode(errors="surrogatepass")
    ),
    damaged(st.just(b"Bearer fp_0123456789ab_" + b"x" * 43)),
)
urls = texts_of(
    [
        "https", "http", "://", ":", "//", "/", "@", "[", "]", "::1", "127.0.0.1", "0x7f", "017700000001", "2130706433",
        "a.example", "*.example.com", "xn--", "%2e", "?x=1", "#f", ":443", ":99999", ".", "-", "_", "user:pw@", "\\",
        "fe80::1%25eth0", "https://hooks.example.com/run",
    ]
)  # fmt: skip

_SPEC = st.fixed_dictionaries(
    {"queue": st.just("mail") | _JSON, "schedule": schedules},
    optional={
        "payload": _JSON, "name": _JSON, "lane": _JSON, "maxAttempts": _NUMBERS, "timeoutSeconds": _NUMBERS,
        "catchUp": _JSON, "declaredAs": _JSON, "effectiveFrom": _ANY, "ifVersion": _NUMBERS, "x": _JSON,
    },
)  # fmt: skip
_OUTCOMES = st.fixed_dictionaries(
    {
        "runs": st.lists(
            st.fixed_dictionaries(
                {"leaseToken": _NUMBERS, "runId": st.uuids().map(str) | _JSON},
                optional={"result": _JSON, "error": _JSON, "progress": _JSON, "delaySeconds": _NUMBERS},
            ),
            max_size=5,
        )
    }
)
_LEASES = st.fixed_dictionaries({"workerId": _JSON, "max": _NUMBERS}, optional={"waitSeconds": _NUMBERS, "x": _JSON})
_right_bodies = (_SPEC | _OUTCOMES | _LEASES).map(lambda body: json.dumps(body).encode())
bodies = st.one_of(
    _right_bodies,
    damaged(_right_bodies),
    texts_of(['{"payload":', '{"schedule":', '{"a":', "[", "]", "}", '"', "1e999", "null", ",", "\\ud800"]).map(
        lambda text: text.encode(errors="surrogatepass")
    ),
    st.builds(
        lambda field, piece, times: b'{"queue":"q","' + field + b'":' + piece * times,
        st.sampled_from([b"schedule", b"payload", b"runs", b"result", b"x"]),
        st.sampled_from([b"[", b'{"a":', b'[{"a":']),
        st.integers(1, VAST),
    ),
)

# -- SQL


def _doubling(times: int) -> str:
    """Each CTE is twice the one before it."""
    ctes = (f"t{n} AS (SELECT * FROM t{n - 1}, t{n - 1} AS b)" for n in range(1, times))
    return f"WITH {', '.join(['t0 AS (SELECT 1)', *ctes])} SELECT * FROM t{times - 1}"


queries = st.one_of(
    texts_of(
        [
            "SELECT", "*", "count(*)", "FROM runs", "FROM run_events", "WHERE", "state = 'dead'", "GROUP BY 1",
            "ORDER BY 1", "LIMIT 5", "WITH t AS (SELECT 1)", "WITH RECURSIVE t AS", "UNION ALL", "(", ")", ",", ";",
            "CASE WHEN 1 THEN 2 END", "NOT", "-", "||", "'x'", "1", "x ->> '$.a'", "::json", "AS y", "JOIN runs USING",
            "/*", "--", "\"", "$1", "?", "read_text('/etc/passwd')", "range(1000000000)", "repeat('x', 1000000000)",
            "x -> y -> x", "[1, 2]", "{'a': 1}", "OVER (PARTITION BY", "PRAGMA", "COPY", "INTERVAL", "AT TIME ZONE",
        ],
        joined=" ",
    ),
    st.builds(
        lambda piece, times: f"SELECT {piece * times}1",
        st.sampled_from(["(", "NOT ", "- ", "1+", "'a'||", "[", "1 IN (", "CASE WHEN ", "(SELECT ", "x.", "- ("]),
        st.integers(1, 30_000),
    ),
    st.builds(
        lambda piece, end, times: f"SELECT {piece * times}1{end * times}",
        st.sampled_from(["(", "abs(", "(SELECT ", "[", "1 IN (", "CAST(", "CASE WHEN 1 THEN "]),
        st.sampled_from([")", "]", " END", " AS INT)"]),
        st.integers(1, 2_500),
    ),
    st.integers(1, 3_000).map(lambda times: "SELECT 1" + " UNION SELECT 1" * times),
    st.integers(1, 300).map(_doubling),
)  # fmt: skip
