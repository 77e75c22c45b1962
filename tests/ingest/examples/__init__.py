"""Tests of ingest/examples."""
