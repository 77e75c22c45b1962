from .serving_commands import aliases_of as aliases_of
from .serving_commands import app as app
from .serving_commands import token_source as token_source
