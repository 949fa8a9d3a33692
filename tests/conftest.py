"""What every test may ask for."""

pytest_plugins = ["tests.broker_fixtures", "tests.ledger_fixtures"]
