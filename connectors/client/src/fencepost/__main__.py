"""`python -m fencepost` is the `fencepost` command."""

from fencepost.cli import main

main(prog_name="fencepost")
