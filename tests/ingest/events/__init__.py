"""Tests of ingest/events."""
