"""Tests of pserver/redis_backend."""
