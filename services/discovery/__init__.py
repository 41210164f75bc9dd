"""Discovery: finds clusters through providers, probes them, streams engage, update and disengage."""
