from .serving_commands import aliases_of as aliases_of
from .serving_commands import app as app
from .serving_commands import grants_of as grants_of
