from .pserver_commands import app as app
