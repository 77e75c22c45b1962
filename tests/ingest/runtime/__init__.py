"""Tests of ingest/runtime."""
