"""What every answer of a role says to whatever shows it, a browser or a cache: nothing here is for them."""

from __future__ import annotations

# No page may show, run, frame, guess at or keep an answer. There is no header for CORS, which is off without one.
SECURITY_HEADERS = (
    ("x-content-type-options", "nosniff"),
    ("cache-control", "no-store"),
    ("referrer-policy", "no-referrer"),
    ("content-security-policy", "default-src 'none'; frame-ancestors 'none'"),
)
