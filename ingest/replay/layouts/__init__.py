"""Layouts of well-known data sets, as files that `ingest.replay.layout` reads."""
