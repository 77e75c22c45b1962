"""Tests of ingest/joiner."""
