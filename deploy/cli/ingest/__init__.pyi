from .ingest_commands import app as app
