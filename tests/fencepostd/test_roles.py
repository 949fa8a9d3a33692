"""What every role's process does before it begins."""

from __future__ import annotations

import subprocess
import sys

ROLE = """
import resource
from fencepostd.roles import run_until_signalled

async def tell(stop):
    print(*resource.getrlimit(resource.RLIMIT_NOFILE))

_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (256, most))
run_until_signalled(tell)
"""


def test_a_role_may_open_as_many_files_as_the_system_lets_it() -> None:
    done = subprocess.run([sys.executable, "-c", ROLE], capture_output=True, text=True, check=True)
    soft, hard = done.stdout.split()
    assert soft == hard
