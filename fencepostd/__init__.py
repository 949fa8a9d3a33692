"""The server's command line and composition root: the one place that wires the roles together."""
