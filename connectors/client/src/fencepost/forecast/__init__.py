"""What a set of schedules will ask of an installation in the next days: every occurrence counted, second by second."""
