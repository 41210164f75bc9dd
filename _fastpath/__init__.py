"""Compiled hot paths: markers, the JSON splicer, the fair queue. Imports nothing of ours."""
