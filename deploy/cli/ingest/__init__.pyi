from .ingest_commands import app as app
from .topic_commands import topics_app as topics_app
