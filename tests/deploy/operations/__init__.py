"""Tests of deploy/operations."""
