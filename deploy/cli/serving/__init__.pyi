from .serving_commands import aliases_of as aliases_of
from .serving_commands import app as app
