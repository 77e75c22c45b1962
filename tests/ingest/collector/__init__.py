"""Tests of ingest/collector."""
