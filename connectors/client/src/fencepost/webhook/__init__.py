"""The webhook worker: a handler that calls a URL for every run. `fencepost webhook` is its command."""
