"""Tests of deploy/reports."""
