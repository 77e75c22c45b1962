"""Tests of ingest/http."""
