"""Providers: each reads one kind of source and publishes, again and again, all that it knows."""
