"""The built-in controllers: level-triggered reconciles of one key each, on one fair queue."""
