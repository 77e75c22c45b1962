"""Tests of ingest/replay."""
