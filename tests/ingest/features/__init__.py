"""Tests of ingest/features."""
