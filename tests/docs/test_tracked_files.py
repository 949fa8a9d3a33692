"""Nothing in the repository tells of the machine it was written on, or of where that one gets its packages."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.docs.papers import ROOT

# Names that no resolver knows (one label, or reserved for tests and examples), addresses, and a few that are meant.
# Every other host is a mistake, or is to be added here by somebody who has thought about it.
HOSTS = re.compile(
    r"[\w-]+|[\d.]+|\[[\d:a-f]+\]|[\w.-]+\.(?:test|invalid|localhost|example|example\.\w+)|example\.\w+"
    r"|(?:www|maven)\.apache\.org|keepachangelog\.com|semver\.org|www\.standardwebhooks\.com"
)
_URL_HOST = re.compile(r"https?://(?:[^\s/@\"'`]*@)?([\w.-]*\w|\[[\d:a-f]+\])")
_HOME = re.compile(r"(?<![\w.{}])/(?:home|root|Users|work)/\w+")


@pytest.fixture(scope="module")
def tracked() -> dict[str, str]:
    """Every tracked text file but the locks' hashes, by its path."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a checkout: nothing tells which files are tracked")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    files = [name for name in listed.split("\0") if name and (ROOT / name).is_file()]
    return {name: (ROOT / name).read_bytes().decode("utf-8", "replace") for name in files}


def test_no_file_names_this_checkout_or_somebody_s_home(tracked: dict[str, str]) -> None:
    here = {str(ROOT), str(Path.home())} - {"/"}
    found = {
        name: place for name, text in tracked.items() for place in here if re.search(rf"{re.escape(place)}/\w", text)
    }
    assert found == {}
    assert {name: match[0] for name, text in tracked.items() if (match := _HOME.search(text))} == {}


def test_every_host_in_a_url_is_a_known_one(tracked: dict[str, str]) -> None:
    strangers = {
        (name, host) for name, text in tracked.items() for host in _URL_HOST.findall(text) if not HOSTS.fullmatch(host)
    }
    assert strangers == set()


def test_no_package_index_is_written_down(tracked: dict[str, str]) -> None:
    setting = re.compile(r"(?:--index-url|--extra-index-url|--find-links|index-url\s*=)[ =]+\S*://", re.MULTILINE)
    assert {name for name, text in tracked.items() if setting.search(text)} == set()
