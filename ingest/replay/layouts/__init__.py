"""Layouts of data sets that many people have, as files that `ingest.replay.layout` reads."""
