"""Tests of pserver/snapshots."""
