"""Tests of ingest/archive."""
