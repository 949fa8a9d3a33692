"""The parts of the `fencepost` command."""
