"""Tests of ingest/logs."""
