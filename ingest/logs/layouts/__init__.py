"""Layouts of well-known data sets, as files that `ingest.logs.layout` reads."""
