"""Tests of pserver/replica."""
