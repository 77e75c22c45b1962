"""Tests of ingest/kafka."""
